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
    """What modules and classes hold now: of torch.distributed, of tensors, and of the machinery around the learner.

    Of modules only what can be called: they also hold state that changes in honest use.
    """
    ours = {name: module for name, module in sys.modules.items() if name.startswith(_OURS)}
    modules = {
        owner: {name: value for name, value in vars(module).items() if callable(value)}
        for owner, module in (_MODULES | ours).items()
    }
    return modules | {owner: dict(vars(each)) for owner, each in _CLASSES.items()}


def changed(before: Names) -> list[str]:
    """Names that hold something else than in the snapshot, such as "torch.distributed.send".

    A new name in a class counts, too: it hides what the class inherits. Modules get new names in honest use.
    """
    now = snapshot()
    replaced = [
        f"{owner}.{name}"
        for owner, names in before.items()
        for name, value in names.items()
        if now.get(owner, {}).get(name) is not value
    ]
    return replaced + [f"{owner}.{name}" for owner in _CLASSES for name in now[owner] if name not in before[owner]]
