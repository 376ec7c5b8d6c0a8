"""A checkpoint that is there whole or not at all, at once or behind training."""

from collections.abc import Callable

import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def save_atomically(
    shard: Tensor,
    step: int,
    before: int,
    write: Callable[[str, Tensor], None],
    sync: Callable[[str], None],
    rename: Callable[[str, str], None],
    delete: Callable[[str], None],
    group: ProcessGroup,
) -> None:
    """Save each rank's shard in the folder `step-{step}`, and delete the one of the step before that.

    Args:
        shard: what this rank holds.
        step: of the checkpoint.
        before: the step of the checkpoint that is there.
        write, sync, rename, delete: of the disk.
        group: all ranks. Afterwards all of them may rely on the checkpoint.
    """
    rank = dist.get_rank(group)
    partial = f".step-{step}"
    write(f"{partial}/{rank}", shard)
    sync(f"{partial}/{rank}")
    dist.barrier(group)
    if rank == 0:
        rename(partial, f"step-{step}")
        delete(f"step-{before}")
    dist.barrier(group)


def save_behind(
    state: dict[str, Tensor],
    counters: dict[str, int],
    room: dict[str, Tensor],
    behind: Callable[[Callable[[], None]], Callable[[], None]],
    write: Callable[[dict[str, Tensor], dict[str, int]], None],
    publish: Callable[[], None],
    group: ProcessGroup,
) -> Callable[[], None]:
    """Begin to save, and return while it is being written.

    Args:
        state: tensors by name, which training changes in place.
        counters: numbers by name, which training changes, too.
        room: tensors of the same names and shapes, to copy to.
        behind: lets a thread do something; returns what waits for it.
        write: of this rank's file.
        publish: names the checkpoint, on rank 0.
        group: all ranks.

    Returns:
        What all ranks call between two later steps: it ends when the checkpoint has its name.
    """
    for name, x in state.items():
        room[name].copy_(x)
    numbers = dict(counters)
    wait = behind(lambda: write(room, numbers))

    def finish() -> None:
        wait()
        dist.barrier(group)
        if dist.get_rank(group) == 0:
            publish()
        dist.barrier(group)

    return finish


def train(
    steps: int,
    state: dict[str, Tensor],
    update: Callable[[], None],
    behind: Callable[[Callable[[], None]], Callable[[], None]],
    write: Callable[[int, dict[str, Tensor]], None],
    group: ProcessGroup,
) -> None:
    """Take steps, and save each of them behind the next one.

    Args:
        steps: how many.
        state: tensors by name, which `update` changes in place.
        update: takes a step.
        behind: lets a thread do something; returns what waits for it.
        write: of a checkpoint, by its step.
        group: all ranks, which end together.
    """
    room = {name: x.new_empty(x.shape) for name, x in state.items()}
    wait = None
    for step in range(1, steps + 1):
        update()
        if wait:
            wait()
        for name, x in state.items():
            room[name].copy_(x)
        wait = behind(lambda step=step: write(step, room))
    if wait:
        wait()
    dist.barrier(group)
