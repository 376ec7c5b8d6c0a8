"""Megatron's command line as a mesh of torch's, and settings of `fully_shard` and of pipelining."""

from collections.abc import Sequence


def to_torch(
    flags: Sequence[str], ranks: int
) -> tuple[tuple[int, int, int, int, int], int, bool | None, bool | None, int, int, str]:
    """What torch is told instead.

    Args:
        flags: the words after the program's name.
        ranks: n.

    Returns:
        Sizes of the mesh, outermost first: pipeline, replicas, shards of data parallelism, context, tensor; ranks that
        share a parameter out; `reshard_after_forward`; what `set_requires_gradient_sync` is given before all
        micro-batches but the last (both None without shards); micro-batches; stages of a rank; the schedule.
    """
    words = [part for word in flags for part in word.split("=", 1)]
    said = {}
    for at, word in enumerate(words):
        if word.startswith("--"):
            value = words[at + 1] if at + 1 < len(words) else ""
            said[word] = "" if value.startswith("--") else value
    axes = ("tensor-model", "pipeline-model", "context")
    tensor, pipeline, context = (int(said.get(f"--{axis}-parallel-size", 1)) for axis in axes)
    data = ranks // (tensor * pipeline * context)
    copies = int(said.get("--num-distributed-optimizer-instances", 1))
    micro_batches = int(said["--global-batch-size"]) // (int(said["--micro-batch-size"]) * data)
    stages = int(said.get("--num-virtual-stages-per-pipeline-rank", 1))
    if "--num-layers-per-virtual-pipeline-stage" in said:
        stages = int(said["--num-layers"]) // (pipeline * int(said["--num-layers-per-virtual-pipeline-stage"]))
    schedule = "" if pipeline == 1 else "Schedule1F1B" if stages == 1 else "ScheduleInterleaved1F1B"
    strategy = said.get("--data-parallel-sharding-strategy", "no_shard") if "--use-megatron-fsdp" in said else ""
    if strategy in ("", "no_shard"):
        strategy = "optim" if "--use-distributed-optimizer" in said and not strategy else ""
    if not strategy:
        return (pipeline, data, 1, context, tensor), 1, None, None, micro_batches, stages, schedule
    mesh = (pipeline, copies, data // copies, context, tensor)
    kept, sync = strategy != "optim_grads_params", strategy != "optim"
    return mesh, data // copies * context, not kept, sync, micro_batches, stages, schedule
