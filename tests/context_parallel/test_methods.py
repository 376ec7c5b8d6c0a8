"""Every way, layout and mask equals attention in one process, through its backward."""

import itertools
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from reference.choices import ContextLayout, ContextMethod
from reference.cluster import Cluster
from reference.collectives.default import over
from reference.context_parallel.layouts import Layout, layout
from reference.context_parallel.methods import context_attention
from reference.context_parallel.tokens import Mask
from reference.errors import BadInput
from reference.groups import Groups
from reference.mesh import Mesh

from .conftest import EXACT, normal, on
from .dense import dense, seen_by_each

BATCH, HEAD_DIM = 2, 4
MASKS = {
    "causal": Mask(),
    "full": Mask(causal=False),
    "window": Mask(window=5),
    "window and first tokens": Mask(window=4, sinks=2),
}


@dataclass(frozen=True)
class Case:
    """What is computed."""

    method: ContextMethod
    layout: ContextLayout
    mask: Mask
    sequence: int
    heads: int
    kv_heads: int
    sink: bool = False
    documents: tuple[int, ...] | None = None
    dtype: torch.dtype = torch.float64
    neighbours: int = 1  # of USP

    def numbers(self) -> tuple[list[Tensor], Tensor]:
        """Queries, keys, values and perhaps sinks; and the gradient of what comes out."""
        shapes = [(BATCH, heads, self.sequence, HEAD_DIM) for heads in (self.heads, self.kv_heads, self.kv_heads)]
        given = [normal(f"{name} {shape}", *shape) for name, shape in zip("qkv", shapes, strict=True)]
        return [*given, *([normal("sink", self.heads)] if self.sink else [])], normal("gradient", *shapes[0])


def in_one_process(case: Case) -> list[Tensor]:
    """The output, and the gradient of each input."""
    given, gradient = case.numbers()
    leaves = [x.requires_grad_() for x in given]
    out = dense(*leaves[:3], seen_by_each(case.sequence, case.mask, case.documents), *leaves[3:])
    return [out.detach(), *torch.autograd.grad(out, leaves, gradient)]


def on_a_rank(group: ProcessGroup, case: Case, groups: Groups) -> list[Tensor]:
    """The same of this rank's tokens."""
    held = layout(case.layout, case.sequence, group.size(), documents=case.documents)
    pair = [groups.communicator("ulysses"), groups.communicator("ring")] if case.method is ContextMethod.USP else []
    attention = context_attention(case.method, held, over(group), *pair)
    given, gradient = case.numbers()
    mine = [held.cut(x, group.rank(), dim=2).to(case.dtype).requires_grad_() for x in given[:3]]
    mine += [x.to(case.dtype).requires_grad_() for x in given[3:]]
    out = attention(*mine[:3], case.mask, *mine[3:])
    return [out.detach(), *torch.autograd.grad(out, mine, held.cut(gradient, group.rank(), dim=2).to(case.dtype))]


def all_cases(group: ProcessGroup, cases: list[Case], neighbours: int) -> list[list[Tensor]]:
    """Of each of them, what this rank has."""
    groups = Groups(group, Mesh({"ring": group.size() // neighbours, "ulysses": neighbours}))
    return [on_a_rank(group, case, groups) for case in cases]


def differences(ranks: Cluster, n: int, cases: list[Case], neighbours: int = 1) -> dict[Case, float]:
    """Of each case the largest difference to one process, relative to the largest element of each tensor, or to 1."""
    found = on(ranks, n, all_cases, cases, neighbours)
    return {case: difference(case, [of_rank[i] for of_rank in found]) for i, case in enumerate(cases)}


def difference(case: Case, parts: list[list[Tensor]]) -> float:
    """The largest of one case."""
    held: Layout = layout(case.layout, case.sequence, len(parts), documents=case.documents)
    whole = [held.join([part[i] for part in parts], dim=2) for i in range(4)]
    whole += [sum(part[4] for part in parts)] if case.sink else []
    pairs = zip(whole, in_one_process(case), strict=True)
    return float(
        torch.stack([(mine - right).abs().max() / right.abs().max().clamp(min=1) for mine, right in pairs]).max()
    )  # NaN, too


sizes = pytest.mark.parametrize("n", range(1, 9))


@pytest.mark.turns(3)
@sizes
@pytest.mark.parametrize("method", [ContextMethod.RING, ContextMethod.ALL_GATHER, ContextMethod.ULYSSES])
def test_every_layout_and_mask_equals_one_process(ranks: Cluster, method: ContextMethod, n: int) -> None:
    """Lengths that do not divide among them, and one so short that some ranks hold padding alone."""
    heads = n if method is ContextMethod.ULYSSES else 2
    cases = [
        Case(method, kind, mask, sequence, heads, heads)
        for kind, mask, sequence in itertools.product(ContextLayout, MASKS.values(), (2 * n, 37, max(1, n // 2)))
    ]
    assert all(far < EXACT for far in differences(ranks, n, cases).values())


@sizes
@pytest.mark.parametrize("method", [ContextMethod.RING, ContextMethod.ALL_GATHER, ContextMethod.ULYSSES])
def test_every_ratio_of_heads_equals_one_process(ranks: Cluster, method: ContextMethod, n: int) -> None:
    """Also fewer heads of keys than ranks, and numbers that do not divide: 6 ranks, 12 heads, 4 of keys."""
    heads = 12 if 12 % n == 0 or method is not ContextMethod.ULYSSES else 2 * n
    cases = [
        Case(method, ContextLayout.ZIGZAG, Mask(), 21, heads, shared)
        for shared in range(1, heads + 1)
        if heads % shared == 0
    ]
    assert all(far < EXACT for far in differences(ranks, n, cases).values())


@pytest.mark.turns(3)
@sizes
@pytest.mark.parametrize("method", [ContextMethod.RING, ContextMethod.ALL_GATHER, ContextMethod.ULYSSES])
def test_packed_documents_and_sinks_equal_one_process(ranks: Cluster, method: ContextMethod, n: int) -> None:
    heads = n if method is ContextMethod.ULYSSES else 4
    cases = [
        Case(method, kind, mask, 37, heads, 1, sink, (1, 16, 3, 17))
        for kind, mask, sink in itertools.product(ContextLayout, MASKS.values(), (False, True))
    ]
    assert all(far < EXACT for far in differences(ranks, n, cases).values())


@pytest.mark.turns(3)
@pytest.mark.parametrize(("n", "neighbours"), [(1, 1), (2, 2), (4, 2), (6, 3), (6, 2), (8, 2), (8, 4)])
def test_ulysses_inside_and_a_ring_across_equal_one_process(ranks: Cluster, n: int, neighbours: int) -> None:
    cases = [
        Case(ContextMethod.USP, kind, mask, sequence, 12, shared, sink, documents)
        for kind, mask, shared, sink in itertools.product(ContextLayout, MASKS.values(), (1, 4), (False, True))
        for sequence, documents in ((37, (1, 16, 3, 17)), (4 * n, None))
    ]
    assert all(far < EXACT for far in differences(ranks, n, cases, neighbours).values())


@pytest.mark.parametrize("method", [ContextMethod.RING, ContextMethod.ALL_GATHER, ContextMethod.ULYSSES])
def test_sixteen_bits_are_as_exact_on_many_ranks_as_on_one(ranks: Cluster, method: ContextMethod) -> None:
    """Within 2 units in the last place of bfloat16, of the largest element: rounding in and out, and no sum."""
    case = Case(method, ContextLayout.ZIGZAG, Mask(), 64, 8, 2)
    for n in (1, 2, 4, 8):
        rounded = replace(case, dtype=torch.bfloat16)
        (far,) = differences(ranks, n, [rounded]).values()
        assert 0 < far < 2 * torch.finfo(torch.bfloat16).eps


def told(group: ProcessGroup, method: ContextMethod) -> list[str]:
    """What a rank says of inputs that do not fit: its 4 tokens, and 8 heads among 2 ranks."""
    attention = context_attention(method, layout(ContextLayout.ZIGZAG, 8, group.size()), over(group))
    shapes = [((8, 4), (8, 3)), ((8, 4), (8, 5)), ((8, 5), (8, 5)), ((8, 4), (3, 4))]  # heads and tokens
    words = []
    for of_query, of_key in shapes:
        query, key = (torch.ones(1, *shape, HEAD_DIM) for shape in (of_query, of_key))
        with pytest.raises(BadInput) as refused:
            attention(query, key, key)
        words.append(str(refused.value))
    return words


@pytest.mark.parametrize("method", [ContextMethod.RING, ContextMethod.ALL_GATHER, ContextMethod.ULYSSES])
def test_other_tokens_and_heads_than_fit_are_refused(ranks: Cluster, method: ContextMethod) -> None:
    tokens = [f"this rank holds 4 tokens, and is given {given}" for given in (3, 5, 5)]
    assert on(ranks, 2, told, method) == [[*tokens, "3 heads of keys do not serve 8 of queries equally"]] * 2
