"""A checkpoint that is there whole or not at all: written while all wait, or behind training; and loaded by agreement.

    save          write under a name that no reader looks for; when all ranks have written, rename
    save_behind   the same, of a copy, while training continues
    load          read aside, agree, and only then change anything

Three words do the work. `fsync`: until then a file is in memory, and a power cut takes it. A barrier: a rank knows that
its own file is there, not that the others' are. `rename`: it happens whole or not at all.
"""

import os
from collections.abc import Callable
from pathlib import Path
from threading import Thread

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

State = dict[str, Tensor]
"""What a rank has to keep, by name."""


def save(state: State, folder: Path, step: int, group: ProcessGroup) -> None:
    """Save each rank's state as one checkpoint, `folder/step-{step}`. All ranks call this together."""
    partial = folder / f".step-{step}"
    write(state, partial / f"{dist.get_rank(group)}.pt")
    publish(partial, folder / f"step-{step}", group)


def save_behind(state: State, folder: Path, step: int, group: ProcessGroup) -> Callable[[], None]:
    """Begin to save, and return. All ranks call `finish`, which is returned, together between two later steps.

    What is written is a copy: training changes the state in place, and would change what is being written.
    """
    partial, copied = folder / f".step-{step}", {name: x.clone() for name, x in state.items()}
    writer = Thread(target=write, args=(copied, partial / f"{dist.get_rank(group)}.pt"))
    writer.start()

    def finish() -> None:
        writer.join()
        publish(partial, folder / f"step-{step}", group)

    return finish


def load(state: State, checkpoint: Path, group: ProcessGroup) -> bool:
    """Load a checkpoint into `state`, in place, on all ranks or on none. Returns whether it was loaded."""
    try:
        loaded = torch.load(checkpoint / f"{dist.get_rank(group)}.pt")
        fits = {name: x.shape for name, x in loaded.items()} == {name: x.shape for name, x in state.items()}
    except (OSError, RuntimeError, EOFError):
        fits = False
    all_fit = torch.tensor(int(fits))
    dist.all_reduce(all_fit, op=dist.ReduceOp.MIN, group=group)
    if all_fit:
        for name, x in state.items():
            x.copy_(loaded[name])
    return bool(all_fit)


def write(state: State, path: Path) -> None:
    """Write a file to the last byte."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())


def publish(partial: Path, checkpoint: Path, group: ProcessGroup) -> None:
    """Give what all ranks have written its name. When this returns, it is there for all of them."""
    dist.barrier(group)  # every rank's file is on the disk
    if dist.get_rank(group) == 0:
        partial.rename(checkpoint)
        sync(checkpoint.parent)  # the name, too
    dist.barrier(group)


def sync(folder: Path) -> None:
    """Let the names in a folder reach the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
