"""The plain ring, from sends and receives, equals attention in one process, through its backward."""

import pytest
import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from reference.choices import ContextLayout
from reference.cluster import Cluster
from reference.context_parallel import CAUSAL, layout, plain

from .conftest import EXACT, normal, on
from .dense import dense, seen_by_each

BATCH, HEADS, KV, D = 2, 4, 2, 3


def numbers(tokens: int) -> list[Tensor]:
    """Queries, keys, values, and the gradient of what comes out."""
    heads = {"q": HEADS, "k": KV, "v": KV, "gradient": HEADS}
    return [normal(name, BATCH, count, tokens, D) for name, count in heads.items()]


def on_a_rank(group: ProcessGroup, kind: ContextLayout, tokens: int) -> list[Tensor]:
    held = layout(kind, tokens, group.size())
    query, key, value, gradient = (held.cut(x, group.rank(), dim=2) for x in numbers(tokens))

    def masks(one: int, other: int) -> Tensor:
        return CAUSAL.allows(held.tokens[one], held.tokens[other])

    out, lse = plain.ring_forward(query, key, value, masks, group)
    return [out, *plain.ring_backward(gradient, query, key, value, out, lse, masks, group)]


@pytest.mark.parametrize("kind", ContextLayout)
@pytest.mark.parametrize("n", range(1, 9))
def test_a_ring_equals_one_process(ranks: Cluster, n: int, kind: ContextLayout) -> None:
    """Also where the last ranks hold padding, which sees nothing and is seen by none."""
    tokens = 2 * n + 3
    *given, gradient = numbers(tokens)
    leaves = [x.requires_grad_() for x in given]
    out = dense(*leaves, seen_by_each(tokens, CAUSAL))
    expected = [out.detach(), *torch.autograd.grad(out, leaves, gradient)]
    parts, held = on(ranks, n, on_a_rank, kind, tokens), layout(kind, tokens, n)
    for right, *found in zip(expected, *parts, strict=True):
        assert float((held.join(found, dim=2) - right).abs().max()) < EXACT * float(right.abs().max())
