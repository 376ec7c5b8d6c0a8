"""What a rank reads, and the engine of a rank that has all layers."""

from contextlib import AbstractContextManager

import pytest
import torch
from torch import Tensor, nn

from reference.engine import Batch, OneStage
from reference.errors import BadInput


def read(drops: bool) -> Batch:
    """Two windows of six tokens."""
    tokens, targets, drawn = torch.arange(36).view(3, 2, 6)
    return Batch.of(tokens, targets, drawn if drops else None)


@pytest.mark.parametrize("drops", [False, True])
@pytest.mark.parametrize("parts", [1, 2, 3, 6])
def test_slices_of_a_batch_are_the_batch(drops: bool, parts: int) -> None:
    """Tokens, targets and seeds side by side again, each where its position says."""
    batch = read(drops)
    slices = [batch.slice(part, parts) for part in range(parts)]
    for name, whole in vars(batch).items():
        found = [getattr(one, name) for one in slices]
        assert found == [None] * parts if whole is None else torch.equal(torch.cat(found, dim=-1), whole)
    assert [int(one.positions[0]) for one in slices] == [part * 6 // parts for part in range(parts)]


def test_a_window_that_does_not_divide_is_refused() -> None:
    with pytest.raises(BadInput, match="windows of 6 tokens do not divide into 4 slices"):
        read(drops=False).slice(0, 4)


class Counting:
    """A form of data parallelism that notes which micro-batch was the last."""

    def __init__(self) -> None:
        self.last: list[bool] = []

    def micro_batch(self, last: bool) -> AbstractContextManager:
        self.last.append(last)
        return torch.enable_grad()


def test_one_stage_adds_up_gradients_of_its_micro_batches() -> None:
    model, form = nn.Linear(3, 1, bias=False), Counting()
    x = torch.randn(4, 2, 3)

    def loss(y: Tensor, k: int) -> Tensor:
        return (k + 1) * y.sum()

    total = OneStage(model, form, 4).step(lambda k: (x[k],), loss)
    weights = torch.arange(1.0, 5.0)
    assert form.last == [False, False, False, True]
    assert torch.allclose(model.weight.grad, torch.einsum("k,kbd->d", weights, x)[None])
    assert torch.allclose(total, (weights * (x @ model.weight[0]).sum(1)).sum()) and not total.requires_grad
