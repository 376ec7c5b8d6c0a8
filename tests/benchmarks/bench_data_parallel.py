"""DDP, ZeRO-1 and FSDP by hand against torch's own: a training step of a GPT on 4 ranks.

A step is forward, backward, Adam, and forgetting the gradients. Each form meets its peer on the same ranks, on the same
gloo group, and they take their steps in turns; a step takes as long as on its slowest rank; medians over several starts
of the ranks. They train the same model on the same data with the same Adam (fused, as in `reference.train`), everything
else of torch's as it comes, and in the end their losses must be equal. `ratio` is torch's time over ours. Naive, flat
and the ceiling (no communication: every rank trains a model of its own) meet torch DDP afterwards, without a bar. Only
those who meet have a model: others would take their room in the caches.

The batch is that of one rank: 4 ranks cannot share a single window. Both FSDPs gather each block, and the rest of the
model as one more unit, so they send the same but for that rest (4 % of the parameters), which torch keeps from forward
to backward and ours gathers again.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import rows
import torch
import torch.distributed as dist
from rows import Row
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from reference.cluster import Cluster
from reference.data_parallel.gradient_sync import DataParallel
from reference.data_parallel.replicated import DistributedDataParallel, Replicated, flat, naive
from reference.models import GPT, GPTConfig, create, token_loss
from reference.models.data import Batches, python_text
from reference.zero.fully_sharded import FullySharded
from reference.zero.sharded import Sharded

RANKS = 4
MODEL = GPTConfig(layers=4, width=256, heads=8, kv_heads=4, hidden=704)  # of bytes: 3.1 million parameters
IMPORTS = ("torch._dynamo", "torch.distributed.fsdp", "torch.distributed.optim")  # once, not once on each rank

ADAM = {"lr": 1e-3, "fused": True}
MEETINGS = (
    ("DDP", "torch DDP"),
    ("ZeRO-1", "torch ZeRO-1"),
    ("FSDP", "torch FSDP"),
    ("naive", "flat", "alone", "torch DDP"),
)

Step = Callable[[Tensor, Tensor, int], Tensor]
"""From tokens [B, S], their targets and the number of tokens of all ranks to this rank's part of the loss."""


@dataclass(frozen=True)
class Load:
    """How much a rank computes between two updates."""

    name: str
    sequence: int  # S
    batch: int  # B, of one rank
    rounds: int  # on each start of the ranks
    bars: Mapping[str, float]


LOADS = (
    Load("compute-heavy", 128, 8, 5, {"DDP": 1.0, "ZeRO-1": 1.0, "FSDP": 1.05}),
    Load("communication-heavy", 32, 1, 21, {"DDP": 1.1, "ZeRO-1": 1.2, "FSDP": 1.5}),
)


def measure(report: Callable[[Row], None]) -> None:
    """Every form under both loads."""
    for load in LOADS:
        starts = [on_new_ranks(load) for _ in range(rows.STARTS)]
        for names in MEETINGS:
            found = rows.medians(rows.joined([times[names] for times in starts]))
            *forms, peer = names
            for form in forms:
                bar = load.bars.get(form)
                against = "" if bar else " (against DDP)"
                report(rows.faster(f"{form}{against}, {load.name}", found[form], found[peer], "s", bar))


def on_new_ranks(load: Load) -> dict[tuple[str, ...], dict[str, list[float]]]:
    """Of each meeting, the seconds of each program's steps."""
    found, ends = {}, {}
    with Cluster(RANKS, preload=IMPORTS) as cluster:
        for names in MEETINGS:
            times, losses = zip(*cluster.run(on_rank, load, names), strict=True)
            ends |= {name: sum(parts[name] for parts in losses) for name in names}
            found[names] = rows.of_ranks(list(times))
    check(ends)
    return found


def check(losses: dict[str, float]) -> None:
    """See that all programs have trained the same model, and that one would notice if they had not.

    Raises:
        SystemExit: if they have not.
    """
    right = losses["torch DDP"]
    bound = abs(losses.pop("alone") - right) / 10  # float32 sums in another order are off by far less
    for name, loss in losses.items():
        if not abs(loss - right) < min(bound, 1e-3 * right):
            raise SystemExit(f"{name} ends with a loss of {loss:.6f}, torch DDP with {right:.6f}")


def on_rank(load: Load, names: Sequence[str]) -> tuple[dict[str, list[float]], dict[str, float]]:
    """The seconds of each program's steps on this rank, and its part of the last one's loss."""
    group = rows.plain_gloo()
    batches = Batches.of(python_text(), load.sequence, load.batch * RANKS)
    runs = {name: Run(PROGRAMS[name](group), batches, dist.get_rank(group)) for name in names}
    times = rows.interleaved(runs, load.rounds, partial(dist.barrier, group))
    return times, {name: run.loss for name, run in runs.items()}


class Run:
    """Takes the next step of a program each time it is called."""

    def __init__(self, step: Step, batches: Batches, rank: int) -> None:
        self._step, self._batches, self._rank = step, batches, rank
        self._taken = 0
        self.loss = float("nan")

    def __call__(self) -> None:
        tokens, targets = self._batches.of_step(self._taken, self._rank, RANKS)
        self.loss = self._step(tokens, targets, self._batches.tokens).item()
        self._taken += 1


def ours(make: Callable[[GPT, ProcessGroup], DataParallel], group: ProcessGroup) -> Step:
    """Training by one of our forms."""
    model = create(GPT, MODEL, seed=0)
    form = make(model, group)
    optimizer = torch.optim.Adam([part.master for part in form.parts], **ADAM)

    def step(tokens: Tensor, targets: Tensor, global_tokens: int) -> Tensor:
        with form.micro_batch(last=True):
            loss = token_loss(model(tokens), targets, global_tokens)
            loss.backward()
        form.reduce_gradients()
        optimizer.step()
        form.end_step()
        return loss.detach()

    return step


def torchs(make: Callable[[ProcessGroup], tuple[nn.Module, torch.optim.Optimizer]], group: ProcessGroup) -> Step:
    """Training by one of torch's, which average gradients over ranks: each rank divides by its own tokens alone."""

    model, optimizer = make(group)

    def step(tokens: Tensor, targets: Tensor, global_tokens: int) -> Tensor:
        loss = token_loss(model(tokens), targets, global_tokens // RANKS)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach() / RANKS

    return step


def with_adam(model: nn.Module) -> tuple[nn.Module, torch.optim.Optimizer]:
    """And an optimizer that updates the whole of it."""
    return model, torch.optim.Adam(model.parameters(), **ADAM)


def torch_ddp(group: ProcessGroup) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Peer of DDP."""
    return with_adam(nn.parallel.DistributedDataParallel(create(GPT, MODEL, seed=0), process_group=group))


def torch_zero_1(group: ProcessGroup) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Peer of ZeRO-1: ZeroRedundancyOptimizer, over DDP as in its documentation."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = nn.parallel.DistributedDataParallel(create(GPT, MODEL, seed=0), process_group=group)
    return model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, process_group=group, **ADAM)


def torch_fsdp(group: ProcessGroup) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Peer of FSDP: FSDP2, each block by itself and then the model."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    model, mesh = create(GPT, MODEL, seed=0), DeviceMesh.from_group(group, "cpu")
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return with_adam(fully_shard(model, mesh=mesh))


def alone(group: ProcessGroup) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The ceiling: no communication."""
    return with_adam(create(GPT, MODEL, seed=0))


PROGRAMS: Mapping[str, Callable[[ProcessGroup], Step]] = {
    "DDP": partial(ours, DistributedDataParallel),
    "torch DDP": partial(torchs, torch_ddp),
    "ZeRO-1": partial(ours, partial(Sharded, stage=1)),
    "torch ZeRO-1": partial(torchs, torch_zero_1),
    "FSDP": partial(ours, lambda model, group: FullySharded(model, group, units=[[block] for block in model.blocks])),
    "torch FSDP": partial(torchs, torch_fsdp),
    "naive": partial(ours, partial(Replicated, reduce=naive)),
    "flat": partial(ours, partial(Replicated, reduce=flat)),
    "alone": partial(torchs, alone),
}


if __name__ == "__main__":
    rows.main("data-parallel", measure)
