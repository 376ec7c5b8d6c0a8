"""Tensor and sequence parallelism by hand against DTensor's `parallelize_module`: a training step of a GPT on 4 ranks.

A step is forward, loss, backward, Adam, and forgetting the gradients. All programs live on the same ranks at the same
time, on gloo, and take their steps in turns; a step takes as long as on its slowest rank; medians. They train the same
model on the same data with the same Adam, and in the end their losses must be equal. `ratio` is torch's time over ours.

torch's plan is the one that its tutorials and TorchTitan recommend: inputs of attention and feed-forward are prepared
once for all of their projections, logits stay split, and the loss is `loss_parallel`. Ours comes out of `parallelize`,
as in `rankwise train`. The asynchronous form hides messages behind matrix products; where ranks share
cores there is nothing to hide behind, so it has no bar (`rankwise bench overlap` shows that it hides).
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial

import rows
import torch
import torch.distributed as dist
from rows import Row
from torch import Tensor, nn
from torch.distributed import DeviceMesh, ProcessGroup

from reference.cluster import Cluster
from reference.memory.precision import PRECISIONS
from reference.models import GPT, GPTConfig, create, token_loss
from reference.models.data import Batches, python_text
from reference.parallelize import Plan, parallelize

RANKS = 4
MODEL = GPTConfig(layers=4, width=256, heads=8, kv_heads=4, hidden=704)  # of bytes: 3.1 million parameters
LEARNING_RATE = 1e-3
IMPORTS = ("torch._dynamo", "torch.distributed.tensor.parallel")  # once, not once on each rank

Step = Callable[[Tensor, Tensor], Tensor]
"""From tokens [B, S] and their targets to the loss."""


@dataclass(frozen=True)
class Load:
    """How much the ranks compute between two updates."""

    name: str
    sequence: int  # S
    batch: int  # B, of all ranks: they read the same
    rounds: int
    bar: float


LOADS = (Load("compute-heavy", 128, 8, 21, 1.4), Load("communication-heavy", 32, 1, 61, 2.0))
PLANS: Mapping[str, Plan] = {
    "TP": Plan(tensor_parallel=RANKS),
    "SP": Plan(tensor_parallel=RANKS, sequence_parallel=True),
}
ASYNCHRONOUS = Plan(tensor_parallel=RANKS, sequence_parallel=True, async_tensor_parallel=True)


def measure(report: Callable[[Row], None]) -> None:
    """Both forms under both loads."""
    with Cluster(RANKS, preload=IMPORTS) as cluster:
        for load in LOADS:
            times, losses = zip(*cluster.run(on_rank, load), strict=True)
            check(losses[0])
            found = rows.medians(rows.of_ranks(list(times)))
            for form in PLANS:
                name = f"{form}, {load.name}"
                report(rows.faster(name, found[form], found[f"torch {form}"], "s", load.bar))
            report(rows.faster(f"asynchronous (against SP), {load.name}", found["async"], found["SP"], "s"))
            report(rows.faster(f"one process (against TP), {load.name}", found["alone"], found["TP"], "s"))


def check(losses: Mapping[str, float]) -> None:
    """See that all programs have trained the same model.

    Raises:
        SystemExit: if they have not.
    """
    right = losses["alone"]
    for name, loss in losses.items():
        if not abs(loss - right) < 1e-3 * right:  # float32 in another order is off by 1e-6; a step left out by 1e-2
            raise SystemExit(f"{name} ends with a loss of {loss:.6f}, one process with {right:.6f}")


def on_rank(load: Load) -> tuple[dict[str, list[float]], dict[str, float]]:
    """The seconds of each program's steps on this rank, and the last one's loss."""
    group = rows.plain_gloo()
    batches = Batches.of(python_text(), load.sequence, load.batch)
    runs = {name: Run(step, batches) for name, step in programs(group).items()}
    times = rows.interleaved(runs, load.rounds, partial(dist.barrier, group))
    return times, {name: run.loss for name, run in runs.items()}


class Run:
    """Takes the next step of a program each time it is called."""

    def __init__(self, step: Step, batches: Batches) -> None:
        self._step, self._batches = step, batches
        self._taken = 0
        self.loss = float("nan")

    def __call__(self) -> None:
        self.loss = self._step(*self._batches.of_step(self._taken)).item()
        self._taken += 1


def programs(group: ProcessGroup) -> dict[str, Step]:
    """All that is compared, each with a model of its own."""
    mesh = DeviceMesh.from_group(group, "cpu")
    return {
        **{form: ours(plan, group) for form, plan in PLANS.items()},
        **{f"torch {form}": torchs(mesh, plan.sequence_parallel) for form, plan in PLANS.items()},
        "async": ours(ASYNCHRONOUS, group),
        "alone": plainly(create(GPT, MODEL, seed=0), token_loss),
    }


def ours(plan: Plan, group: ProcessGroup) -> Step:
    """Training as `reference.train` does it."""
    parallel = parallelize(MODEL, plan, group, torch.device("cpu"), PRECISIONS["fp32"])
    optimizer = torch.optim.Adam([part.master for part in parallel.form.parts], LEARNING_RATE)

    def step(tokens: Tensor, targets: Tensor) -> Tensor:
        with parallel.form.micro_batch(last=True):
            loss = parallel.loss(parallel.model(tokens), targets, targets.numel())
            loss.backward()
        parallel.form.reduce_gradients()
        optimizer.step()
        parallel.form.end_step()
        return loss.detach()

    return step


def torchs(mesh: DeviceMesh, sequence_parallel: bool) -> Step:
    """Training with DTensors."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        loss_parallel,
        parallelize_module,
    )

    model = create(GPT, MODEL, seed=0)
    outside = Shard(1) if sequence_parallel else Replicate()
    whole = {"input_layouts": (outside,), "desired_input_layouts": (Replicate(),)}
    norm = {"norm": SequenceParallel()} if sequence_parallel else {}
    ends = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=outside),
        "head": ColwiseParallel(input_layouts=outside, output_layouts=Shard(-1), use_local_output=False),
    }
    parallelize_module(model, mesh, ends | norm)
    for block in model.blocks:
        norms = {f"{half}_norm": SequenceParallel() for half in ("attention", "feed_forward")}
        plan = {
            "attention": PrepareModuleInput(input_layouts=(outside, None), desired_input_layouts=(Replicate(), None)),
            "attention.query": ColwiseParallel(),
            "attention.key": ColwiseParallel(),
            "attention.value": ColwiseParallel(),
            "attention.output": RowwiseParallel(output_layouts=outside),
            "feed_forward": PrepareModuleInput(**whole),
            "feed_forward.gate": ColwiseParallel(),
            "feed_forward.up": ColwiseParallel(),
            "feed_forward.down": RowwiseParallel(output_layouts=outside),
        }
        parallelize_module(block, mesh, plan | (norms if sequence_parallel else {}))
    return plainly(model, token_loss, loss_parallel)


def plainly(
    model: nn.Module,
    loss_of: Callable[[Tensor, Tensor, int], Tensor],
    context: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Step:
    """Training as it is usually written."""
    optimizer = torch.optim.Adam(model.parameters(), LEARNING_RATE)

    def step(tokens: Tensor, targets: Tensor) -> Tensor:
        with context():
            loss = loss_of(model(tokens), targets, targets.numel())
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


if __name__ == "__main__":
    rows.main("tensor-parallel", measure)
