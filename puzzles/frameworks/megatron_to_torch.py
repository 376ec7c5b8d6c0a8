"""frameworks.megatron_to_torch: From Megatron's flags to a mesh.

rankwise check frameworks.megatron_to_torch
rankwise hint frameworks.megatron_to_torch

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

from collections.abc import Sequence


def to_torch(
    flags: Sequence[str], ranks: int
) -> tuple[tuple[int, int, int, int, int], int, bool | None, bool | None, int, int, str]:
    """From Megatron's flags to a mesh.

    A run was started with Megatron's flags, and shall be continued with torch's
    own pieces on the same ranks, such that the same ranks share the same things
    and the same bytes travel.

    Megatron numbers ranks along tensor parallelism first, then context, then
    data, then pipeline. `init_device_mesh` numbers them along the last dim
    first. The mesh shall have five dims, those of size 1 too: pipeline,
    replicas, shards, context, tensor. Ranks divided by tensor, pipeline and
    context are replicas, or shards, or, with
    --num-distributed-optimizer-instances R, R replicas of shards.

        neither of the two switches below       replicas
        --use-distributed-optimizer
        shards: gradients travel once a step, parameters once
        --use-megatron-fsdp
        what --data-parallel-sharding-strategy says: no_shard, which is its
        default, is replicas; optim is as above; optim_grads shards, too:
        gradients travel in each micro-batch, parameters once;
        optim_grads_params: parameters twice in each micro-batch

    Ranks of one context read the same windows, have parameters in common, and
    sum gradients like any replicas: so each parameter is shared out over shards
    and context together, for `fully_shard` a flattened dim of the mesh.

    --num-virtual-stages-per-pipeline-rank says how many stages a rank has, or
    else --num-layers-per-virtual-pipeline-stage does, with --num-layers;
    without both it has one. torch calls the schedules Schedule1F1B, and
    ScheduleInterleaved1F1B for several stages.

    Args:
        flags: the words of the command line, such as "--bf16", "--num-layers",
            "32", or "--num-layers=32". Some mean nothing here. The two batch
            sizes are always there: windows of a micro-batch of one replica, and
            of a step.
        ranks: n.

    Returns: (sizes of the mesh, ranks that share a parameter out,
    reshard_after_forward, what set_requires_gradient_sync is given before all
    micro-batches but the last, micro-batches of a step, stages of a rank, name
    of the schedule). Without shards the second is 1, and the two settings are
    None; without a pipeline the name is "".

    Budget: a look at each word.
    """
    raise NotImplementedError("not solved yet")
