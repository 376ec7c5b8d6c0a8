"""Has a rank's process been tampered with? A list of what every honest program leaves alone, before and after."""

import builtins
import math
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup, distributed_c10d

_MODULES = {
    "torch": torch,
    "torch.distributed": dist,
    "torch.distributed.distributed_c10d": distributed_c10d,
    "builtins": builtins,
    "math": math,
}
_CLASSES = {
    "torch.Tensor": torch.Tensor,
    "torch.distributed.ProcessGroup": ProcessGroup,
    "torch.distributed.P2POp": dist.P2POp,
}
_OURS = ("reference.cluster", "reference.trace", "reference.collectives", "puzzles.grading")

Names = dict[str, dict[str, Any]]


def snapshot() -> Names:
    """What modules and classes hold now: of torch.distributed, of tensors, and of the machinery around the learner."""
    ours = {name: module for name, module in sys.modules.items() if name.startswith(_OURS)}
    return {owner: dict(vars(each)) for owner, each in (_MODULES | ours | _CLASSES).items()}


def changed(before: Names) -> list[str]:
    """Names that hold something else than in the snapshot, such as "torch.distributed.send".

    Of modules only what can be called counts, for they also hold state that changes in honest use, and get new names.
    A new name in a class counts, too: it hides what the class inherits.
    """
    now = snapshot()
    replaced = [
        f"{owner}.{name}"
        for owner, names in before.items()
        for name, value in names.items()
        if now.get(owner, {}).get(name) is not value and (owner in _CLASSES or callable(value))
    ]
    return replaced + [f"{owner}.{name}" for owner in _CLASSES for name in now[owner] if name not in before[owner]]
