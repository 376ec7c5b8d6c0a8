"""A configuration of DeepSpeed, as settings of torch's `fully_shard` with which the same bytes travel."""

from collections.abc import Mapping
from typing import Any


def to_fsdp2(config: Mapping[str, Any], ranks: int) -> tuple[int, int, bool | int, bool, bool, str]:
    """What to tell `fully_shard`, and the loop around it.

    Args:
        config: as in ds_config.json, with a ZeRO stage of 1, 2 or 3.
        ranks: n.

    Returns:
        Windows of a micro-batch on a rank; micro-batches; `reshard_after_forward`; what `set_reshard_after_backward`
        and `set_requires_gradient_sync` are given in all micro-batches but the last; and the dtype of gradients on the
        way.
    """
    batch, windows, micro_batches = (
        config.get(name)
        for name in ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    )
    if windows is None:
        windows = batch // (ranks * (micro_batches or 1))
    if micro_batches is None:
        micro_batches = batch // (ranks * windows) if batch else 1
    zero = config["zero_optimization"]
    stage, node = zero["stage"], zero.get("zero_hpz_partition_size", 1)
    after_forward = (node if node > 1 else True) if stage == 3 else False
    dtype = "bfloat16" if config.get("bf16", {}).get("enabled") else "float32"
    reduced = {"fp32": "float32", "bf16": "bfloat16"}.get(config.get("communication_data_type"), dtype)
    return windows, micro_batches, after_forward, stage == 3, stage >= 2, reduced
