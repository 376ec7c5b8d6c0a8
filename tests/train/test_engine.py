"""What a rank reads, and the engine of a rank that has all layers."""

from contextlib import AbstractContextManager

import pytest
import torch
from torch import Tensor, nn

from reference.choices import ContextLayout
from reference.context_parallel.layouts import layout
from reference.engine import Batch, OneStage
from reference.models.objective import IGNORED


def read(drops: bool) -> Batch:
    """Two windows of six tokens."""
    tokens, targets, drawn = torch.arange(36).view(3, 2, 6)
    return Batch.of(tokens, targets, drawn if drops else None)


@pytest.mark.parametrize("drops", [False, True])
@pytest.mark.parametrize("ranks", [1, 2, 3, 6])
@pytest.mark.parametrize("kind", ContextLayout)
def test_what_ranks_hold_of_a_batch_is_the_batch(kind: ContextLayout, drops: bool, ranks: int) -> None:
    """Tokens, targets and seeds together again, each where its position says."""
    batch, shared_out = read(drops), layout(kind, 6, ranks)
    held = [batch.of_rank(shared_out, rank) for rank in range(ranks)]
    order = torch.cat([one.positions for one in held]).argsort()
    for name, whole in vars(batch).items():
        found = [getattr(one, name) for one in held]
        assert found == [None] * ranks if whole is None else torch.equal(torch.cat(found, -1)[..., order], whole)


def test_padding_does_not_count_and_stands_nowhere() -> None:
    held = read(drops=True).of_rank(layout(ContextLayout.CONTIGUOUS, 6, 4), 0)
    assert held.targets[0].tolist() == [12, IGNORED] and held.positions.tolist() == [0, -1]


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
