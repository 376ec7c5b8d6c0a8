"""What a block did on all ranks, drawn as it was noted."""

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
import torch.distributed as dist
from matplotlib.colors import to_rgba

from reference.cluster import Cluster
from reference.models import GPTConfig
from reference.sequence_parallel import SequenceRegion
from reference.tensor_parallel import Region
from reference.tensor_parallel.lab import op_trace
from reference.tensor_parallel.lab.op_trace import LayerOp, OpKind
from reference.trace.activity import Doing
from visualizations.layer_flow import Column, collective, columns, draw, finding, is_same, placed
from visualizations.rank_colours import SAME, colour_of
from visualizations.style import Colour

from .reading import assert_readable, drawn

CONFIG = GPTConfig(layers=1, width=32, heads=4, kv_heads=2, hidden=48)
REGIONS = (Region, SequenceRegion)
Runs = dict[type[Region], list[list[LayerOp]]]


@pytest.fixture(scope="module")
def runs(clusters: Callable[..., Cluster]) -> Runs:
    """A block on four ranks, in each kind of region."""

    def block(make: type[Region]) -> list[LayerOp]:
        return op_trace.of_block(CONFIG, make(dist.group.WORLD, overlap=True), 2, 16, torch.float64)

    traced = {make: clusters(4).trace(block, make) for make in REGIONS}
    return {make: op_trace.with_bytes(*run) for make, run in traced.items()}


def named(step: LayerOp) -> str:
    return f"{step.doing} {collective(step)}"


def test_a_block_says_what_the_paper_counts(runs: Runs) -> None:
    said = {make: sorted(named(step) for step in runs[make][0] if collective(step)) for make in REGIONS}
    assert said[Region] == 2 * ["backward all-reduce"] + 2 * ["forward all-reduce"]
    two_each = ["backward reduce-scatter", "forward all-gather", "forward reduce-scatter"]
    assert said[SequenceRegion] == sorted(4 * ["backward all-gather"] + 2 * two_each)


@pytest.mark.parametrize("make", REGIONS)
def test_each_collective_stands_under_the_one_it_is_the_backward_of(runs: Runs, make: type[Region]) -> None:
    there, back = (placed(runs[make][0], doing) for doing in (Doing.FORWARD, Doing.BACKWARD))
    partner = {OpKind.GATHER: OpKind.SUM, OpKind.SUM: OpKind.GATHER}
    borders = [column for column in columns(runs[make][0]) if column.kind.is_collective]
    assert len(borders) == 4
    for column in borders:
        [forward], [backward] = there[column], back[column]
        assert runs[make][0][backward].kind is partner[runs[make][0][forward].kind] is partner[column.kind]


@pytest.mark.parametrize("make", REGIONS)
def test_every_step_is_drawn_once_and_in_order(runs: Runs, make: type[Region]) -> None:
    own = runs[make][0]
    for doing in (Doing.FORWARD, Doing.BACKWARD):
        numbers = [n for in_column in placed(own, doing).values() for n in in_column]
        assert sorted(numbers) == [n for n, step in enumerate(own) if step.doing is doing]
    assert all(a < b for a, b in pairwise(n for ns in placed(own, Doing.FORWARD).values() for n in ns))


def test_outside_of_regions_ranks_repeat_each_other_until_tokens_are_shared_out(runs: Runs) -> None:
    for make in REGIONS:
        for number, step in enumerate(runs[make][0]):
            outside = step.site.endswith(("norm", "dropout"))
            if not step.kind.is_collective:
                assert is_same([own[number] for own in runs[make]]) == (outside and make is Region)


def test_grey_is_what_is_the_same_and_neighbours_with_one_head_have_one_colour(runs: Runs) -> None:
    boxes = draw(runs[Region]).axes[0].patches
    faces = [tuple(box.get_facecolor()) for box in boxes]
    grey = sum(face == to_rgba(SAME) for face in faces)
    assert grey == 4 * 8 + 1  # norms and dropouts, there and back, and the legend
    assert sum(face == to_rgba(Colour.COMMUNICATION) for face in faces) == 4 + 1
    first, second = (sum(face == to_rgba(colour_of(rank, 4)) for face in faces) for rank in (0, 1))
    assert first - second == 2 * 2  # rank 1 makes the key and the value that rank 0 makes, and they look alike


def test_titles_count_what_was_said(runs: Runs) -> None:
    sent = sum(step.sent for step in runs[Region][0])
    assert sent == 4 * 2 * 3 * (2 * 16 * 32 // 4) * 8  # all-reduces, passes, chunks, elements, bytes
    words = "A block on 4 ranks: 4 all-reduces, 49.2 KB sent by each; 8 of 30 steps are done alike on every rank"
    assert finding(runs[Region]).replace("\u00a0", " ") == words
    assert finding(runs[SequenceRegion]).startswith("A block on 4 ranks: 6 all-gathers and 4 reduce-scatters, 61.4 KB")
    assert finding(runs[SequenceRegion]).endswith("no step is done alike on every rank")


@pytest.mark.parametrize("make", REGIONS)
@pytest.mark.parametrize("ranks", [2, 4])
def test_a_block_can_be_read(monkeypatch: pytest.MonkeyPatch, runs: Runs, make: type[Region], ranks: int) -> None:
    picture = draw(runs[make][:ranks])
    assert_readable(picture, monkeypatch)
    words = [words for words, _, _ in drawn(picture, monkeypatch)]
    assert words.count("nothing") == (4 if make is Region else 0)
    assert words.count("all-gather") == (0 if make is Region else 6)


def test_shapes_are_those_of_one_rank(monkeypatch: pytest.MonkeyPatch, runs: Runs) -> None:
    words = {words for words, _, _ in drawn(draw(runs[SequenceRegion]), monkeypatch)}
    assert {"2×4×32", "2×16×8", "2 · 2×16×12", "3 · 2×16×8"} <= words


def test_a_column_is_a_site_and_what_happens_there(runs: Runs) -> None:
    order = columns(runs[Region][0])
    assert len(order) == 14
    assert order[1:3] == [Column("query, key, value", kind) for kind in (OpKind.GATHER, OpKind.PRODUCT)]
