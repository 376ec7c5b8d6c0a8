"""Who sends how much to whom: matrices hold what the traces say."""

import pytest
import torch
import torch.distributed as dist

from reference.collectives import all_reduce
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
