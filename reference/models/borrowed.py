"""Modules that a model uses and does not own: their parameters belong to something else."""

from typing import Any

from torch import Tensor, nn


class Borrowed:
    """A module that its user does not own: `nn.Module` does not find its parameters."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module

    def __call__(self, *inputs: Tensor) -> Tensor:
        """What the module makes of them."""
        return self._module(*inputs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what Python looks for to copy an object, which may not have its module yet
            raise AttributeError(name)
        return getattr(self._module, name)


def lend(model: nn.Module, own: nn.Module, borrowed: Borrowed) -> None:
    """Let a model use a borrowed module wherever it has one of its own, in place."""
    for holder in list(model.modules()):
        for name in [name for name, child in holder._modules.items() if child is own]:
            delattr(holder, name)
            setattr(holder, name, borrowed)
