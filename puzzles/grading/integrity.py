"""Has a rank's process been tampered with? A list of what every honest program leaves alone, before and after."""

import builtins
import math
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup, distributed_c10d

_GUARDED_PACKAGES = ("reference.cluster", "reference.trace", "reference.collectives", "puzzles.grading")


def _namespaces() -> dict[str, dict[str, Any]]:
    fixed: dict[str, Any] = {
        "torch": torch,
        "torch.distributed": dist,
        "torch.distributed.distributed_c10d": distributed_c10d,
        "torch.Tensor": torch.Tensor,
        "torch.distributed.ProcessGroup": ProcessGroup,
        "torch.distributed.P2POp": dist.P2POp,
        "builtins": builtins,
        "math": math,
    }
    ours = {name: module for name, module in sys.modules.items() if name.startswith(_GUARDED_PACKAGES)}
    return {name: vars(owner) for name, owner in (fixed | ours).items()}


def snapshot() -> dict[str, dict[str, Any]]:
    """Every function and class of torch.distributed, of tensors and of the machinery around the learner's code.

    Only callables: modules also hold state that changes in honest use.
    """
    return {
        owner: {name: value for name, value in names.items() if callable(value)}
        for owner, names in _namespaces().items()
    }


def changed(before: dict[str, dict[str, Any]]) -> list[str]:
    """Names that hold something else than in the snapshot, such as "torch.distributed.send"."""
    now = _namespaces()
    return [
        f"{owner}.{name}"
        for owner, names in before.items()
        for name, value in names.items()
        if now[owner].get(name) is not value
    ]
