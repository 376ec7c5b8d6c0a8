"""The run that every framework is given: one model, one seed, the same batches, and the curve of one process.

    for step in range(20):
        loss = mean over the batch's tokens of -log p(next token)
        loss.backward(); AdamW

An adapter takes this run by its framework's own means and yields the losses. Nothing is clipped, and the learning rate
is constant: what a framework does of its own accord then shows by itself. All is in float64 where a framework can: two
orders of additions then differ by about 1e-15 in a step, and a forgotten gradient by 1e-3 or more.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from reference.frameworks import in_rounds
from reference.models import GPTConfig, ModelConfig, architecture, create, token_loss
from reference.models.data import Batches, python_text
from reference.models.moe_config import Balance, MoEConfig
from reference.oracle import alone

DENSE = GPTConfig(layers=4, width=32, heads=4, kv_heads=2, hidden=96)
OUTER_RATE, OUTER_MOMENTUM = 0.7, 0.9  # of islands (Douillard et al. 2023)
EXPERTS = MoEConfig(layers=4, width=32, heads=4, kv_heads=2, hidden=96, experts=4, top_k=2, balance=Balance.NONE)


@dataclass(frozen=True)
class Course:
    """What is learned, and how a rank comes by its part of it."""

    config: ModelConfig = DENSE
    dtype: torch.dtype = torch.float64
    steps: int = 20
    batch: int = 8  # windows of all ranks and micro-batches
    sequence: int = 32
    rate: float = 3e-3
    seed: int = 0
    sgd: bool = False  # instead of AdamW
    islands: int = 1  # that train by themselves, each with its part of a batch, and meet by DiLoCo
    clients: tuple[int, ...] = ()  # that train by themselves, each with so many windows of a batch: FedAvg
    inner_steps: int = 5  # of a round of islands, or of clients
    folder: str = ""  # where a framework may save

    def model(self) -> nn.Module:
        """The whole model with its initial weights, which depend on their names and on nothing else."""
        return create(architecture, self.config, self.seed, dtype=self.dtype)

    def read(self, step: int, part: int = 0, parts: int = 1) -> tuple[Tensor, Tensor]:
        """Tokens and targets of one of so many parts of a batch: [batch / parts, sequence] each."""
        return Batches.of(python_text(), self.sequence, self.batch, self.seed).of_step(step, part, parts)

    def of_client(self, step: int, client: int) -> tuple[Tensor, Tensor]:
        """Tokens and targets of one of the clients: [its windows, sequence] each."""
        tokens, targets = (x.split(self.clients)[client] for x in self.read(step))
        return tokens, targets

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The mean over the tokens that are given: ranks with as many tokens each then take the mean of their means."""
        return token_loss(logits, targets, targets.numel())

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """AdamW, as `reference.train` has it; or SGD."""
        if self.sgd:
            return torch.optim.SGD(parameters, lr=self.rate)
        return torch.optim.AdamW(parameters, lr=self.rate, betas=(0.9, 0.95), weight_decay=0.1)


def one_process(course: Course) -> list[float]:
    """The losses that all others are held to."""
    if course.islands > 1:
        return in_rounds.islands(course, OUTER_RATE, OUTER_MOMENTUM)
    if course.clients:
        return in_rounds.clients(course)
    model = course.model()

    def loss(step: int) -> Tensor:
        tokens, targets = course.read(step)
        return course.loss(model(tokens), targets)

    steps = alone(model, course.optimizer(model.parameters()), loss, course.steps)
    return [step.loss.item() for step in steps]


def with_experts(**options: object) -> Course:
    """The same run of the model with experts."""
    return Course(EXPERTS, **options)
