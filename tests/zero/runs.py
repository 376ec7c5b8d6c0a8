"""Runs that save and resume: a model whose shapes divide by nothing, in any form, on some ranks of a cluster."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn, optim
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from reference.data_parallel import DataParallel, DistributedDataParallel, Replicated, flat, gather_full, naive
from reference.memory.loss_scaling import LossScaler
from reference.memory.precision import PRECISIONS
from reference.oracle import alone, record, relative_difference
from reference.zero import FullySharded, Sharded
from reference.zero.checkpoint import load, save

Make = Callable[[list[nn.Parameter]], Optimizer]
SAMPLES = 24
ADAM = partial(optim.Adam, lr=0.01)


class Net(nn.Module):
    """Shapes that divide by nothing, a parameter of shape [], and a frozen one."""

    def __init__(self, width: int = 7) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, width), nn.Linear(width, 1, bias=False)
        self.scale, self.fixed = nn.Parameter(torch.tensor(2.0)), nn.Parameter(torch.ones(width), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(x)) * self.fixed * self.scale
        return self.last(hidden.to(self.last.weight.dtype))  # not all forms round what is frozen


def net(seed: int, **options: int) -> Net:
    torch.manual_seed(seed)
    return Net(**options).double()


def loss_of(model: nn.Module, step: int, rank: int = 0, ranks: int = 1) -> Tensor:
    """This rank's part of the loss of a step's batch."""
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(SAMPLES, 3, generator=generator, dtype=torch.float64).tensor_split(ranks)[rank]
    return (model(x.to(model.first.weight.dtype)).double() - 1).square().sum() / SAMPLES


def own(groups: Iterable[Iterable[int]]) -> ProcessGroup | None:
    """Make groups of ranks, all ranks together; the one that this rank is in."""
    made = {tuple(ranks): dist.new_group(list(ranks)) for ranks in groups}
    return next((group for ranks, group in made.items() if dist.get_rank() in ranks), None)


@dataclass(frozen=True)
class Run:
    """A new model in some form on the first ranks of a cluster."""

    kind: str
    ranks: int
    steps: int = 2
    precision: str = "fp64"
    make: Make = ADAM

    def start(self, seed: int) -> tuple[Net, DataParallel, Optimizer, ProcessGroup] | None:
        """All ranks of the cluster call this; None on those that are not part of it."""
        group, half = own([range(self.ranks)]), self.ranks // 2
        if self.kind == "hsdp":
            shards, replicas = own([range(half), range(half, 2 * half)]), own([i, half + i] for i in range(half))
        if group is None:
            return None
        precision = PRECISIONS[self.precision]
        model = net(seed).to(precision.master)
        match self.kind:
            case "naive" | "flat":
                form = Replicated(model, group, precision, naive if self.kind == "naive" else flat)
            case "ddp":
                form = DistributedDataParallel(model, group, precision, bucket_bytes=100)
            case "zero1" | "zero2":
                form = Sharded(model, group, int(self.kind[-1]), precision, bucket_bytes=100)
            case "fsdp":
                form = FullySharded(model, group, precision)
            case "hsdp":
                form = FullySharded(model, shards, precision, replicas=replicas)
        masters = [part.master for part in form.parts] or [nn.Parameter(torch.zeros(0))]  # a rank may have nothing
        return model, form, self.make(masters), group


def train(
    model: Net, form: DataParallel, optimizer: Optimizer, group: ProcessGroup, steps: Iterable[int]
) -> list[float]:
    """The losses of these steps."""
    losses = []
    for step in steps:
        with form.micro_batch(last=True):
            loss = loss_of(model, step, dist.get_rank(group), dist.get_world_size(group))
            loss.backward()
        form.reduce_gradients()
        optimizer.step()
        form.end_step()
        total = loss.detach()
        dist.all_reduce(total, group=group)
        losses.append(total.item())
    return losses


def extra(step: int) -> dict[str, Any]:
    return {"sampler": {"consumed": SAMPLES * step}, "scaler": LossScaler().state_dict(), "note": [None, True, 0.1]}


def relay(runs: list[Run], folder: Path) -> tuple[list[float], dict[str, Tensor]] | None:
    """Each run resumes from what the one before it has saved, with a new model that had other weights."""
    losses, masters = [], {}
    for number, run in enumerate(runs):
        taken = sum(before.steps for before in runs[:number])
        if (started := run.start(seed=number)) is None:
            continue
        model, form, optimizer, group = started
        if number:
            assert load(folder, form, optimizer, group) == (taken, extra(taken))
            now = gather_full(form)
            assert dist.get_rank() or all(torch.equal(now[name], value) for name, value in masters.items())
        losses += train(model, form, optimizer, group, range(taken, taken + run.steps))
        save(folder, form, optimizer, taken + run.steps, extra(taken + run.steps), group)
        masters = gather_full(form)
    return losses, masters


def one_process(steps: int, make: Make = ADAM) -> tuple[list[float], dict[str, Tensor]]:
    model = net(seed=0)
    optimizer = make([parameter for parameter in model.parameters() if parameter.requires_grad])
    found = record(model, alone(model, optimizer, partial(loss_of, model), steps))
    return found.losses, found.parameters


def assert_same(mine: tuple, oracle: tuple, bound: float) -> None:
    assert relative_difference(mine[0], oracle[0]) <= bound
    assert mine[1].keys() == oracle[1].keys()
    assert all(relative_difference(mine[1][name], value) <= bound for name, value in oracle[1].items())


def begun(folder: Path, steps: int) -> tuple[Net, DataParallel, Optimizer, ProcessGroup] | None:
    """A run of ZeRO-1 on two ranks that has saved after each of its steps."""
    if started := Run("zero1", 2).start(seed=0):
        for step in range(steps):
            train(*started, [step])
            save(folder, *started[1:3], step + 1, {}, started[3])
    return started


def begin(folder: Path, steps: int) -> None:
    begun(folder, steps)
