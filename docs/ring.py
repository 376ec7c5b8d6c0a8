"""Draw the picture of the README: `python docs/ring.py` runs a ring all-reduce on 4 ranks and draws what happened."""

from pathlib import Path

import torch.distributed as dist

from reference.cluster import Cluster
from reference.collectives import all_reduce
from reference.trace.contents import Contents, observe, tagged
from visualizations import collective

RANKS = 4


def ring() -> Contents:
    """On each rank: what its four chunks hold before every call."""
    x = tagged(numel=RANKS * 1000)
    return observe(lambda: all_reduce.ring(x, dist.group.WORLD), x, chunks=RANKS)


if __name__ == "__main__":
    with Cluster(RANKS) as cluster:
        contents, trace = cluster.trace(ring)
    collective.draw(trace, contents).save(Path(__file__).with_name("ring.png"))
