"""What islands cost in loss: the demo's text, equal tokens, over rounds, islands, numbers and ways to meet.

    python -m reference.decentralized.lab.quality              300 steps a row, minutes each
    python -m reference.decentralized.lab.quality --steps 100 --rows 3

Each row trains the demo's model from the same weights through the same batches; the first row is synchronous data
parallelism. Told are the loss of held-out text, beside the first row's, and what a rank sends in a step, by formula.

A run of 300 steps has 6 rounds of 50. A momentum of 0.9, which the paper takes for hundreds of rounds, overshoots in so
few: rows take 0.5, and one takes 0.9.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist

from reference.choices import Outer, Wire
from reference.cluster import Cluster
from reference.config import TrainConfig
from reference.decentralized.wire import wire_bytes
from reference.train import train, validation_loss

SYNCHRONOUS = TrainConfig()
MOMENTUM = 0.5


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
        fast = f", momentum {meets.outer_momentum}" if self.config.outer_momentum not in (None, MOMENTUM) else ""
        return f"{self.config.outer}, {self.config.islands} islands, H = {meets.inner_steps}{wire}{fast}"


def configs(steps: int) -> Iterator[TrainConfig]:
    """What is compared, the most important first."""
    base = replace(SYNCHRONOUS, steps=steps)
    of = {"islands": 4, "outer": Outer.DILOCO, "outer_momentum": MOMENTUM}
    yield base
    yield replace(base, **of, inner_steps=20)
    yield replace(base, **of, inner_steps=50)
    yield replace(base, **of | {"outer": Outer.STREAMING}, inner_steps=50)
    yield replace(base, **of, inner_steps=50, wire=Wire.INT8)
    yield replace(base, **of, inner_steps=50, wire=Wire.INT4)
    yield replace(base, islands=4, outer=Outer.LOCAL_SGD, inner_steps=50)
    yield replace(base, **of, inner_steps=100)
    yield replace(base, **of | {"islands": 2}, inner_steps=50)
    yield replace(base, **of | {"outer_momentum": 0.9}, inner_steps=50)
    yield replace(base, **of | {"outer": Outer.EAGER}, inner_steps=50)
    yield replace(base, islands=4, outer=Outer.NOLOCO, inner_steps=50)
    yield replace(base, islands=4, outer=Outer.EASGD, inner_steps=50)
    yield replace(base, islands=4, outer=Outer.SPARTA)


def sent(config: TrainConfig, ranks: int) -> float:
    """Bytes that a rank sends in a step, in the mean, where an island is a rank or ranks that hold all."""
    numel, n = config.model.parameters, config.islands
    match config.outer:
        case Outer.NONE:
            return wire_bytes(numel, ranks, Wire.FULL)
        case Outer.NOLOCO:
            return 2 * 4 * numel / config.meets.inner_steps
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
    parser.add_argument("--steps", type=int, default=SYNCHRONOUS.steps, help="of each run [default: %(default)s]")
    parser.add_argument("--rows", type=int, help="how many of the rows, the first ones; all by default")
    said = parser.parse_args()
    first = None
    print(f"{'':46}{'loss':>7}{'':>9}{'sent a step':>14}{'':>8}")
    for row in rows(said.steps, said.rows):
        first = first or row
        more, fewer = row.loss / first.loss - 1, first.sent / row.sent
        print(f"{row.name:46}{row.loss:7.4f}{more:+9.2%}{row.sent / 1e3:11,.1f} kB{fewer:7.0f}x", flush=True)


if __name__ == "__main__":
    main()
