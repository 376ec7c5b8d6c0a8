"""INTELLECT-1's shares of time, from a replay: 10 billion parameters over three sets of links.

    python -m reference.decentralized.lab.intellect

Jaghouar et al. 2024, arXiv:2412.01152, table 1, tells the minutes of an inner phase, the seconds of an all-reduce in
int8, and the share of time in which GPUs computed (`published.csv`). Here the engine's own message in int8
(`reference.decentralized.wire`) is traced between 8 ranks, and replayed on the links that are assumed. What is assumed:

- 8 nodes take part, each a rank: the paper had up to 14, and (n-1)/n is 0.88 for 8 and 0.93 for 14.
- Every link of a setting has the rate of its slowest one (`GIGABITS`), since a ring waits for that. The paper tells no
  rates. These are round numbers near what its seconds of an all-reduce imply, so the seconds are no prediction: that
  the shares follow from them, and nothing is left over, is what is shown.
- A message takes 0.15 s however small it is: across an ocean, by TCP over a VPN.
- Nothing overlaps: GPUs wait for the all-reduce. The outer step itself takes no time.
- The trace is of a million elements, on links slower by the same factor: 10 billion do not fit here.
"""

import csv
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from reference.choices import Wire
from reference.cluster import Cluster
from reference.collectives.communicator import ByHand
from reference.decentralized.wire import mean
from reference.trace import Link, Network, Trace

FILE = Path(__file__).with_name("published.csv")
PARAMETERS, TRACED, NODES, ALPHA = 10**10, 1 << 20, 8, 0.15
GIGABITS = {"USA": 1.4, "transatlantic": 0.4, "global": 0.3}  # per second, of the slowest link


@dataclass(frozen=True)
class ShareOfTime:
    """One setting, as published and as replayed."""

    setting: str
    seconds: float  # of an all-reduce, replayed
    published_seconds: float
    share: float  # of time in which GPUs compute, in per cent
    published_share: float


def published() -> tuple[float, dict[str, tuple[float, float]]]:
    """Seconds of an inner phase; of each setting the seconds of an all-reduce, and the share of time in per cent."""
    with FILE.open() as file:
        table = {row["item"]: row for row in csv.DictReader(file)}
    found = {}
    for setting in GIGABITS:
        row = table[f"INTELLECT-1 all-reduce {setting}"]
        share = row["unit"].partition("util ")[2].partition("%")[0]
        found[setting] = float(row["value"]), float(share)
    return 60 * float(table["INTELLECT-1 inner phase"]["value"]), found


def a_mean() -> None:
    """On each rank, to be traced."""
    mean(torch.ones(TRACED), ByHand(dist.group.WORLD), Wire.INT8)


def traced(cluster: Cluster) -> Trace:
    """A mean over all ranks of a cluster, in int8."""
    return cluster.trace(a_mean)[1]


def shares(trace: Trace) -> list[ShareOfTime]:
    """All settings, from the trace of one mean."""
    inner, settings = published()
    found = []
    for setting, (seconds, share) in settings.items():
        rate = GIGABITS[setting] * 1e9 / 8 * TRACED / PARAMETERS
        replayed = trace.replay(Network.of(Link(setting, ALPHA, rate))).duration
        found.append(ShareOfTime(setting, replayed, seconds, 100 * inner / (inner + replayed), share))
    return found


def main() -> None:
    """Print the table."""
    with Cluster(NODES) as cluster:
        for each in shares(traced(cluster)):
            print(
                f"{each.setting:14}all-reduce {each.seconds:4.0f} s (published {each.published_seconds:.0f} s), "
                f"computing {each.share:.1f} % (published {each.published_share:.1f} %)"
            )


if __name__ == "__main__":
    main()
