"""The picture of a collective shows what its ranks really held."""

import pytest
import torch
import torch.distributed as dist
from matplotlib.patches import FancyArrowPatch

from reference.cluster import RemoteException
from reference.collectives import all_gather, all_reduce, broadcast
from reference.trace import Op, Trace
from reference.trace.contents import Contents, Counts, counts, observe, tagged
from tests.trace import programs as p
from visualizations import collective

from .reading import assert_readable, drawn


def reduced(name: str, chunks: int):
    x = tagged(4 * chunks)
    return observe(lambda: getattr(all_reduce, name)(x, dist.group.WORLD), x, chunks)


def gathered(name: str, n: int):
    out = torch.zeros(4 * n, dtype=torch.int64)
    return observe(lambda: getattr(all_gather, name)(tagged(4), out, dist.group.WORLD), out, n)


def spread():
    x = tagged(4) if dist.get_rank() == 0 else torch.zeros(4, dtype=torch.int64)
    return observe(lambda: broadcast.tree(x, 0, dist.group.WORLD), x, 1)


def native():
    x = tagged(8)
    return observe(lambda: dist.all_reduce(x), x, 4)


def counted_twice():
    x = tagged(4)

    def run():
        all_reduce.ring(x, dist.group.WORLD)
        x.add_(tagged(4))

    return observe(run, x, 4)


def test_digits_are_counts():
    assert counts(0) == () and counts(1) == (1,) and counts(16**2 + 3) == (3, 0, 1)


def test_ring_gathers_one_more_contribution_in_each_step(clusters):
    contents, trace = clusters(4).trace(reduced, "ring", 4)
    steps = collective.steps(trace, contents)
    assert [step.number for step in steps] == list(range(7))
    for step in steps[:4]:
        assert max(sum(chunk) for held in step.held for chunk in held) == step.number + 1
    assert [sum(chunk == (1, 1, 1, 1) for chunk in held) for held in steps[3].held] == [1, 1, 1, 1]
    assert all(chunk == (1, 1, 1, 1) for held in steps[6].held for chunk in held)
    assert all({(a.src, a.dst) for a in step.arrows} == {(0, 1), (1, 2), (2, 3), (3, 0)} for step in steps[1:])


def test_all_gather_shows_whose_piece_is_where(clusters):
    contents, trace = clusters(4).trace(gathered, "ring", 4)
    last = collective.steps(trace, contents)[-1]
    assert all(held == ((1,), (0, 1), (0, 0, 1), (0, 0, 0, 1)) for held in last.held)


def test_tree_doubles_those_who_know(clusters):
    contents, trace = clusters(4).trace(spread)
    knowing = [sum(held == ((1,),) for held in step.held) for step in collective.steps(trace, contents)]
    assert knowing == [1, 2, 4]


def test_a_native_collective_is_before_and_after_and_named(clusters):
    contents, trace = clusters(4).trace(native)
    steps = collective.steps(trace, contents)
    assert len(steps) == 2 and steps[1].arrows == ()
    assert "counted as ring" in repr(collective.draw(trace, contents))


def test_what_was_added_twice_is_shown_as_an_error(clusters, monkeypatch):
    contents, trace = clusters(4).trace(counted_twice)
    texts = [words for words, _, _ in drawn(collective.draw(trace, contents), monkeypatch)]
    assert texts.count("2×0") == 4 and any("rank 0's, 2 times" in words for words in texts)


def test_arrows_go_from_the_sender_to_the_receiver(clusters):
    contents, trace = clusters(4).trace(reduced, "naive", 1)
    step = collective.steps(trace, contents)[-1]
    (axes,) = collective.draw(trace, contents, shown=[step.number]).axes
    rows = {int(text.get_text()[5:]): text.get_position()[1] for text in axes.texts if text.get_text()[:5] == "rank "}

    def row(y: float) -> int:
        return min(rows, key=lambda rank: abs(rows[rank] - y))

    paths = [patch._path_original.vertices for patch in axes.patches if isinstance(patch, FancyArrowPatch)]
    assert [(row(path[0, 1]), row(path[-1, 1])) for path in paths] == [(a.src, a.dst) for a in step.arrows] != []


def held_and_said(held: list[list[Counts | None]], sent: list[int]) -> tuple[Trace, list[Contents]]:
    """A run of one step in which ranks hold these at the end, and send so many elements of 4 bytes to the next."""

    def program(rank: p.Rank) -> None:
        sources = [r for r, numel in enumerate(sent) if numel and (r + 1) % len(held) == rank.rank]
        posts = [rank.post(Op.RECV, sent[r], r) for r in sources]
        if numel := sent[rank.rank]:
            posts.append(rank.post(Op.SEND, numel, (rank.rank + 1) % len(held)))
        rank.wait(*posts)

    return p.trace(len(held), program), [Contents((tuple(row), tuple(row))) for row in held]


def test_the_legend_is_never_cut_off(monkeypatch):
    every_kind = [(0, 1), (1, 1), (1,) * 10, (1,) * 12, (2,), None]
    trace, contents = held_and_said([every_kind] * 12, [1] * 12)
    picture = collective.draw(trace, contents)
    assert_readable(picture, monkeypatch)
    said = " ".join(words for words, _, _ in drawn(picture, monkeypatch))
    for words in ("1: rank 1's data", "Σ10: sum of 10 ranks'", "Σ: sum of everybody's", "~: pieces of several kinds"):
        assert words in said


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        ([0, 8, 0, 8, 8], "1 step; ranks 1, 3, 4 send 32 B each"),
        ([2, 8, 2, 8, 8], "1 step; ranks 1, 3, 4 send 32 B each, the others less"),
        ([2, 8, 2, 4, 4], "1 step; rank 1 sends most, 32 B"),
        ([8, 8, 8, 8, 8], "1 step; each rank sends 32 B"),
    ],
)
def test_the_title_says_who_sends_most(sent, words):
    trace, _ = held_and_said([[None]] * 5, sent)
    assert collective.finding(trace) == words


@pytest.mark.parametrize("name", ["naive", "ring", "recursive_doubling", "halving_doubling", "double_binary_tree"])
def test_every_picture_can_be_read(clusters, monkeypatch, name):
    assert_readable(collective.draw(*reversed(clusters(4).trace(reduced, name, 4))), monkeypatch)
    assert_readable(collective.draw(*reversed(clusters(4).trace(reduced, name, 1))), monkeypatch)


@pytest.mark.parametrize("n", [1, 2, 5, 8, 16])
def test_it_can_be_read_with_any_number_of_ranks(clusters, monkeypatch, n):
    contents, trace = clusters(n).trace(reduced, "ring", n)
    picture = collective.draw(trace, contents)
    assert_readable(picture, monkeypatch)
    assert picture.get_size_inches()[1] < 9
    if 1 < n < 8:
        assert_readable(collective.draw(trace, contents, shown=[0, 1]), monkeypatch)


def test_more_ranks_than_an_int64_has_digits_are_refused(clusters):
    with pytest.raises(RemoteException, match="room for the tags of 16 ranks, not of 17"):
        clusters(17).run(tagged, 4)
