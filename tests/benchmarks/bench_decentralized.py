"""Islands on four nodes with slow links: bytes, and wall time to the same loss, beside synchronous data parallelism.

First each way trains the demo's model on links that are next to free, until its loss of held-out text is that of the
synchronous run: that says how many steps it needs. Then seconds of a step are measured at each rate, all ways in turns:
medians. `ours` is the number of steps that a way needs, times its seconds; `peer` the same of the synchronous one. A
synchronous step sums gradients before it updates (`Plan.data_parallel` is flat, as by default). Islands
part at the first step, since steps together would send what data parallelism sends, and have few rounds: the outer
momentum is 0.5.
"""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import rows
import torch
import torch.distributed as dist
from rows import Row

HOUSE = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(HOUSE))

from reference.choices import Outer  # noqa: E402
from reference.cluster import Cluster  # noqa: E402
from reference.config import TrainConfig  # noqa: E402
from reference.networks.lab.on_nodes import FREE, settle  # noqa: E402
from reference.train import Training, train, validation_loss  # noqa: E402

NODES, H, STEPS, ROUNDS = 4, 50, 300, 3
LENGTHS = (1.0, 1.25, 1.5, 2.0)  # of a run of islands, as multiples of the synchronous one
RATES = {"100 Mb/s": None, "10 Mb/s": 5.0}  # how many times faster to the same loss
FEWER_BYTES = 20.0
SYNCHRONOUS = TrainConfig(steps=STEPS)
ISLANDS = {"islands": NODES, "inner_steps": H, "outer_momentum": 0.5}
WAYS = {
    "synchronous": SYNCHRONOUS,
    "DiLoCo": replace(SYNCHRONOUS, outer=Outer.DILOCO, **ISLANDS),
    "Streaming": replace(SYNCHRONOUS, outer=Outer.STREAMING, fragments=4, overlap_steps=10, **ISLANDS),
}


def held_out(config: TrainConfig) -> float:
    """On each rank: train, and nats per byte of held-out text."""
    return validation_loss(train(config, dist.group.WORLD, torch.device("cpu")))


def steps_needed(cluster: Cluster, config: TrainConfig, loss: float) -> tuple[int, float]:
    """Steps of the shortest run of islands that ends at a loss or below, and its loss; of the longest if none does."""
    for length in LENGTHS:
        steps = int(length * STEPS)
        found = cluster.run(held_out, replace(config, steps=steps))[0]
        if found <= loss:
            break
    return steps, found


def round_of(config: TrainConfig) -> Callable[[], None]:
    """On each rank: what takes a round of steps, or two synchronous ones."""
    training, taken = Training(replace(config, steps=100 * H), dist.group.WORLD, torch.device("cpu")), [0]

    def steps() -> None:
        for step in range(taken[0], taken[0] + of_round(config)):
            training.backward(step)
            training.update(step)
        taken[0] += of_round(config)

    return steps


def of_round(config: TrainConfig) -> int:
    """Steps of one call of `round_of`."""
    return 2 if config.outer is Outer.NONE else config.meets.inner_steps


def once(config: TrainConfig) -> None:
    """On each rank, to be traced: a round, or two synchronous steps."""
    round_of(config)()


def in_turns(ways: dict[str, TrainConfig]) -> dict[str, list[float]]:
    """On each rank: seconds of each round of each way."""
    return rows.interleaved({name: round_of(config) for name, config in ways.items()}, ROUNDS, settle)


def measure(report: Callable[[Row], None]) -> None:
    """Losses, bytes, and seconds at each rate."""
    with Cluster(NODES, nodes=NODES, link=FREE, timeout=None, preload=("torch._dynamo", "reference.train")) as cluster:
        loss = cluster.run(held_out, SYNCHRONOUS)[0]
        report(rows.plain(f"synchronous, {STEPS} steps: held-out loss", loss, "nats"))
        needed = {"synchronous": STEPS}
        for name, config in list(WAYS.items())[1:]:
            needed[name], found = steps_needed(cluster, config, loss)
            report(rows.plain(f"{name}: steps to that loss", needed[name], ""))
            report(rows.below(f"{name}: held-out loss", found, 1.03 * loss, "nats"))
        report_bytes(cluster, needed, report)
        for rate, bar in RATES.items():
            for node in range(NODES):
                cluster.slow(node, rate)
            found = rows.medians(rows.of_ranks(cluster.run(in_turns, WAYS)))
            seconds = {name: needed[name] * found[name] / of_round(config) for name, config in WAYS.items()}
            for name in list(WAYS)[1:]:
                label = f"{rate}, {name}: time to the loss"
                report(rows.faster(label, seconds[name], seconds["synchronous"], "s", bar))


def report_bytes(cluster: Cluster, needed: dict[str, int], report: Callable[[Row], None]) -> None:
    """What the rank that sends most sends until its loss is that of the synchronous run, from the trace of a round."""
    sent = {}
    for name, config in WAYS.items():
        _, trace = cluster.trace(once, config)
        sent[name] = needed[name] * max(trace.bytes_sent) / of_round(config) / 1e6
    for name in list(WAYS)[1:]:
        report(rows.faster(f"{name}: sent to the loss", sent[name], sent["synchronous"], "MB", FEWER_BYTES))


if __name__ == "__main__":
    rows.main("decentralized", measure)
