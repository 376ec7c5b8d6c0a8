"""Compressed gradients against torch's own hooks of DDP: PowerSGD of rank 4 and fp16, a step of a GPT on 4 ranks.

A step is forward, backward and the sum of gradients, of one short window on each rank, so that most of it is the sum.
Ours and torch's take their steps in turns on the same ranks, the same gloo group and the same model; a step takes as
long as on its slowest rank; medians over several starts of the ranks. What they end with is compared by `rankwise bench
convergence`. torch's hook of bf16 takes a GPU.
"""

from collections.abc import Callable
from functools import partial

import rows
import torch
import torch.distributed as dist
from convergence import IMPORTS, RANK, hooked
from rows import Row

from reference.cluster import Cluster
from reference.compression.compressed import Compressed
from reference.compression.low_rank import PowerSGD
from reference.compression.memory import HalfPrecision, MakeCompressor
from reference.data_parallel.replicated import BUCKET_BYTES
from reference.models import GPT, GPTConfig, create, token_loss
from reference.models.data import Batches, python_text

RANKS, ROUNDS = 4, 15
MODEL = GPTConfig(layers=4, width=256, heads=8, kv_heads=4, hidden=704)  # of bytes: 3.1 million parameters
OURS: dict[str, MakeCompressor] = {
    "powersgd": partial(PowerSGD, rank=RANK),
    "fp16": partial(HalfPrecision, dtype=torch.float16),
}


def measure(report: Callable[[Row], None], starts: int = rows.STARTS, rounds: int = ROUNDS) -> None:
    """Each of ours beside torch's."""
    for hook in OURS:
        found = rows.medians(rows.joined([on_new_ranks(hook, rounds) for _ in range(starts)]))
        report(rows.faster(f"a step with {hook}, against torch's hook", found["ours"], found["torch"], "s", bar=1))


def on_new_ranks(hook: str, rounds: int) -> dict[str, list[float]]:
    """Seconds of each program's steps."""
    with Cluster(RANKS, preload=IMPORTS) as cluster:
        return rows.of_ranks(cluster.run(on_rank, hook, rounds))


def on_rank(hook: str, rounds: int) -> dict[str, list[float]]:
    """The same on this rank."""
    group = rows.plain_gloo()
    batches = Batches.of(python_text(), 32, RANKS)
    tokens, targets = batches.of_step(0, dist.get_rank(group), RANKS)
    model, peer = create(GPT, MODEL), create(GPT, MODEL)
    form = Compressed(model, group, OURS[hook], bucket_bytes=BUCKET_BYTES)
    wrapped = hooked(peer, group, hook)

    def ours() -> None:
        with form.micro_batch(last=True):
            token_loss(model(tokens), targets, batches.tokens).backward()
        form.reduce_gradients()
        form.end_step()

    def theirs() -> None:
        token_loss(wrapped(tokens), targets, batches.tokens // RANKS).backward()
        wrapped.zero_grad()

    for _ in range(3):  # torch's begins to compress with the third step
        theirs()
    return rows.interleaved({"ours": ours, "torch": theirs}, rounds, partial(dist.barrier, group))


if __name__ == "__main__":
    rows.main("gradient-hooks", measure)
