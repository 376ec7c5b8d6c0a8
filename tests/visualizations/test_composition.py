"""All axes in pictures: two views of the same ranks, who sums whose, ledgers, matrices of axes, published layouts."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import FancyBboxPatch, Rectangle

from reference.composition.lab.published_layouts import DEEPSEEK, GEMMA, LAYOUTS, LLAMA_8K
from reference.errors import BadInput
from reference.mesh import Mesh
from reference.models.moe_config import MoEConfig
from reference.parallelize import DataParallelism, Plan
from reference.roles import roles
from reference.trace.ledger import Entry, Ledger
from visualizations import axes_apart, ledger, published_axes, sums_table, two_views
from visualizations.style import Colour, Picture

from .reading import assert_readable, drawn

MOE = MoEConfig(layers=2, width=16, heads=4, kv_heads=2, hidden=24, experts=8, top_k=2, shared_experts=1)
SLICES = {"tensor_parallel": 2, "sequence_parallel": True}
FIVE = Plan(DataParallelism.HSDP, dp_replicate=2, pipeline_parallel=2, context_parallel=2, expert_parallel=4, **SLICES)
PLANS = {
    "five axes": (FIVE, 32),
    "one frame": (Plan(expert_parallel=2, expert_tensor_parallel=2), 4),
    "shared heads": (Plan(pipeline_parallel=2, tensor_parallel=4, expert_parallel=8), 16),
    "one rank": (Plan(), 1),
    "uneven": (Plan(expert_parallel=3), 6),
}


def words_of(picture: Picture, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return [words for words, _, _ in drawn(picture, monkeypatch)]


@pytest.mark.parametrize("name", PLANS)
def test_two_views_can_be_read(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, ranks = PLANS[name]
    mesh, view = plan.mesh(ranks, MOE), plan.expert_mesh(ranks, MOE)
    picture = two_views.draw(mesh, view, MOE.experts)
    assert_readable(picture, monkeypatch)
    words = words_of(picture, monkeypatch)
    assert all(words.count(str(rank)) == 2 for rank in range(ranks)), "each rank stands in both"
    frames = [patch for patch in picture.axes[0].patches if isinstance(patch, FancyBboxPatch)]
    assert len(frames) == 2 * mesh.size("pp", "dp_replicate")


def test_ranks_of_one_colour_hold_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, ranks = PLANS["five axes"]
    mesh, view = plan.mesh(ranks, MOE), plan.expert_mesh(ranks, MOE)
    (axes,) = two_views.draw(mesh, view, 8).axes
    faces = [to_hex(patch.get_facecolor()) for patch in axes.patches if type(patch) is Rectangle]
    dense, experts = faces[:ranks], faces[ranks:]
    for each, colours, split in ((mesh, dense, ("tp_head",)), (view, experts, ("ep",))):
        held = {rank: [each.coordinates(rank)[axis] for axis in split] for rank in range(ranks)}
        assert all((held[a] == held[b]) == (colours[a] == colours[b]) for a in range(ranks) for b in range(ranks))


def test_the_title_counts_copies() -> None:
    plan, ranks = PLANS["five axes"]
    assert two_views.finding(plan.mesh(ranks, MOE), plan.expert_mesh(ranks, MOE)) == (
        "32 ranks, seen twice: 8 of a stage hold the same block of a matrix, and 4 the same experts"
    )


def test_two_views_refuse_what_has_no_room() -> None:
    plan = Plan(pipeline_parallel=8)
    with pytest.raises(BadInput, match="room for 4 frames of up to 16 ranks"):
        two_views.draw(plan.mesh(8, MOE), plan.expert_mesh(8, MOE), 8)
    with pytest.raises(BadInput, match="not of the same ranks"):
        two_views.draw(Plan().mesh(4, MOE), Plan().expert_mesh(2, MOE), 8)


@pytest.mark.parametrize("name", PLANS)
def test_the_table_of_sums_can_be_read(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, ranks = PLANS[name]
    rows = roles(MOE, plan, ranks)
    picture = sums_table.draw(rows, plan.mesh(ranks, MOE), plan.expert_mesh(ranks, MOE))
    assert_readable(picture, monkeypatch)
    words = words_of(picture, monkeypatch)
    assert [row for row in rows if words.count(row) != 1] == []
    has_copies = plan.mesh(ranks, MOE).size("tp_copy") > 1
    shown = [str(role) for row in rows.values() for axis, role in row.items() if has_copies or axis != "tp_copy"]
    assert all(words.count(letter) == shown.count(letter) + 1 for letter in "RSP"), "each cell, and the legend"


def test_the_table_of_sums_says_what_experts_need() -> None:
    assert sums_table.finding(roles(MOE, FIVE, 32)) == (
        "Gradients of queries are summed along dp_replicate, dp_shard and cp; "
        "those of experts along dp_replicate and edp"
    )


MESH = Mesh({"dp": 2, "tp": 2})


def entry(name: str, counts: tuple[int | str, ...] | None, *due: int, what: str = "gradient") -> Entry:
    found = None if counts is None else tuple(map(Fraction, counts))
    return Entry(what, name, 0, (found,), frozenset(due), 1, MESH)


RIGHT = entry("embedding.weight", (1, 0, 1, 0), 0, 2)
WRONG = (
    entry("blocks.0.attention.query.weight", (1, 0, 0, 0), 0, 2),
    entry("blocks.0.attention_norm.weight", (2, 2, 2, 2), 0, 1, 2, 3),
    entry("head.weight", (1, 1, 1, 1), 0, 2),
    entry("blocks.0.feed_forward.up.weight", ("1/2", 0, "1/2", 0), 0, 2),
    entry("blocks.0.attention.key.weight", None, 0, 2),
)


def cells(picture: Picture, row: int, ranks: int = 4) -> list[str]:
    boxes = [patch for patch in picture.axes[0].patches if type(patch) is Rectangle]
    return [to_hex(patch.get_facecolor()).upper() for patch in boxes[row * ranks : (row + 1) * ranks]]


def test_a_ledger_shows_what_is_there_and_what_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    picture = ledger.draw(Ledger((RIGHT, *WRONG, entry("of a step", (1, 0, 1, 0), 0, 2, what="loss"))))
    assert_readable(picture, monkeypatch)
    good, bad, none = Colour.COMMUNICATION.value, Colour.ERROR.value, "#FFFFFF"
    assert cells(picture, 0) == [good, none, good, none]
    assert cells(picture, 1) == [good, none, bad, none], "one is missing"
    assert cells(picture, 2) == [bad] * 4, "each is there twice"
    assert cells(picture, 3) == [good, bad, good, bad], "two should not be there"
    assert cells(picture, 4) == [bad, none, bad, none], "a mean"
    assert cells(picture, 5) == [bad, bad, bad, bad], "no sum of parts"
    assert "1/2" in words_of(picture, monkeypatch)
    assert repr(picture) == "<Picture: 5 of 7 sums of the step are wrong>"


def test_a_ledger_shows_the_worst_of_a_kind() -> None:
    fault = entry("blocks.1.attention.query.weight", (1, 0, 0, 0), 0, 2)
    good = entry("blocks.0.attention.query.weight", (1, 0, 1, 0), 0, 2)
    for order in ((good, fault), (fault, good)):
        assert list(ledger.worst_of_each(Ledger(order), 0).values()) == [fault]


def test_a_right_ledger_says_so_and_an_empty_one_is_refused() -> None:
    assert ledger.finding(Ledger((RIGHT, replace(RIGHT, name="head.weight")))) == (
        "All 2 sums of the step hold each part once that they should hold, and no other"
    )
    with pytest.raises(BadInput, match="nothing of rank 3"):
        ledger.draw(Ledger((RIGHT,)), rank=3)


def test_each_axis_has_a_matrix_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = np.kron(np.eye(4, dtype=np.int64), np.array([[0, 900], [900, 0]]))
    stages = np.roll(np.eye(8, dtype=np.int64), 4, axis=1) * 100
    picture = axes_apart.draw({"pp": stages, "tp": pairs, "cp": pairs * 0}, 4)
    assert_readable(picture, monkeypatch)
    words = words_of(picture, monkeypatch)
    assert words.index("tp") < words.index("pp") and "cp" not in words, "the largest first, and none without bytes"
    assert "between nodes: none" in words and "between nodes: all" in words
    assert repr(picture) == "<Picture: Of 8 KB that were sent: tp 90%, pp 10%>"
    with pytest.raises(BadInput, match="no rank has sent anything"):
        axes_apart.draw({"tp": pairs * 0}, 4)


def test_published_layouts_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    picture = published_axes.draw(LAYOUTS)
    assert_readable(picture, monkeypatch)
    words = words_of(picture, monkeypatch)
    assert "DeepSeek-V3: 2,048 ranks, pp 16 x edp 2 x ep 64; a step takes 19.9 s" in words
    assert "6.13 s, 307 GB" in words


def test_bars_are_as_long_as_links_are_busy() -> None:
    (axes,) = published_axes.draw([LLAMA_8K]).axes
    lengths = [patch.get_width() for patch in axes.patches if type(patch) is Rectangle]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[1] / lengths[0] == pytest.approx(377.5 / 526.1, rel=1e-3)
    assert published_axes.draw([DEEPSEEK]).get_suptitle().endswith("longest: ep in DeepSeek-V3")


def test_a_layout_of_which_no_step_is_known_is_refused() -> None:
    for layouts in ([], [GEMMA]):
        with pytest.raises(BadInput, match="there is nothing to draw"):
            published_axes.draw(layouts)
