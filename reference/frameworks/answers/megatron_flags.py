"""A plan of ours as Megatron's command line."""

from collections.abc import Mapping
from typing import Any

SIZES = {
    "tensor_parallel": "--tensor-model-parallel-size",
    "pipeline_parallel": "--pipeline-model-parallel-size",
    "context_parallel": "--context-parallel-size",
    "expert_parallel": "--expert-model-parallel-size",
}
SHARDS = {"zero2": "optim_grads", "fsdp": "optim_grads_params", "hsdp": "optim_grads_params"}
TALKS = {"all-gather": "all_gather", "ulysses": "a2a"}


def to_megatron(plan: Mapping[str, Any], ranks: int, batch: int) -> list[str]:
    """The words that say the same.

    Args:
        plan: fields of `Plan` that are not as they are by default.
        ranks: n.
        batch: windows of all ranks and micro-batches.

    Returns:
        Sorted, each with its value behind an =, where it has one.
    """
    flags: dict[str, Any] = {flag: plan[name] for name, flag in SIZES.items() if plan.get(name, 1) > 1}
    replicas = ranks
    for name in ("tensor_parallel", "pipeline_parallel", "context_parallel"):
        replicas //= plan.get(name, 1)
    flags["--global-batch-size"] = batch
    flags["--micro-batch-size"] = batch // (replicas * plan.get("micro_batches", 1))
    if plan.get("sequence_parallel"):
        flags["--sequence-parallel"] = ""
    if plan.get("schedule") == "interleaved":
        flags["--num-virtual-stages-per-pipeline-rank"] = plan.get("stages_per_rank", 2)
    if plan.get("context_method") in TALKS:
        flags["--cp-comm-type"] = TALKS[plan["context_method"]]
    if "recompute" in plan:
        flags["--recompute-granularity"] = plan["recompute"]
        if plan["recompute"] == "full":
            flags |= {"--recompute-method": "uniform", "--recompute-num-layers": 1}
    form = plan.get("data_parallel", "flat")
    if form == "ddp":
        flags["--overlap-grad-reduce"] = ""
    if form in ("zero1", *SHARDS):
        flags["--use-distributed-optimizer"] = ""
    if form in SHARDS:
        flags |= {"--use-megatron-fsdp": "", "--data-parallel-sharding-strategy": SHARDS[form]}
    if form == "hsdp":
        flags["--num-distributed-optimizer-instances"] = plan.get("dp_replicate", 2)
    return sorted(f"{flag}={value}" if value else flag for flag, value in flags.items())
