"""Traces and the gauge count what `reference.context_parallel.cost` says, to the byte."""

from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from reference.choices import ContextLayout, ContextMethod
from reference.cluster import Cluster
from reference.collectives.communicator import ByHand, Native
from reference.context_parallel import cost
from reference.context_parallel.cost import AttentionShape
from reference.context_parallel.layouts import layout
from reference.context_parallel.methods import context_attention
from reference.context_parallel.tokens import CAUSAL, Mask
from reference.groups import Groups
from reference.memory.lab.gauge import Gauge
from reference.memory.saved import saved_tensors, total
from reference.mesh import Mesh

from ..data_parallel.conftest import in_group, members
from ..data_parallel.traffic import cut
from .conftest import normal, on

SHAPE = AttentionShape(batch=2, heads=24, kv_heads=8, local=6, head_dim=4, ranks=1)
DOUBLE, SINGLE, HALF = 8, 4, 2  # bytes


def passes(group: ProcessGroup, shape: AttentionShape, dtype: torch.dtype) -> None:
    """Forward and backward of each method, with a barrier behind each."""
    for method in ContextMethod:
        groups = Groups(group, Mesh({"ring": shape.ranks // shape.neighbours, "ulysses": shape.neighbours}), Native)
        held = layout(ContextLayout.ZIGZAG, shape.local * shape.ranks, shape.ranks)
        pair = [groups.communicator("ulysses"), groups.communicator("ring")] if method is ContextMethod.USP else []
        attention = context_attention(method, held, Native(group), *pair)
        attention(*(x.requires_grad_() for x in inputs(shape, dtype))).sum().backward()
        dist.barrier(group)


def inputs(shape: AttentionShape, dtype: torch.dtype) -> list[torch.Tensor]:
    """Queries, keys and values of a rank."""
    heads = (shape.heads, shape.kv_heads, shape.kv_heads)
    return [
        normal(name, shape.batch, h, shape.local, shape.head_dim).to(dtype)
        for name, h in zip("qkv", heads, strict=True)
    ]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize(("n", "neighbours"), [(1, 1), (2, 2), (3, 3), (4, 2), (6, 3), (8, 2)])
def test_each_method_sends_what_the_formula_says(ranks: Cluster, n: int, neighbours: int, dtype: torch.dtype) -> None:
    """Eight heads of keys: on 3 and 6 ranks some are copied."""
    shape = replace(SHAPE, ranks=n, neighbours=neighbours)
    _, trace = ranks.trace(in_group, n, passes, shape, dtype)
    sizes = (HALF, SINGLE) if dtype is torch.bfloat16 else (DOUBLE, DOUBLE)
    for method, part in zip(ContextMethod, cut(trace), strict=True):
        assert not any(part.unmatched)
        assert {part.bytes_sent[rank] for rank in members(n)} == {cost.sent(method, shape).bytes(*sizes)}, method


def peaks_of_forward(group: ProcessGroup, shape: AttentionShape, dtype: torch.dtype) -> list[int]:
    """Bytes at the peak of a forward pass of each method."""
    groups = Groups(group, Mesh({"ring": shape.ranks // shape.neighbours, "ulysses": shape.neighbours}), ByHand)
    held = layout(ContextLayout.CONTIGUOUS, shape.local * shape.ranks, shape.ranks)
    given, peaks = [x.requires_grad_() for x in inputs(shape, dtype)], []
    for method in ContextMethod:
        pair = [groups.communicator("ulysses"), groups.communicator("ring")] if method is ContextMethod.USP else []
        attention = context_attention(method, held, ByHand(group), *pair)  # gloo's own threads hold tensors longer
        attention(*given, Mask(causal=False))  # which also finds the order of tokens, once
        with Gauge({}) as gauge:
            attention(*given, Mask(causal=False))
        peaks.append(gauge.history.peak)
    return peaks


@pytest.mark.turns(5)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("ratio", [1, 3, 24])
@pytest.mark.parametrize(
    ("n", "neighbours"),
    [(1, 1), (2, 1), (2, 2), (3, 3), (4, 2), (5, 5), (6, 2), (6, 3), (7, 7), (8, 2), (8, 4)],
)
def test_the_peak_of_forward_is_that_of_the_formula(
    ranks: Cluster, n: int, neighbours: int, ratio: int, dtype: torch.dtype
) -> None:
    """24 heads, or 120 and 168 that 5 and 7 divide; keys have as many, a third, or so few that most are copied."""
    heads = 24 if 24 % n == 0 else 24 * n
    shape = replace(SHAPE, heads=heads, kv_heads=heads // ratio, ranks=n, neighbours=neighbours)
    sizes = (HALF, SINGLE) if dtype is torch.bfloat16 else (DOUBLE, DOUBLE)
    expected = [cost.peak(method, shape, *sizes) for method in ContextMethod]
    assert on(ranks, n, peaks_of_forward, shape, dtype) == [expected] * n


def kept_for_backward(group: ProcessGroup, shape: AttentionShape) -> list[int]:
    """Bytes of numbers that autograd saves in each method; which tokens stand where is saved as integers besides."""
    groups = Groups(group, Mesh({"ring": shape.ranks // shape.neighbours, "ulysses": shape.neighbours}), ByHand)
    held = layout(ContextLayout.CONTIGUOUS, shape.local * shape.ranks, shape.ranks)
    given, sizes = [x.requires_grad_() for x in inputs(shape, torch.float64)], []
    for method in ContextMethod:
        pair = [groups.communicator("ulysses"), groups.communicator("ring")] if method is ContextMethod.USP else []
        saved = saved_tensors(partial(context_attention(method, held, ByHand(group), *pair), *given))
        sizes.append(total(each for each in saved if "int" not in each.tensor))
    return sizes


@pytest.mark.parametrize("kv_heads", [1, 8, 24])
@pytest.mark.parametrize(("n", "neighbours"), [(1, 1), (2, 2), (4, 2), (6, 3)])
def test_what_waits_for_backward_is_as_much_as_the_formula_says(
    ranks: Cluster, n: int, neighbours: int, kv_heads: int
) -> None:
    shape = replace(SHAPE, kv_heads=kv_heads, ranks=n, neighbours=neighbours)
    expected = [DOUBLE * cost.kept(shape, method) for method in ContextMethod]
    assert on(ranks, n, kept_for_backward, shape) == [expected] * n


def test_a_ring_holds_no_more_on_more_ranks_and_an_all_gather_does() -> None:
    eight, sixteen = (replace(SHAPE, ranks=n, neighbours=2) for n in (8, 16))
    for method in (ContextMethod.RING, ContextMethod.USP):
        assert cost.peak(method, eight, DOUBLE) == cost.peak(method, sixteen, DOUBLE)
    assert cost.peak(ContextMethod.ALL_GATHER, eight, DOUBLE) < cost.peak(ContextMethod.ALL_GATHER, sixteen, DOUBLE)


@pytest.mark.parametrize(("heads", "kv_heads", "fewest"), [(8, 8, 3), (64, 8, 10), (32, 32, 3)])
def test_ulysses_sends_less_from_so_many_ranks_on(heads: int, kv_heads: int, fewest: int) -> None:
    """More than 1 + H / K; at exactly as many both send the same."""

    def forward(method: ContextMethod, n: int) -> float:
        shape = AttentionShape(1, heads * 5040, kv_heads * 5040, 5040 // n, 1, n)  # so that all n divide
        return cost.sent(method, shape).forward

    less = [n for n in range(2, 11) if forward(ContextMethod.ULYSSES, n) < forward(ContextMethod.RING, n)]
    assert less[0] == fewest
    assert less == list(range(fewest, 11))


def test_contiguous_work_and_zigzag() -> None:
    """Of eight ranks: by whole blocks 9/16, which one token a rank gives; a long window costs half of a diagonal."""
    assert cost.ring_efficiency(layout(ContextLayout.CONTIGUOUS, 8, 8)) == 9 / 16
    assert cost.ring_efficiency(layout(ContextLayout.CONTIGUOUS, 8 * 1024, 8)) == pytest.approx(8 / 15, rel=1e-3)
    assert cost.efficiency(layout(ContextLayout.ZIGZAG, 8 * 1024, 8)) == 1
    assert cost.ring_efficiency(layout(ContextLayout.ZIGZAG, 8 * 1024, 8)) == pytest.approx(1, rel=1e-3)
    assert 0.99 < cost.ring_efficiency(layout(ContextLayout.STRIPED, 8 * 1024, 8)) < 1


@pytest.mark.parametrize("mask", [CAUSAL, Mask(causal=False), Mask(window=7), Mask(window=3, sinks=2)])
@pytest.mark.parametrize("kind", ContextLayout)
def test_work_is_the_pairs_of_the_mask(kind: ContextLayout, mask: Mask) -> None:
    held = layout(kind, 61, 5)
    for rank, tokens in enumerate(held.tokens):
        seen = sum(int(mask.allows(tokens, keys).sum()) for keys in held.tokens)
        assert cost.pairs(held, rank, mask) == seen


def test_a_ring_hides_from_so_many_tokens_on() -> None:
    """Where a block takes as long to compute as to travel, and not one token earlier."""
    shape, flops, beta = AttentionShape(1, 64, 8, 1, 128, 8), 400e12, 50e9
    tokens = cost.hidden_from(shape, flops, beta)

    def hides(local: int) -> bool:
        block = replace(shape, local=local)
        return 2 * block.heads * local**2 * block.head_dim / flops >= block.block * 2 / beta

    assert hides(tokens) and not hides(tokens - 1)


LINK = (400e12, 5e-6, 50e9)  # operations a second, seconds of a message, bytes a second


def test_a_ring_that_hides_costs_its_compute_alone() -> None:
    long = AttentionShape(1, 64, 8, 65536, 128, 8)
    compute = 8 * 2 * 64 * 65536**2 * 128 / LINK[0]
    assert cost.seconds(ContextMethod.RING, long, *LINK) == pytest.approx(compute)
    short = replace(long, local=128)
    message = LINK[1] + short.block * 2 / LINK[2]
    block = 2 * 64 * 128**2 * 128 / LINK[0]
    assert cost.seconds(ContextMethod.RING, short, *LINK) == pytest.approx(block + 7 * message)


def test_ulysses_of_one_rank_and_usp_of_one_family_are_the_others() -> None:
    shape = AttentionShape(1, 64, 8, 4096, 128, 8, neighbours=8)
    usp, ulysses = (cost.seconds(method, shape, *LINK) for method in (ContextMethod.USP, ContextMethod.ULYSSES))
    assert usp == ulysses
    apart = replace(shape, neighbours=1)
    assert cost.seconds(ContextMethod.USP, apart, *LINK) == cost.seconds(ContextMethod.RING, apart, *LINK)


def test_which_method_is_best_depends_on_length() -> None:
    """With a head of keys for each of queries, Ulysses sends less; from some length on a ring hides all of it."""
    short, long = (AttentionShape(1, 64, 64, local, 128, 8, neighbours=2) for local in (256, 65536))
    assert cost.best_method(short, *LINK)[0] is ContextMethod.ULYSSES
    assert cost.best_method(long, *LINK)[0] is ContextMethod.RING
    assert cost.best_method(replace(short, heads=60, kv_heads=60), *LINK)[0] is not ContextMethod.ULYSSES
