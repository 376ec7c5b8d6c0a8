"""The same late gradients in one process: every micro-batch by itself, with the weights that the papers say.

It is no case of `reference.oracle.alone`: there a step's forward and backward see one version of the weights.
"""

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from reference.models import GPTConfig, create, token_loss
from reference.models.data import Batches
from reference.pipeline_parallel.stages import stage_of
from reference.zero_bubble.asynchronous import TrainingResult, TrainingSetup, train
from reference.zero_bubble.methods import FLUSHING, PIPEDREAM, TWO_BUFFERED, Method

CONFIG = GPTConfig(layers=4, width=8, heads=2, kv_heads=1, hidden=12, vocabulary=17)
TEXT = np.random.default_rng(0).integers(CONFIG.vocabulary, size=2000, dtype=np.uint8)
CPU = torch.device("cpu")
OPTIMIZERS = {
    "momentum": partial(torch.optim.SGD, momentum=0.9, lr=0.0),
    "adamw": partial(torch.optim.AdamW, betas=(0.9, 0.95), weight_decay=0.1, lr=0.0),
}
RATES = {"momentum": 0.3, "adamw": 0.01}


def setup_of(m: int, optimizer: str, updates: int = 12) -> TrainingSetup:
    """Windows of noise: to be wrong about a version is to be wrong about everything."""
    batches, rate = Batches.of(TEXT, 5, 12), RATES[optimizer]
    return TrainingSetup(
        CONFIG, batches, updates, m, OPTIMIZERS[optimizer], lambda t: rate / (1 + 0.1 * t), dtype=torch.float64
    )


def on_ranks(method: Method, p: int, wanted: TrainingSetup) -> TrainingResult | None:
    """Train on the first p ranks."""
    group = dist.new_group(list(range(p)))
    return train(method, wanted, group, CPU) if dist.get_rank() < p else None


@dataclass(frozen=True)
class Papers:
    """Which version of stage s of p a micro-batch k sees, and how late it is. The first `flushed` updates flush."""

    method: Method
    p: int
    m: int
    flushed: int = 0

    def forward(self, s: int, k: int) -> int:
        update = k // self.m
        if self.method is FLUSHING or update < self.flushed:
            return update
        begun = self.flushed * self.m
        if self.method is TWO_BUFFERED:
            return max(self.flushed, update - 1) if self.p > 1 else update
        return self.flushed + max(0, k - begun - (self.p - 1 - s)) // self.m

    def backward(self, s: int, k: int) -> int:
        return self.forward(s, k) if self.method in (PIPEDREAM, TWO_BUFFERED) else k // self.m

    def tau(self, s: int, update: int) -> float:
        of_batch = range(update * self.m, (update + 1) * self.m)
        return sum(self.backward(s, k) - self.forward(s, k) for k in of_batch) / self.m


class OneProcess:
    """All stages, with every version of their weights."""

    def __init__(self, papers: Papers, wanted: TrainingSetup) -> None:
        self.papers, self.setup, per = papers, wanted, CONFIG.layers // papers.p
        pieces = [range(per * s, per * (s + 1)) for s in range(papers.p)]
        self.stages = [
            create(partial(stage_of, blocks=blocks), CONFIG, wanted.seed, CPU, wanted.dtype) for blocks in pieces
        ]
        self.optimizers = [wanted.optimizer(list(stage.parameters())) for stage in self.stages]
        self.history = [[self.now(s)] for s in range(papers.p)]
        self.velocity = [[torch.zeros_like(w) for w in versions[0]] for versions in self.history]

    def learn(self) -> TrainingResult:
        losses = []
        for update in range(self.setup.updates):
            of_batch = range(update * self.setup.micro_batches, (update + 1) * self.setup.micro_batches)
            losses.append(sum(self.micro_batch(k) for k in of_batch))
            for s in range(self.papers.p):
                self.update(s, update)
        return TrainingResult(losses, {n: p.detach() for stage in self.stages for n, p in stage.named_parameters()})

    def micro_batch(self, k: int) -> float:
        """Forward; then other weights in the very same memory; then backward."""
        m, batches = self.setup.micro_batches, self.setup.batches
        x, targets = batches.of_step(k // m, k % m, m)
        for s, stage in enumerate(self.stages):
            self.put(s, self.history[s][self.papers.forward(s, k)])
            x = stage(x)
        loss = token_loss(x, targets, batches.tokens)
        for s in range(self.papers.p):
            weights = self.history[s][self.papers.backward(s, k)]
            if self.papers.method.pipemare:
                tau = self.papers.tau(s, k // m)
                weights = [w - tau * v for w, v in zip(weights, self.velocity[s], strict=True)]
            self.put(s, weights)
        loss.backward()
        return loss.item()

    def update(self, s: int, update: int) -> None:
        self.put(s, self.history[s][update])
        rate, pipemare = self.setup.rate(update), self.papers.method.pipemare
        taus = [self.papers.tau(s, t) for t in range(self.setup.updates)]
        if pipemare and taus[update] > 1:
            since = update - next(t for t, tau in enumerate(taus) if tau > 0)
            rate /= taus[update] ** max(0.0, 1 - since / pipemare.updates)
        self.optimizers[s].param_groups[0]["lr"] = rate
        self.optimizers[s].step()
        self.optimizers[s].zero_grad()
        if pipemare:
            gamma = pipemare.remembered ** (1 / max(taus)) if max(taus) else 0.0
            changes = [after - before for after, before in zip(self.now(s), self.history[s][-1], strict=True)]
            self.velocity[s] = [gamma * v + (1 - gamma) * c for v, c in zip(self.velocity[s], changes, strict=True)]
        self.history[s].append(self.now(s))

    def now(self, s: int) -> list[Tensor]:
        return [parameter.detach().clone() for parameter in self.stages[s].parameters()]

    def put(self, s: int, weights: list[Tensor]) -> None:
        for parameter, weight in zip(self.stages[s].parameters(), weights, strict=True):
            parameter.data.copy_(weight)  # behind autograd's back: what it has kept of a weight changes with it
