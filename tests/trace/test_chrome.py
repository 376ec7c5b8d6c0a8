"""The export is what Perfetto's importer asks for."""

import json
from collections import defaultdict
from itertools import pairwise

import pytest

from reference.trace import ETHERNET_100G, NVLINK4, Network, Op

from . import programs as p

NETWORK = Network.uniform(alpha=1e-5, beta=1e9)


def program(rank):  # every rank does the same, so that the clocks of the script agree
    p.one_batch_all_to_all(rank, 50)
    p.ring_all_reduce(rank, 9)
    rank.call(Op.ALL_REDUCE, 40)


TRACE = p.trace(4, program)


@pytest.mark.parametrize("exported", [TRACE.to_chrome(), TRACE.replay(NETWORK).to_chrome()], ids=["trace", "timeline"])
def test_slices_nest_and_flows_bind(exported):
    events = json.loads(json.dumps(exported))["traceEvents"]
    slices, flows = defaultdict(list), defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            assert event["dur"] >= 0 and event["ts"] >= 0
            slices[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
        elif event["ph"] in "sf":
            flows[event["id"]].append(event)
    assert {pid for pid, _ in slices} == set(range(4))
    for spans in slices.values():
        assert all(a[1] <= b[0] + 1e-9 for a, b in zip(sorted(spans), sorted(spans)[1:], strict=False))
    assert flows
    for start, finish in flows.values():
        assert (start["ph"], finish["ph"], finish["bp"]) == ("s", "f", "e")
        assert start["ts"] <= finish["ts"]
        for end in (start, finish):
            assert any(b - 1e-9 <= end["ts"] <= e + 1e-9 for b, e in slices[end["pid"], end["tid"]])


@pytest.mark.parametrize("link", [NVLINK4, ETHERNET_100G])
@pytest.mark.parametrize("numel", [10, 1000, 12345])
def test_slices_that_touch_still_do_when_perfetto_has_rounded_them(numel, link):
    """It rounds begin and duration to nanoseconds, and drops a slice that begins before the one before it ends."""

    def nanoseconds(microseconds):
        return round(microseconds * 1000)

    trace = p.trace(4, lambda rank: (p.ring_all_reduce(rank, numel), p.one_batch_all_to_all(rank, numel)))
    lanes = defaultdict(list)
    for event in trace.replay(Network.of(link)).to_chrome()["traceEvents"]:
        if event["ph"] == "X":
            begin = nanoseconds(event["ts"])
            lanes[event["pid"], event["tid"]].append((begin, begin + nanoseconds(event["dur"])))
    assert all(a[1] <= b[0] for lane in lanes.values() for a, b in pairwise(sorted(lane)))


def test_every_rank_is_a_named_process():
    names = [e for e in TRACE.to_chrome()["traceEvents"] if e["name"] == "process_name"]
    assert [(e["pid"], e["args"]["name"]) for e in names] == [(r, f"rank {r}") for r in range(4)]


def test_save_writes_json(tmp_path):
    for thing in (TRACE, TRACE.replay(NETWORK)):
        assert json.loads(thing.save(tmp_path / "trace.json").read_text()) == json.loads(json.dumps(thing.to_chrome()))
