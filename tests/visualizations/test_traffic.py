"""How much each rank sends to each: matrices hold what the traces say."""

import pytest
import torch
import torch.distributed as dist
from matplotlib.colors import to_hex

from reference.collectives import all_reduce
from reference.errors import BadInput
from reference.trace import Trace
from tests.trace import programs as p
from visualizations import traffic

from .reading import assert_readable, drawn


@pytest.fixture(scope="module")
def traces(clusters):
    def run(algorithm):
        return clusters(4).trace(lambda: algorithm(torch.ones(1000), dist.group.WORLD))[1]

    return {"naive": run(all_reduce.naive), "ring": run(all_reduce.ring)}


def test_a_row_is_what_a_rank_sends_and_a_column_what_it_receives(traces):
    for trace in traces.values():
        sent = traffic.matrix(trace)
        assert sent.sum(axis=1).tolist() == trace.bytes_sent
        assert sent.sum(axis=0).tolist() == trace.bytes_received
        assert not sent.diagonal().any()


def test_between_nodes_counts_what_leaves_a_node(traces):
    assert traffic.between_nodes(traces["ring"], 2).tolist() == [0, 6000, 0, 6000]
    assert traffic.between_nodes(traces["naive"], 2).tolist() == [8000, 0, 4000, 4000]
    assert not traffic.between_nodes(traces["ring"], 4).any(), "one node"


def test_it_can_be_read(traces, monkeypatch):
    picture = traffic.draw(traces, 2)
    assert repr(picture) == "<Picture: The busiest port to other nodes carries: naive 8 KB, ring 6 KB>"
    assert_readable(picture, monkeypatch)
    assert "all that crosses: 12 KB" in [words for words, _, _ in drawn(picture, monkeypatch)]
    assert_readable(traffic.draw({"ring": traces["ring"]}, 4), monkeypatch)


def hub(n: int, *numels: int) -> Trace:
    """Rank 0 sends a message of each size to ranks 1, 2, ..."""

    def program(rank: p.Rank) -> None:
        for peer, numel in enumerate(numels, 1):
            if rank.rank == 0:
                rank.send(peer, numel)
            elif rank.rank == peer:
                rank.recv(0, numel)

    return p.trace(n, program)


@pytest.mark.parametrize("programs", [1, 2, 3, 4])
@pytest.mark.parametrize("n", [2, 4, 8])
def test_small_and_many_matrices_can_be_read(monkeypatch, n, programs):
    picture = traffic.draw({f"program {number}": hub(n, 307_500) for number in range(programs)}, ranks_per_node=1)
    assert_readable(picture, monkeypatch)
    assert "busiest port: 1.23 MB" in [words for words, _, _ in drawn(picture, monkeypatch)]


def test_areas_are_in_the_ratio_of_bytes():
    picture = traffic.draw({"hub": hub(4, 1_000_000, 100_000, 1)}, ranks_per_node=2)
    filled = [patch for patch in picture.axes[0].patches if patch.get_zorder() == 2]
    million, tenth, one = (patch.get_width() * patch.get_height() for patch in filled)
    assert million / tenth == pytest.approx(10)
    assert 0 < one < tenth / 10, "as small as can be seen"
    assert [to_hex(patch.get_facecolor()) == traffic.BETWEEN.lower() for patch in filled] == [False, True, True]


def test_what_does_not_fit_side_by_side_is_said(traces):
    small = hub(2, 8)
    for wrong, words in (
        ({}, "none"),
        (traces | {"small": small}, r"\[2, 4\]"),
        ({str(number): small for number in range(5)}, "5 x 2 ranks do not fit"),
        ({"many": hub(64, 8)}, "1 x 64 ranks do not fit"),
    ):
        with pytest.raises(BadInput, match=words):
            traffic.draw(wrong, 1)
