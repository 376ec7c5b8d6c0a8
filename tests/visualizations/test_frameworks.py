"""Frameworks beside each other: steps on one axis, bars with the formula's line, and a table that one can search."""

from dataclasses import replace

import pytest

from reference.errors import BadInput
from reference.frameworks import rows
from reference.frameworks.lab import steps
from reference.frameworks.rows import FeatureRow
from reference.trace import Network, Op
from tests.trace import programs as p
from visualizations import feature_bars, wires
from visualizations.style import bytes_text
from visualizations.word_table import WordTable

from .reading import assert_readable, drawn

NETWORK = Network.uniform(alpha=25e-6, beta=1e9)
STEPS = {" ".join(key): steps.stored(*key) for key in steps.STORED}


def test_steps_under_each_other_can_be_read(monkeypatch):
    picture = wires.draw(STEPS, NETWORK)
    assert_readable(picture, monkeypatch)
    texts = [words for words, _, _ in drawn(picture, monkeypatch)]
    for trace in STEPS.values():
        assert f"{bytes_text(max(trace.bytes_sent))} from a rank, {len(trace.events[0])} calls" in texts


def test_a_box_is_a_message_on_the_axis_that_all_share():
    picture = wires.draw(STEPS, NETWORK)
    timelines = [trace.replay(NETWORK) for trace in STEPS.values()]
    longest = max(timeline.duration for timeline in timelines)
    for axes, timeline in zip(picture.axes, timelines, strict=True):
        assert axes.get_xlim() == (0, longest)
        seen = sorted((box.get_x(), box.get_width()) for box in axes.patches)
        sent = sorted((transfer.begin, transfer.end - transfer.begin) for transfer in timeline.transfers)
        assert seen == [pytest.approx(each) for each in sent]


@pytest.mark.parametrize("op", [Op.ALL_REDUCE, Op.REDUCE_SCATTER, Op.ALL_GATHER, Op.BROADCAST, Op.REDUCE, Op.GATHER])
def test_any_collective_can_be_drawn(monkeypatch, op):
    root = 0 if op in (Op.BROADCAST, Op.REDUCE, Op.GATHER) else None
    picture = wires.draw({"one": p.trace(4, lambda rank: rank.call(op, 80_000, root))}, NETWORK)
    assert_readable(picture, monkeypatch)
    _, words, _ = wires.LOOKS.get(str(op), ("", "others", ""))
    assert any(words in said for said, _, _ in drawn(picture, monkeypatch))


def test_steps_that_send_nothing_are_refused():
    with pytest.raises(BadInput, match="nothing is sent"):
        wires.draw({"quiet": p.trace(2, lambda rank: None)}, NETWORK)


def test_bars_can_be_read_and_count_who_is_as_the_formula_says(monkeypatch):
    stored = rows.load()
    picture = feature_bars.draw(stored)
    assert_readable(picture, monkeypatch)
    heard = [row for row in stored if row.calls and row.formula is not None and row.framework != "rankwise"]
    same = sum(row.sent == row.formula for row in heard)
    assert picture.get_suptitle().startswith(f"{same} of {len(heard)} send")
    left, right = picture.axes
    assert [bar.get_width() for bar in left.patches] == [row.sent for row in heard]
    assert [line.get_xdata()[0] for line in left.lines] == [row.formula for row in heard]
    assert [bar.get_width() for bar in right.patches] == [row.peak for row in heard]


def test_memory_is_held_against_ours_of_the_same_plan_and_dtype():
    by_name = {f"{row.framework} {row.feature}": row for row in rows.load()}
    held = feature_bars.held_by_ours(list(by_name.values()))
    assert held["torch fsdp2"] == held["accelerate fsdp"] == by_name["rankwise fsdp"].peak
    assert held["torch hsdp"] == by_name["rankwise hsdp"].peak
    assert "deepspeed zero3" not in held, "half the bytes of a number"


def test_bars_of_what_was_not_heard_are_refused():
    silent = replace(FeatureRow("torch", "ddp", 2, 1), formula=5)
    with pytest.raises(BadInput, match="none of these rows"):
        feature_bars.draw([silent])


WORDS = WordTable(("here", "there"), [("zero2", "stage = 2"), ("fsdp", "stage = 3 <b>"), ("tp", "ColwiseParallel")])


@pytest.mark.parametrize(
    ("search", "found"), [("", 3), ("stage", 2), ("STAGE 3", 1), ("zero2 3", 0), ("colwise", 1), ("  tp ", 1)]
)
def test_a_row_is_found_by_parts_of_its_words(search, found):
    assert len(WORDS.found(search)) == found


def test_a_table_says_what_it_holds_and_no_word_is_markup():
    table = WordTable(WORDS.head, WORDS.rows)
    assert "3 &lt;b&gt;" in table.html() and table.html().count("<tr>") == 4
    table.type("stage")
    assert table.html().count("<tr>") == 3
    assert repr(table) == "2 of 3 rows with 'stage'"


def test_what_is_typed_is_searched():
    pytest.importorskip("ipywidgets")
    table = WordTable(WORDS.head, WORDS.rows)
    table.widget.value = "fsdp"
    assert table.search == "fsdp"


def test_a_row_with_a_word_too_many_is_refused():
    with pytest.raises(BadInput, match="each row takes 2 words"):
        WordTable(("here", "there"), [("a", "b", "c")])
