"""frameworks.deepspeed_to_fsdp2: From DeepSpeed to fully_shard.

rankwise check frameworks.deepspeed_to_fsdp2
rankwise hint frameworks.deepspeed_to_fsdp2

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

from collections.abc import Mapping
from typing import Any


def to_fsdp2(
    config: Mapping[str, Any], ranks: int
) -> tuple[int, int, bool | int, bool, bool, str]:
    """From DeepSpeed to fully_shard.

    A run is configured for DeepSpeed, and shall be continued with torch's
    `fully_shard`, such that the same bytes travel in a step of K micro-batches:

        stage 1   gradients once, parameters once
        stage 2   gradients in each micro-batch, parameters once
        stage 3   gradients in each micro-batch, parameters twice in each:
                  before forward, and before backward
        with zero_hpz_partition_size = s above 1, parameters come from s ranks
        alone the second time

    `fully_shard` has these settings. `reshard_after_forward` says whether
    parameters that were gathered for forward are dropped afterwards (True),
    kept for backward (False), or kept by s ranks together (a number s). And
    before each micro-batch but the last a loop may tell the model
    `set_reshard_after_backward(False)`, which keeps them until the next
    micro-batch, and `set_requires_gradient_sync(False)`, which lets gradients
    wait in full.

    In DeepSpeed train_batch_size = train_micro_batch_size_per_gpu ·
    gradient_accumulation_steps · ranks, and what is missing follows;
    accumulation is 1 where it cannot follow. Gradients travel in
    communication_data_type ("fp32" or "bf16"), or, where that is not said, in
    what the model computes with: bfloat16 with bf16.enabled, and float32
    without.

    Args:
        config: as in ds_config.json; it may lack everything but
            zero_optimization.stage and one of the sizes.
        ranks: n.

    Returns: (windows of a micro-batch on a rank, K, reshard_after_forward, what
    set_reshard_after_backward is given before all micro-batches but the last,
    what set_requires_gradient_sync is given there, "float32" or "bfloat16":
    `reduce_dtype`).

    Budget: a few look-ups.
    """
    raise NotImplementedError("not solved yet")
