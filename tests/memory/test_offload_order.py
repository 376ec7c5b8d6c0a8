"""Of an offloaded optimizer: the next parameter is sent before this one is updated, so that copies hide behind it."""

import pytest
import torch
from torch import nn

from reference.memory.offload import HostMemory, OffloadedOptimizer


class Watched(OffloadedOptimizer):
    """Writes down when a parameter is sent for, waited for, and updated."""

    def _start_copy_to_host(self, parameter):
        self.seen.append(("sent for", self.number(parameter)))
        on_host = super()._start_copy_to_host(parameter)
        return on_host._replace(wait=lambda: self.seen.append(("waited for", self.number(parameter))))

    def _update(self, parameter, group, on_host):
        super()._update(parameter, group, on_host)
        self.seen.append(("updated", self.number(parameter)))

    def number(self, parameter) -> int:
        every = [p for group in self.param_groups for p in group["params"]]
        return next(number for number, p in enumerate(every) if p is parameter)


def a_step(gradients: list[bool]) -> list[tuple[str, int]]:
    """One step of parameters of which these have gradients, in two groups."""
    parameters = [nn.Parameter(torch.ones(3)) for _ in gradients]
    groups = [{"params": parameters[:1]}, {"params": parameters[1:]}]
    optimizer = Watched(torch.optim.AdamW, groups, HostMemory(), lr=0.1)
    optimizer.seen = []
    for parameter, has_one in zip(parameters, gradients, strict=True):
        parameter.grad = torch.ones(3) if has_one else None
    optimizer.step()
    return optimizer.seen


def test_the_next_one_sets_out_first() -> None:
    assert a_step([True, True, False, True]) == [
        ("sent for", 0),
        ("sent for", 1),
        ("waited for", 0),
        ("updated", 0),
        ("sent for", 3),
        ("waited for", 1),
        ("updated", 1),
        ("waited for", 3),
        ("updated", 3),
    ]


@pytest.mark.parametrize("gradients", [[False, False], [True, False], [False, True]])
def test_few_gradients_or_none(gradients: list[bool]) -> None:
    updated = [number for what, number in a_step(gradients) if what == "updated"]
    assert updated == [number for number, has_one in enumerate(gradients) if has_one]
