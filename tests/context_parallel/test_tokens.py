"""Pieces are the mask: each pair of tokens that see each other is in exactly one, and no other pair is."""

import itertools

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from reference.choices import ContextLayout
from reference.context_parallel.layouts import Layout, layout
from reference.context_parallel.tokens import AttentionPiece, Mask, in_order, length, pieces, positions, work
from reference.errors import BadInput

masks = st.builds(
    lambda window, sinks: Mask(window=window, sinks=sinks if window else 0),
    st.none() | st.integers(1, 9),
    st.integers(0, 4),
)


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    sequence, ranks = draw(st.integers(1, 40)), draw(st.integers(1, 6))
    borders = sorted(draw(st.sets(st.integers(1, sequence - 1), max_size=4))) if sequence > 1 else []
    documents = [end - begin for begin, end in itertools.pairwise([0, *borders, sequence])]
    return layout(draw(st.sampled_from(ContextLayout)), sequence, ranks, draw(st.integers(1, 3)), documents)


def covered(queries: int, keys: int, found: tuple[AttentionPiece, ...]) -> torch.Tensor:
    """How often each pair is computed."""
    times = torch.zeros(queries, keys, dtype=torch.int64)
    for piece in found:
        times[slice(*piece.queries), slice(*piece.keys)] += piece.mask()
    return times


@given(layouts(), st.just(Mask(causal=False)) | masks)
@example(layout(ContextLayout.STRIPED, 4, 3), Mask(causal=True, window=2))  # narrower than the stride
def test_pieces_are_the_mask(of: Layout, mask: Mask) -> None:
    for queries, keys in itertools.product(of.tokens, repeat=2):
        found = pieces(queries, keys, mask)
        assert torch.equal(covered(of.local, of.local, found), mask.allows(queries, keys).long())
        assert work(queries, keys, mask) == int(mask.allows(queries, keys).sum())
        assert all(piece.mask().any() for piece in found), "an empty piece costs a kernel"


@given(layouts(), masks)
def test_tokens_in_order_see_the_same(of: Layout, mask: Mask) -> None:
    together = sum(of.tokens, ())
    ordered, there, back = in_order(together)
    assert torch.equal(mask.allows(ordered, ordered), mask.allows(together, together)[there][:, there])
    assert torch.equal(there[back], torch.arange(length(together)))


@given(layouts())
def test_each_token_is_on_one_rank(of: Layout) -> None:
    held = torch.cat([positions(tokens) for tokens in of.tokens])
    assert held.sort().values.unique().numel() == held.numel()
    assert set(range(of.sequence)) <= set(held.tolist())
    assert {length(tokens) for tokens in of.tokens} == {of.local}


@given(layouts())
def test_what_is_cut_can_be_joined(of: Layout) -> None:
    x = torch.randn(2, of.sequence, 3)
    assert torch.equal(of.join([of.cut(x, rank) for rank in range(of.ranks)]), x)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (ContextLayout.CONTIGUOUS, [[0, 1, 2, 3], [4, 5, 6, 7]]),
        (ContextLayout.ZIGZAG, [[0, 1, 6, 7], [2, 3, 4, 5]]),
        (ContextLayout.STRIPED, [[0, 2, 4, 6], [1, 3, 5, 7]]),
    ],
)
def test_eight_tokens_on_two_ranks(kind: ContextLayout, expected: list[list[int]]) -> None:
    of = layout(kind, 8, 2)
    assert [of.positions(rank).tolist() for rank in range(2)] == expected


def test_a_step_takes_as_few_pieces_as_can_be() -> None:
    for kind, most in ((ContextLayout.CONTIGUOUS, 1), (ContextLayout.ZIGZAG, 1), (ContextLayout.STRIPED, 1)):
        of = layout(kind, 64, 4)
        assert max(len(pieces(q, k, Mask())) for q, k in itertools.product(of.tokens, repeat=2)) == most


@given(st.integers(1, 8), st.integers(1, 12))
def test_zigzag_gives_all_the_same_work(ranks: int, chunk: int) -> None:
    of = layout(ContextLayout.ZIGZAG, 2 * ranks * chunk, ranks)
    assert len({sum(work(tokens, keys, Mask()) for keys in of.tokens) for tokens in of.tokens}) == 1


@pytest.mark.parametrize(
    "make",
    [
        lambda: Mask(causal=False, window=3),
        lambda: Mask(window=0),
        lambda: Mask(sinks=2),
        lambda: layout(ContextLayout.ZIGZAG, 0, 2),
        lambda: layout(ContextLayout.ZIGZAG, 8, 0),
        lambda: layout(ContextLayout.ZIGZAG, 8, 2, documents=[4, 3]),
        lambda: layout(ContextLayout.ZIGZAG, 8, 2, documents=[8, 0]),
        lambda: layout(ContextLayout.ZIGZAG, 8, 2).cut(torch.zeros(1, 9), 0),
    ],
)
def test_what_makes_no_sense_is_refused(make: object) -> None:
    with pytest.raises(BadInput):
        make()


def test_what_is_too_small_is_named() -> None:
    with pytest.raises(BadInput, match="multiple must be at least 1, not 0"):
        layout(ContextLayout.ZIGZAG, 8, 2, multiple=0)
