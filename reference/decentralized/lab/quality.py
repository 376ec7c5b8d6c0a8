"""What islands cost in loss: the demo's text, equal tokens, over rounds, islands, numbers and ways to meet.

    python -m reference.decentralized.lab.quality              550 steps a row, minutes each
    python -m reference.decentralized.lab.quality --steps 275 --rows 3

Each row trains the demo's model from the same weights through the same batches: equal tokens, of which each of n
islands reads an n-th. The first row is synchronous data parallelism. Told are the loss of held-out text, beside the
first row's, and what a rank sends in a step, by formula; in a step of islands, once they train by themselves.

Settings are those of Douillard et al. 2023 (arXiv:2311.08105): AdamW inside, whose state an island keeps; outside
Nesterov with a rate of 0.7 and a momentum of 0.9; one cosine over all steps; and islands begin with a model that was
trained together for 24,000 of 88,000 steps, here the same share of fewer. A row shows what that is worth: rounds from
the first step on begin while parameters still move fast, and in another direction on each island.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

import torch
import torch.distributed as dist

from reference.choices import GossipTopology, Outer, Wire
from reference.cluster import Cluster
from reference.config import TrainConfig
from reference.decentralized.neighbours import chosen
from reference.decentralized.wire import wire_bytes
from reference.train import train, validation_loss

STEPS = 550  # 150 together, and 400 that are whole rounds of 20, of 50 and of 100
TOGETHER = Fraction(24_000, 88_000)
SYNCHRONOUS = TrainConfig(steps=STEPS)


@dataclass(frozen=True)
class QualityRow:
    """How a run ended."""

    config: TrainConfig
    loss: float  # nats per byte of the held-out text
    sent: float  # bytes that a rank sends in a step, in the mean

    @property
    def name(self) -> str:
        """What is different from data parallelism."""
        if self.config.outer is Outer.NONE:
            return "synchronous"
        meets = self.config.meets
        wire = "" if meets.wire is Wire.FULL else f", {meets.wire}"
        other = "" if self.config.outer_momentum is None else f", momentum {meets.outer_momentum}"
        begin = "" if meets.synchronous_steps else ", from step 1"
        return f"{self.config.outer}, {self.config.islands} islands, H = {meets.inner_steps}{wire}{other}{begin}"


def configs(steps: int) -> Iterator[TrainConfig]:
    """What is compared, the most important first."""
    base = replace(SYNCHRONOUS, steps=steps)
    apart = replace(base, islands=4, outer=Outer.LOCAL_SGD, inner_steps=50, synchronous_steps=round(steps * TOGETHER))
    diloco = replace(apart, outer=Outer.DILOCO)
    yield base
    yield replace(diloco, inner_steps=20)
    yield diloco
    yield replace(diloco, wire=Wire.INT8)
    yield replace(diloco, synchronous_steps=0)
    yield replace(diloco, outer_momentum=0.5)
    yield replace(diloco, islands=2)
    yield replace(diloco, wire=Wire.INT4)
    yield replace(diloco, inner_steps=100)
    yield replace(diloco, outer=Outer.STREAMING)
    yield apart
    yield replace(diloco, outer=Outer.EAGER)
    yield replace(apart, outer=Outer.NOLOCO)
    yield replace(apart, outer=Outer.EASGD)
    yield replace(apart, outer=Outer.SPARTA, inner_steps=None)
    yield replace(apart, outer=Outer.GOSSIP, topology=GossipTopology.ONE_PEER)
    yield replace(diloco, outer=Outer.ASYNC_DILOCO)


def sent(config: TrainConfig, ranks: int) -> float:
    """Bytes that a rank sends in a step, in the mean, where an island is a rank or ranks that hold all."""
    numel, n = config.model.parameters, config.islands
    match config.outer:
        case Outer.NONE:
            return wire_bytes(numel, ranks, Wire.FULL)
        case Outer.NOLOCO:
            return 2 * 4 * numel / config.meets.inner_steps
        case Outer.GOSSIP:
            matrix = chosen(config.meets.topology, config.seed)(n, 0)
            neighbours = int(matrix[0].count_nonzero()) - 1
            return neighbours * 4 * numel / config.meets.inner_steps
        case Outer.ASYNC_DILOCO | Outer.ASYNC_SGD:  # where they serve
            return (n - 1) * 4 * numel / config.meets.inner_steps
        case Outer.SPARTA:
            return wire_bytes(numel, n, Wire.FULL) * config.meets.sparse_share / config.meets.inner_steps
    return wire_bytes(numel, n, config.meets.wire) / config.meets.inner_steps


def held_out(config: TrainConfig) -> float:
    """On each rank: train, and the loss of held-out text."""
    return validation_loss(train(config, dist.group.WORLD, torch.device("cpu")))


def rows(steps: int, count: int | None = None, ranks: int = 4) -> Iterator[QualityRow]:
    """Train `count` configurations, or all.

    Args:
        steps: of each.
        count: the first so many of them.
        ranks: that train; islands divide them.
    """
    with Cluster(ranks, timeout=None, preload=("torch._dynamo", "reference.train")) as cluster:
        for config in list(configs(steps))[:count]:
            yield QualityRow(config, cluster.run(held_out, config)[0], sent(config, ranks))


def main() -> None:
    """Print the table, a row when it is there."""
    parser = argparse.ArgumentParser(description="Losses of islands, beside synchronous data parallelism.")
    parser.add_argument("--steps", type=int, default=STEPS, help="of each run [default: %(default)s]")
    parser.add_argument("--rows", type=int, help="how many of the rows, the first ones; all by default")
    said = parser.parse_args()
    first = None
    print(f"{'':52}{'loss':>7}{'':>9}{'sent a step':>14}{'':>8}")
    for row in rows(said.steps, said.rows):
        first = first or row
        more, fewer = row.loss / first.loss - 1, first.sent / row.sent
        print(f"{row.name:52}{row.loss:7.4f}{more:+9.2%}{row.sent / 1e3:11,.1f} kB{fewer:7.0f}x", flush=True)


if __name__ == "__main__":
    main()
