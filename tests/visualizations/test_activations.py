"""Bars are the sums of the paper's terms, and say which of them are divided."""

from fractions import Fraction

import pytest

from reference.memory.korthikanti import TERMS, LayerShape, LayerSplit
from visualizations.activations import FORMULAS, Place, Variant, bytes_of, draw, draw_terms, on, place_of, stacked

from .reading import assert_readable, drawn

GPT3 = LayerShape(2048, 1, 12288, 96, 8)
RANKS = (1, 2, 4, 8)


@pytest.mark.parametrize("variant", Variant)
@pytest.mark.parametrize("t", RANKS)
def test_terms_add_up_to_the_formula(variant: Variant, t: int) -> None:
    layer = on(GPT3, t)
    assert sum((bytes_of(term, layer, variant) for term in TERMS), Fraction()) == FORMULAS[variant](layer)


def test_bars_end_where_the_formula_does() -> None:
    panels = draw(GPT3, RANKS).axes
    for axes, variant in zip(panels, Variant, strict=True):
        tops = [max(p.get_y() + p.get_height() for p in axes.patches if round(p.get_x() + 0.4) == i) for i in range(4)]
        assert tops == pytest.approx([float(FORMULAS[variant](on(GPT3, t))) for t in RANKS])


def test_what_lies_between_is_as_high_on_any_number_of_ranks_until_tokens_are_divided() -> None:
    panels = draw(GPT3, RANKS).axes
    count = sum(term.split is LayerSplit.SEQUENCE_PARALLEL for term in TERMS)
    for axes, growth in zip(panels, (1, 8, 8), strict=True):
        bars = [[patch for patch in axes.patches if round(patch.get_x() + 0.4) == place] for place in range(4)]
        first, last = (sum(patch.get_height() for patch in bar[:count]) for bar in (bars[0], bars[-1]))
        assert first / last == pytest.approx(growth)


def test_measured_bytes_are_dots() -> None:
    axes = draw(GPT3, RANKS, measured={(Variant.SEQUENCE, 4): 7e8}).axes
    dots = [[tuple(line.get_xydata()[0]) for line in one.lines if line.get_marker() == "o"] for one in axes]
    assert dots == [[], [(2, 7e8)], []]
    assert axes[-1].get_legend().get_title().get_text() == "bars: formula, dots: measured"
    assert not draw(GPT3).axes[-1].get_legend().get_title().get_text()


def test_stacks_begin_with_what_lies_between_and_end_with_pairs() -> None:
    places = [place_of(term) for term in stacked(Variant.TENSOR)]
    assert places == sorted(places, key=list(Place).index) and len(places) == len(TERMS)
    assert Place.PAIRS not in [place_of(term) for term in stacked(Variant.SELECTIVE)]


def test_titles_say_what_is_left() -> None:
    assert draw(GPT3).get_suptitle().split(":")[0].endswith("until sequence parallelism divides\nthem")
    words = " ".join(draw_terms(GPT3).get_suptitle().split())
    assert words.startswith("Of 34 bytes for each number of a token, tensor parallelism divides 24 among 8 ranks; 10")


@pytest.mark.parametrize("layer", [GPT3, LayerShape(64, 2, 128, 8, 2), LayerShape(131072, 1, 8192, 64, 4)])
def test_every_layer_can_be_read(monkeypatch: pytest.MonkeyPatch, layer: LayerShape) -> None:
    measured = {(variant, t): float(FORMULAS[variant](on(layer, t))) for variant in Variant for t in (1, 4)}
    for picture in (draw(layer), draw(layer, (2, 8, 16), measured=measured), draw_terms(layer)):
        assert_readable(picture, monkeypatch)


def test_every_term_has_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    words = {words for words, _, _ in drawn(draw_terms(GPT3), monkeypatch)}
    assert {term.tensor for term in TERMS} <= words
