"""Has a rank's process been tampered with? A list of what every honest program leaves alone, before and after."""

import builtins
import math
import operator
import resource
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import ProcessGroup, distributed_c10d

from reference.trace.tap import Tap

_MODULES = {
    "torch": torch,
    "torch.distributed": dist,
    "torch.distributed.distributed_c10d": distributed_c10d,
    "builtins": builtins,
    "math": math,
    "sys": sys,
}
_CLASSES = {
    "torch.Tensor": torch.Tensor,
    "torch.distributed.ProcessGroup": ProcessGroup,
    "torch.distributed.P2POp": dist.P2POp,
    "torch.autograd.Function": torch.autograd.Function,
    "torch.nn.Module": nn.Module,
    "torch.nn.Linear": nn.Linear,
    "reference.trace.tap.Tap": Tap,
}
_HOUSE = Path(__file__).resolve().parents[2]
_OURS = [
    ".".join(file.relative_to(_HOUSE).with_suffix("").parts).removesuffix(".__init__")
    for package in ("reference/cluster", "reference/trace", "reference/collectives", "puzzles/grading")
    for file in (_HOUSE / package).rglob("*.py")
]  # by their files: a look at every module that is loaded would have a new rank copy a thousand pages

Names = dict[str, Mapping[str, Any]]


def snapshot() -> Names:
    """What modules and classes hold now: of torch.distributed, of tensors, and of the machinery around the learner."""
    return {owner: dict(names) for owner, names in _held().items()}


def changed(before: Names) -> list[str]:
    """Names that hold something else than in the snapshot, such as "torch.distributed.send".

    Of modules only what can be called counts, for they also hold state that changes in honest use, and get new names.
    A new name in a class counts, too: it hides what the class inherits.
    """
    now = _held()
    replaced = [
        f"{owner}.{name}"
        for owner, names in before.items()
        if not _same(names, held := now.get(owner, {}))
        for name, value in names.items()
        if held.get(name) is not value and (owner in _CLASSES or callable(value))
    ]
    return replaced + [f"{owner}.{name}" for owner in _CLASSES for name in now[owner] if name not in before[owner]]


def switches() -> dict[str, Any]:
    """How torch and the process are set: what a program may change for a while, and must put back."""
    return {
        "torch's stack of modes": torch._C._len_torch_function_stack(),
        "torch's grad mode": torch.is_grad_enabled(),
        "torch's inference mode": torch.is_inference_mode_enabled(),
        "torch's autocast": torch.is_autocast_enabled("cpu"),
        "torch's anomaly detection": torch.is_anomaly_enabled(),
        "torch's deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "torch's default dtype": torch.get_default_dtype(),
        "torch's precision of products": torch.get_float32_matmul_precision(),
        "Python's trace function": sys.gettrace(),
        "the limit of open files": resource.getrlimit(resource.RLIMIT_NOFILE),
    }


def _held() -> Names:
    """By owner, the names themselves: not a copy."""
    ours = {name: module for name in _OURS if (module := sys.modules.get(name))}
    return {owner: vars(each) for owner, each in (_MODULES | ours | _CLASSES).items()}


def _same(names: Mapping[str, Any], others: Mapping[str, Any]) -> bool:
    """True where each name holds the very same object."""
    return all(map(operator.is_, names.values(), map(others.get, names)))
