"""What the meters of memory count: tensors that a function makes, while they live and after it has returned."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from puzzles.grading.meters import measured


def readings(function: Callable[..., Any], *calls: tuple[Any, ...]) -> dict[str, float]:
    """What the meters say when a function is called with each of these arguments."""
    found: dict[str, float] = {}
    metered = measured(function, ("peak", "kept"), found, __file__)
    for arguments in calls:
        metered(*arguments)
    return found


def test_what_is_gone_when_the_function_returns_is_not_kept() -> None:
    found = readings(lambda x: x.repeat(10).sum(), (torch.ones(6),))
    assert found == {"peak": 240 + 4, "kept": 4, "lines": 0}


def test_a_graph_keeps_what_its_backward_needs() -> None:
    def cubes(x: Tensor) -> Tensor:
        return (x * x) * x  # x * x is needed again in backward; the result is there because it is returned

    x = torch.ones(6, requires_grad=True)
    assert readings(cubes, (x,))["kept"] == 24 + 24
    assert readings(torch.no_grad()(cubes), (x,))["kept"] == 24


def test_what_an_operation_takes_before_any_has_made_it_comes_from_outside() -> None:
    model = nn.Linear(3, 5, bias=False)
    model.weight.grad = torch.zeros(5, 3)

    def update(model: nn.Module) -> None:
        model.weight.data.add_(model.weight.grad.view(-1).view(5, 3))

    assert readings(update, (model,))["peak"] == 0
    assert readings(lambda: update(model), ())["peak"] == 0


def test_what_is_made_of_python_numbers_is_made_inside() -> None:
    assert readings(lambda: torch.tensor([1.0, 2.0, 3.0]).view(3, 1), ())["kept"] == 12


def test_gradients_that_backward_makes_are_counted() -> None:
    model, x = nn.Linear(3, 5, bias=False), torch.ones(2, 3)
    found = readings(lambda model, x: model(x).sum().backward(), (model, x))
    assert found["kept"] == 5 * 3 * 4
    assert found["peak"] > found["kept"]


def test_a_result_that_makes_its_storage_grow_is_counted() -> None:
    def stacked(x: Tensor, out: Tensor | None = None) -> Tensor:
        out = torch.empty(0) if out is None else out
        torch.stack([x] * 100, out=out.resize_(0))
        return out

    assert readings(stacked, (torch.ones(6),)) == {"peak": 2400, "kept": 2400, "lines": 0}
    assert readings(stacked, (torch.ones(6), torch.empty(50)))["kept"] == 2400 - 200  # those it had before


@pytest.mark.parametrize("sizes", [(1, 7, 2), (7, 1, 2)])
def test_of_several_calls_the_worst_counts(sizes: tuple[int, ...]) -> None:
    def double(x: Tensor) -> Tensor:
        return x * 2

    assert readings(double, *((torch.ones(size),) for size in sizes))["kept"] == 28


def test_what_is_put_aside_for_the_next_call_is_kept() -> None:
    shelf: list[Tensor] = []

    def put_aside(x: Tensor) -> None:
        if not shelf:
            shelf.append(torch.zeros_like(x))
        shelf[0].add_(x)

    assert readings(put_aside, (torch.ones(6),), (torch.ones(6),))["kept"] == 24
