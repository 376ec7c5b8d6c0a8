"""What is written out plainly to learn by is the same as what trains: f and g, and the bytes of a layer."""

from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributed import ProcessGroup

from reference.cluster import Cluster
from reference.collectives import differentiable
from reference.errors import BadInput
from reference.tensor_parallel import cost
from reference.tensor_parallel.answers.heads import attention
from reference.tensor_parallel.answers.layer_bytes import layer_bytes
from reference.tensor_parallel.plain import enter, leave, mlp, operators

from ..data_parallel.conftest import in_group, members

RANKS = (1, 2, 3, 4, 6, 8)
B, S, D = 2, 3, 24
DOUBLE = 8  # bytes


class Passage(NamedTuple):
    """What came through an operator, there and back."""

    y: Tensor
    gradient: Tensor


def passages(group: ProcessGroup) -> list[Passage]:
    """Through f, g, and the same two of the table of all pairs."""
    f, g = operators(group)
    table = (lambda x: differentiable.copy(x, group), lambda x: differentiable.all_reduce(x, group))
    found = []
    for operator in (f, g, *table):
        x = torch.arange(5, dtype=torch.float64) + 10 * group.rank()
        y = operator(x.requires_grad_())
        (y * (torch.arange(5) - group.rank())).sum().backward()
        found.append(Passage(y.detach(), x.grad))
    return found


@pytest.mark.parametrize("n", RANKS)
def test_f_and_g_are_copy_and_all_reduce(ranks: Cluster, n: int) -> None:
    found = ranks.run(in_group, n, passages)
    for rank in members(n):
        f, g, copy, all_reduce = found[rank]
        assert all(map(torch.equal, f, copy))
        assert all(map(torch.equal, g, all_reduce))


def one_layer(group: ProcessGroup) -> None:
    """Attention of 24 heads and an MLP, forward and backward."""
    n = group.size()
    x = torch.ones(B, S, D, dtype=torch.float64, requires_grad=True)
    into, out = torch.ones(D // n, D, dtype=torch.float64), torch.ones(D, D // n, dtype=torch.float64)
    y = x + attention(x, into, into, into, out, heads=24, group=group)
    mlp(y, into, into, out, group).sum().backward()


@pytest.mark.parametrize("n", RANKS)
def test_a_layer_sends_what_the_formula_says(ranks: Cluster, n: int) -> None:
    _, trace = ranks.trace(in_group, n, one_layer)
    assert {trace.bytes_sent[rank] for rank in members(n)} == {layer_bytes(B, S, D, n, DOUBLE, side_by_side=False)}


def heads_cut_through(group: ProcessGroup) -> str:
    """What is said of three heads on two ranks, each of which brings one and a half."""
    x, weight = torch.ones(B, S, 6), torch.ones(3, 6)
    with pytest.raises(BadInput) as error:
        attention(x, weight, weight, weight, weight.T, heads=3, group=group)
    return str(error.value)


def test_heads_are_shared_out_whole(ranks: Cluster) -> None:
    found = ranks.run(in_group, 2, heads_cut_through)
    assert {found[rank] for rank in members(2)} == {"3 heads do not divide among 2 ranks; a multiple of 2 would do"}


@pytest.mark.parametrize("n", RANKS)
def test_the_formula_is_the_cost_of_a_block(n: int) -> None:
    elements = cost.block().elements_sent(B * S * D, n, sequence_parallel=False)
    assert layer_bytes(B, S, D, n, DOUBLE, side_by_side=False) == elements * DOUBLE


def one_layer_side_by_side(group: ProcessGroup) -> None:
    """Attention of 24 heads and an MLP that read the same and add to the same: one f before, one g after."""
    n = group.size()
    x = torch.ones(B, S, D, dtype=torch.float64, requires_grad=True)
    into, out = torch.ones(D // n, D, dtype=torch.float64), torch.ones(D, D // n, dtype=torch.float64)
    made = enter(x, group) @ into.T
    heads = made.unflatten(-1, (24 // n, -1)).transpose(1, 2)
    mixed = F.scaled_dot_product_attention(heads, heads, heads, is_causal=True).transpose(1, 2).flatten(2)
    (x + leave(mixed @ out.T + (F.silu(made) * made) @ out.T, group)).sum().backward()


@pytest.mark.parametrize("n", RANKS)
def test_side_by_side_half_of_the_sums_are_left(ranks: Cluster, n: int) -> None:
    _, trace = ranks.trace(in_group, n, one_layer_side_by_side)
    sent = layer_bytes(B, S, D, n, DOUBLE, side_by_side=True)
    assert {trace.bytes_sent[rank] for rank in members(n)} == {sent}
    assert 2 * sent == layer_bytes(B, S, D, n, DOUBLE, side_by_side=False)
