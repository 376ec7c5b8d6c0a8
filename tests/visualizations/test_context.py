"""What is drawn of a mask is what ranks compute: each pair once, by the rank that holds its query."""

from dataclasses import replace

import pytest

from reference.choices import ContextLayout, ContextMethod
from reference.context_parallel import cost
from reference.context_parallel.layouts import layout
from reference.context_parallel.tokens import CAUSAL, Mask
from reference.errors import BadInput
from visualizations import context_mask, context_widget, context_work

from .reading import assert_readable, drawn

MASKS = [CAUSAL, Mask(causal=False), Mask(window=3), Mask(window=3, sinks=1)]


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("kind", ContextLayout)
@pytest.mark.parametrize("n", [1, 3, 4])
def test_every_pair_that_the_mask_allows_is_coloured_once(kind: ContextLayout, mask: Mask, n: int) -> None:
    """13 tokens, so that some rank has padding; in the step in which its key's rank is so far before its query's."""
    documents = (8, 5) if kind is ContextLayout.DOCUMENTS else None
    held = layout(kind, 13, n, documents=documents)
    owner = {place: rank for rank in range(n) for place in held.positions(rank).tolist()}
    found = {}
    for part in context_mask.parts(held, mask):
        for query, key in part.cells:
            assert (query, key) not in found
            found[query, key] = part.rank, part.step
    assert found == {
        (q, k): (owner[q], (owner[q] - owner[k]) % n)
        for q in range(13)
        for k in range(13)
        if (k <= q or not mask.causal)
        and (mask.window is None or q - k < mask.window or k - 8 * (k >= 8 and bool(documents)) < mask.sinks)
        and (not documents or (q < 8) == (k < 8))
    }


@pytest.mark.turns(3)
@pytest.mark.parametrize("kind", ContextLayout)
@pytest.mark.parametrize(("tokens", "n"), [(8, 2), (16, 4), (61, 8)])
def test_steps_can_be_read(monkeypatch: pytest.MonkeyPatch, kind: ContextLayout, tokens: int, n: int) -> None:
    held = layout(kind, tokens, n)
    assert_readable(context_mask.draw(held), monkeypatch)
    assert_readable(context_mask.draw_step(held, n - 1), monkeypatch)


def test_a_player_has_a_picture_of_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    film = context_mask.play(layout(ContextLayout.ZIGZAG, 16, 4))
    assert film.frames == 4 and film.caption(2) == "step 2 of 3"
    assert film.frame(1) == context_mask.draw_step(layout(ContextLayout.ZIGZAG, 16, 4), 1).png() != film.frame(2)


def test_boxes_of_tokens_carry_their_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    layouts = {str(kind): layout(kind, 8, 2) for kind in (ContextLayout.ZIGZAG, ContextLayout.STRIPED)}
    picture = context_mask.draw_tokens(layouts, title="two layouts")
    assert_readable(picture, monkeypatch)
    boxes = sorted((box.y0, box.x0, words) for words, _, box in drawn(picture, monkeypatch) if words.isdigit())
    assert "".join(words for _, _, words in boxes) == "01010101" + "00111100"  # from below


def test_lanes_are_as_long_as_the_slowest_rank_of_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    layouts = {str(kind): layout(kind, 64, 8) for kind in (ContextLayout.CONTIGUOUS, ContextLayout.ZIGZAG)}
    picture = context_work.draw(layouts)
    assert_readable(picture, monkeypatch)
    texts = [words for words, _, _ in drawn(picture, monkeypatch)]
    assert "contiguous: 484 pairs one after another, 54% busy" in texts
    assert "zigzag: 260 pairs one after another, 100% busy" in texts
    colours = [patch for patch in picture.axes[0].patches if patch.get_facecolor()[:3] != (217 / 255,) * 3]
    work = sum(cost.pairs(held, rank) for held in layouts.values() for rank in range(8))
    pitch = max(patch.get_width() for patch in colours) / 64  # the largest is a whole block
    assert sum(patch.get_width() for patch in colours) / pitch == pytest.approx(work)


def test_what_a_fair_share_is_stands_in_the_title() -> None:
    assert context_work.finding(layout(ContextLayout.CONTIGUOUS, 16, 4)).endswith("34 are a fair share: 59% busy")


REFUSED = {
    "no layout": (lambda: context_work.draw({}), "no layout to draw"),
    "no tokens": (lambda: context_mask.draw_tokens({}, title=""), "no layout to draw"),
    "too many tokens": (lambda: context_mask.draw(layout(ContextLayout.ZIGZAG, 65, 8)), "65 tokens are more than"),
    "heads": (lambda: context_widget.explore(heads=8, kv_heads=16), "16 heads of keys do not serve 8"),
    "ranks": (
        lambda: context_widget.explore(heads=8, ranks=16, method=ContextMethod.ULYSSES),
        "8 do not divide among 16",
    ),
}


@pytest.mark.parametrize("wrong", REFUSED)
def test_what_cannot_be_drawn_is_refused(wrong: str) -> None:
    draw, words = REFUSED[wrong]
    with pytest.raises(BadInput, match=words):
        draw()


@pytest.mark.turns(3)
@pytest.mark.parametrize("method", ContextMethod)
@pytest.mark.parametrize("ranks", [1, 8, 16])
def test_every_choice_can_be_read(monkeypatch: pytest.MonkeyPatch, method: ContextMethod, ranks: int) -> None:
    assert_readable(context_widget.Choice(ranks=ranks, method=method).draw(), monkeypatch)


def test_lines_of_memory_end_where_a_way_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 8 heads no rank of 16 gets any; of a single head of keys 8 ranks have a copy each."""
    choice = context_widget.Choice(ranks=8, heads=8, kv_heads=1, method=ContextMethod.ULYSSES)
    picture = choice.draw()
    assert_readable(picture, monkeypatch)
    lines = [line for line in picture.axes[2].lines if len(line.get_xdata()) > 1]
    assert [len(line.get_xdata()) for line in lines] == [4, 4]
    assert choice.kept(8) - 2 * cost.kept(choice.shape()) == 7 * 2 * choice.shape().block


def test_a_widget_says_what_the_formulas_say() -> None:
    choice = context_widget.Choice(sequence=8192, ranks=4, heads=32, kv_heads=8)
    assert choice.sent(ContextMethod.ALL_GATHER) == cost.sent(ContextMethod.ALL_GATHER, choice.shape()).bytes(2, 4)
    shape = choice.shape()
    inputs = 2 * (shape.out + shape.block)
    for method in ContextMethod:
        chosen = replace(choice, method=method)
        assert chosen.peak(4) == inputs + cost.peak(method, shape, 2, 4) > chosen.kept(4) == 2 * cost.kept(shape)
    assert context_widget.Choice(layout=ContextLayout.CONTIGUOUS).busy == pytest.approx(8 / 15, abs=0.01)
    assert context_widget.Choice(method=ContextMethod.ULYSSES, layout=ContextLayout.CONTIGUOUS).idle == ("layout",)
    assert context_widget.Choice(method=ContextMethod.USP, layout=ContextLayout.CONTIGUOUS).busy == pytest.approx(
        cost.ring_efficiency(layout(ContextLayout.CONTIGUOUS, 512, 4))
    )
