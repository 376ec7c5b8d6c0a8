"""Accelerate: a loop of one's own, whose model, optimizer and backward are handed through `Accelerator`.

On CPUs it is DistributedDataParallel whatever plugin is asked for: `fsdp` shows that a plugin for FSDP is dropped
without a word (`accelerate.state` lets other kinds of machines alone become FSDP).
"""

from collections.abc import Iterator

from accelerate import Accelerator, FullyShardedDataParallelPlugin

from reference.frameworks.plain import Course


def losses(course: Course, feature: str) -> Iterator[float]:
    """`ddp`, or `fsdp`, which is the same."""
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2) if feature == "fsdp" else None
    accelerator = Accelerator(cpu=True, fsdp_plugin=plugin)
    model = course.model()
    model, optimizer = accelerator.prepare(model, course.optimizer(model.parameters()))
    for step in range(course.steps):
        tokens, targets = course.read(step, accelerator.process_index, accelerator.num_processes)
        loss = course.loss(model(tokens), targets)
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        yield loss.item()
