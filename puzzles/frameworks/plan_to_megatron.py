"""frameworks.plan_to_megatron: Our plan as Megatron's flags.

rankwise check frameworks.plan_to_megatron
rankwise hint frameworks.plan_to_megatron

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

from collections.abc import Mapping
from typing import Any


def to_megatron(plan: Mapping[str, Any], ranks: int, batch: int) -> list[str]:
    """Our plan as Megatron's flags.

    A plan of this course shall run in Megatron. These are its flags:

        tensor_parallel      --tensor-model-parallel-size
        sequence_parallel    --sequence-parallel, without a value
        pipeline_parallel    --pipeline-model-parallel-size
        stages_per_rank      --num-virtual-stages-per-pipeline-rank, with
                             schedule "interleaved"
        context_parallel     --context-parallel-size
        context_method       --cp-comm-type: "ring" is p2p, its default,
                             "all-gather" is all_gather, "ulysses" a2a
        expert_parallel      --expert-model-parallel-size
        recompute            --recompute-granularity, "selective" or "full";
                             what is full takes --recompute-method uniform and
                             --recompute-num-layers 1 besides
        data_parallel        "flat" nothing; "ddp" --overlap-grad-reduce;
                             "zero1" --use-distributed-optimizer; "zero2" and
                             "fsdp" the same, and --use-megatron-fsdp with
                             --data-parallel-sharding-strategy optim_grads or
                             optim_grads_params; "hsdp" as "fsdp", and
                             --num-distributed-optimizer-instances as
                             dp_replicate

    How many replicas there are has no flag: Megatron divides the ranks by
    tensor, pipeline and context parallelism. Experts are shared out among ranks
    that are replicas for everything else, and divide nothing. Nor has the
    number of micro-batches one: Megatron knows --global-batch-size, windows of
    a step of all ranks, and --micro-batch-size, windows of one micro-batch on
    one replica, and both are always said.

    Args:
        plan: the fields that differ from `Plan()`: data_parallel "flat", all
            sizes and micro_batches 1, schedule "1f1b", recompute "none";
            stages_per_rank and dp_replicate are 2 where they are needed and not
            there.
        ranks: n.
        batch: windows of all ranks and micro-batches in a step.

    Returns: the words of the command line in alphabetical order, such as
    "--global-batch-size=512" and, without a value, "--sequence-parallel". No
    word that would say what Megatron does anyway.

    Budget: a few look-ups.
    """
    raise NotImplementedError("not solved yet")
