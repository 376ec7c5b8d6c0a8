"""What every form of data parallelism must go through as one process does: small models, batches, and comparisons.

Plain data and functions: tests on gloo and on NCCL can share them.

A run is written down as tensors by name: the loss and the gradient's norm of every step, every gradient of the last
one, every parameter after it, and what the model then says. So "equal to one process" compares two dicts.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from reference.data_parallel.full_parameters import gather_full
from reference.data_parallel.gradient_sync import DataParallel
from reference.data_parallel.norm import gradient_norm
from reference.data_parallel.replicated import DistributedDataParallel, Replicated, flat, naive
from reference.memory.precision import PRECISIONS
from reference.models import GPT, GPTConfig, create, token_loss
from reference.oracle import alone

Record = dict[str, Tensor]
Make = Callable[..., DataParallel]
"""(model, group, precision=...) -> a form."""

STEPS = 3  # the first, one with moments of one before, one with moments of moments
UNTIED = GPTConfig(layers=2, width=12, heads=3, kv_heads=1, hidden=7, vocabulary=17)  # sizes that divide by little
TIED = GPTConfig(layers=2, width=12, heads=3, kv_heads=1, hidden=7, vocabulary=17, tied=True)
FROZEN = ("embedding", "blocks.0.attention")  # parts of a model, the second of one of its blocks
BUCKET = 3000  # bytes: a model of 1740 float64 falls into several

FORMS: Mapping[str, Make] = MappingProxyType(
    {
        "naive": partial(Replicated, reduce=naive),
        "flat": partial(Replicated, reduce=flat),
        "DDP": partial(DistributedDataParallel, bucket_bytes=BUCKET),
        "DDP, one bucket": DistributedDataParallel,
        "DDP, a bucket each": partial(DistributedDataParallel, bucket_bytes=0),
    }
)

OPTIMIZERS: Mapping[str, Callable[..., torch.optim.Optimizer]] = MappingProxyType(
    {
        "Adam": partial(torch.optim.Adam, lr=1e-2),
        "AdamW": partial(torch.optim.AdamW, lr=1e-2, weight_decay=0.1),
        "SGD": partial(torch.optim.SGD, lr=0.5, momentum=0.9),
    }
)


class Task(Protocol):
    """What is learned, and from what. Must be hashable."""

    def model(self, dtype: torch.dtype) -> nn.Module:
        """The same everywhere."""

    def loss(self, model: nn.Module, step: int, part: int, parts: int) -> Tensor:
        """The part of the loss that one of so many micro-batches of a step makes."""

    def whole_loss(self, model: nn.Module, step: int, parts: int) -> Tensor:
        """The loss of a step whose batch is cut into so many micro-batches."""

    def output(self, model: nn.Module) -> Tensor:
        """What the model says to something that it was not trained on."""


@dataclass(frozen=True)
class Language:
    """A GPT and random tokens. Micro-batches may be one row longer than others."""

    config: GPTConfig = UNTIED
    frozen: tuple[str, ...] = ()  # beginnings of the names of parameters that do not learn
    rows: int = 26
    sequence: int = 5

    def model(self, dtype: torch.dtype) -> GPT:
        model = create(GPT, self.config, dtype=dtype)
        for name, parameter in model.named_parameters():
            parameter.requires_grad = not name.startswith(self.frozen) if self.frozen else True
        return model

    def loss(self, model: nn.Module, step: int, part: int, parts: int) -> Tensor:
        rows = self.windows(step).tensor_split(parts)[part]
        return token_loss(model(rows[:, :-1]), rows[:, 1:], self.rows * self.sequence)

    def whole_loss(self, model: nn.Module, step: int, parts: int) -> Tensor:
        return self.loss(model, step, 0, 1)  # at once: it does not matter how it was cut

    def output(self, model: nn.Module) -> Tensor:
        return model(self.windows(step=-1)[:2])

    def windows(self, step: int) -> Tensor:
        """Tokens of a step, each row with one more that only is a target: [rows, sequence + 1]."""
        generator = torch.Generator().manual_seed(100 + step)
        return torch.randint(self.config.vocabulary, (self.rows, self.sequence + 1), generator=generator)


@dataclass(frozen=True)
class TwoLayers:
    """Of 3·4 + 4 and 4·2 + 2 parameters: 26, few enough to count by hand what is sent."""

    def model(self, dtype: torch.dtype) -> nn.Module:
        torch.manual_seed(5)
        return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)).to(dtype)

    def loss(self, model: nn.Module, step: int, part: int, parts: int) -> Tensor:
        return self.output(model).square().sum() / parts

    def whole_loss(self, model: nn.Module, step: int, parts: int) -> Tensor:
        return self.loss(model, step, 0, 1)

    def output(self, model: nn.Module) -> Tensor:
        return model(torch.ones(1, 3, dtype=next(model.parameters()).dtype))


class Branch(nn.Module):
    """A layer that is sometimes left out."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.always, self.sometimes = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor, used: bool) -> Tensor:
        """[B, D] -> [B, D]."""
        x = self.always(x).tanh()
        return x + self.sometimes(x) if used else x


def by_some(branch: int, step: int, parts: int) -> range:
    """Which ranks use the optional part of a branch: all, in the first micro-batches, or one and then none."""
    return (range(parts), range(parts // 2), range(step == 0))[branch]


@dataclass(frozen=True)
class LeavingOut:
    """A chain of branches. `sometimes` of branch i is used in a step by micro-batches in `users(i, step, parts)`."""

    users: Callable[[int, int, int], range]
    branches: int = 3
    width: int = 5

    def model(self, dtype: torch.dtype) -> nn.Module:
        torch.manual_seed(4)
        return Chain([Branch(self.width) for _ in range(self.branches)]).to(dtype)

    def loss(self, model: nn.Module, step: int, part: int, parts: int) -> Tensor:
        used = tuple(part in self.users(i, step, parts) for i in range(self.branches))
        return model(self._input(step, part), used).square().sum() / parts

    def whole_loss(self, model: nn.Module, step: int, parts: int) -> Tensor:
        return torch.stack([self.loss(model, step, part, parts) for part in range(parts)]).sum()

    def output(self, model: nn.Module) -> Tensor:
        return model(self._input(-1, 0), (True,) * self.branches)

    def _input(self, step: int, part: int) -> Tensor:
        generator = torch.Generator().manual_seed(1000 * (step + 1) + part)
        return torch.randn(4, self.width, generator=generator, dtype=torch.float64)


class Chain(nn.Module):
    """Branches one after the other."""

    def __init__(self, branches: list[Branch]) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor, used: tuple[bool, ...]) -> Tensor:
        """[B, D] -> [B, D]."""
        for branch, here in zip(self.branches, used, strict=True):
            x = branch(x, here)
        return x


@dataclass(frozen=True)
class Case:
    """One training of one form."""

    name: str
    make: Make
    task: Task = field(default_factory=Language)
    optimizer: str = "Adam"
    micro_batches: int = 1  # of each rank in a step
    precision: str = "fp64"
    scale: float = 1.0  # of the loss, while gradients are computed
    steps: int = STEPS

    def __str__(self) -> str:
        return f"{self.name}, {self.optimizer}, {self.micro_batches} micro-batches, {self.precision}, {self.task}"


def train(group: ProcessGroup, case: Case) -> Record:
    """Go through `case` on the ranks of `group`."""
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    precision, micro_batches = PRECISIONS[case.precision], case.micro_batches
    model = case.task.model(precision.master)
    form = case.make(model, group, precision=precision)
    masters = [part.master for part in form.parts] or [nn.Parameter(torch.empty(0))]  # a rank may have no part
    optimizer = OPTIMIZERS[case.optimizer](masters)
    record: Record = {}
    for step in range(case.steps):
        losses = []
        for k in range(micro_batches):
            with form.micro_batch(last=k == micro_batches - 1):
                loss = case.task.loss(model, step, rank * micro_batches + k, n * micro_batches)
                (loss * case.scale).backward()
            losses.append(loss.detach().double())
        form.reduce_gradients()
        gradients = [part.master.grad for part in form.parts]
        for gradient in gradients:
            if gradient is not None:
                gradient /= case.scale
        record |= {f"loss of step {step}": summed(losses, group)}
        record |= {f"norm in step {step}": gradient_norm(gradients, form.shard_groups)}
        if step == case.steps - 1:
            last = gather_full(form, gradient_of)
        optimizer.step()
        form.end_step()
    return record | ending(last, gather_full(form), case.task, model)


def gradient_of(part: object) -> Tensor | None:
    return part.master.grad


@lru_cache
def one_process(
    task: Task, optimizer: str = "Adam", parts: int = 1, zeros: bool = False, steps: int = STEPS
) -> Mapping[str, Tensor]:
    """The same in one process, in float64, by the oracle.

    Args:
        task: what to learn.
        optimizer: by the name in `OPTIMIZERS`.
        parts: micro-batches of all ranks together.
        zeros: what was not used has a gradient of zero, instead of none.
        steps: of the optimizer.
    """
    model = task.model(torch.float64)
    learning = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    update = OPTIMIZERS[optimizer](list(learning.values()))
    record: Record = {}
    for number, step in enumerate(
        alone(model, update, lambda step: task.whole_loss(model, step, parts), steps, zeros=zeros)
    ):
        record |= {f"loss of step {number}": step.loss, f"norm in step {number}": step.gradient_norm}
    return MappingProxyType(record | ending(step.gradients, learning, task, model))


@torch.no_grad()
def ending(gradients: Mapping[str, Tensor], parameters: Mapping[str, Tensor], task: Task, model: nn.Module) -> Record:
    """Every gradient of the last step, every parameter after it, and what the model says then."""
    record = {f"gradient of {name}": gradient for name, gradient in gradients.items()}
    record |= {f"parameter {name}": parameter.detach().clone() for name, parameter in parameters.items()}
    return record | {"output": task.output(model)}


def summed(losses: list[Tensor], group: ProcessGroup) -> Tensor:
    """The sum over micro-batches and ranks."""
    loss = torch.stack(losses).sum()
    dist.all_reduce(loss, group=group)
    return loss


FLOOR = 1e-3
"""A tensor counts as no smaller than this part of the largest one of its kind: where the true value is zero, as for an
unused parameter, there is no relative error, and the absolute one is bounded."""


def differences(mine: Record, oracle: Mapping[str, Tensor]) -> dict[str, float]:
    """Of each tensor the largest absolute difference, relative to the oracle's largest element.

    Infinite where a tensor is missing, where there is one too many, and where a number is none.
    """
    largest: dict[str, float] = {}
    for name, value in oracle.items():
        kind = name.split(" ", 1)[0]
        largest[kind] = max(largest.get(kind, 0.0), float(value.abs().max()))
    found = dict.fromkeys(mine.keys() ^ oracle.keys(), float("inf"))
    for name in mine.keys() & oracle.keys():
        scale = max(float(oracle[name].abs().max()), FLOOR * largest[name.split(" ", 1)[0]])
        difference = float((mine[name].double() - oracle[name]).abs().max()) / scale
        found[name] = difference if difference == difference else float("inf")
    return found


def same_bits(one: Record, other: Record) -> bool:
    """Whether two ranks have written down the same, to the last bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
