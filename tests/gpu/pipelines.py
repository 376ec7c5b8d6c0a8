"""The checks of pipelines that run on every rank: each returns what it found wrong, as those in `family.py`.

On GPUs each channel has a communicator of its own; on gloo all messages go through one group.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from family import CLOSE, EXACT, config_for, difference_of, shared_folder
from torch.distributed import ProcessGroup

from reference.memory.precision import PRECISIONS
from reference.memory.recompute import Recompute
from reference.models import GPTConfig
from reference.oracle import on_ranks, one_process, relative_difference
from reference.parallelize import DataParallelism, PipelineSchedule, Plan
from reference.train import Training, validation_loss
from reference.zero import checkpoint

MODEL = GPTConfig(layers=16, width=16, heads=4, kv_heads=2, hidden=24)  # two stages on each of 8 ranks
TIED = replace(MODEL, tied=True, dropout=0.1)


def sizes(n: int) -> Iterator[tuple[int, int]]:
    """Ranks along the pipe and the tensor axis, of n."""
    for p in (p for p in range(2, n + 1) if n % p == 0):
        yield from ((p, t) for t in (1, 2) if n // p % t == 0)


def plans(n: int, turn: int) -> Iterator[Plan]:
    """Every order once, with one form and one arrangement of the ranks: with others in another turn.

    Not in every way, since each makes groups of NCCL.
    """
    arrangements = list(sizes(n))
    for number, order in enumerate(PipelineSchedule):
        p, t = arrangements[(number + turn) % len(arrangements)]
        form = list(DataParallelism)[(number + turn) % len(DataParallelism)]
        recompute, m = tuple(Recompute)[number % len(Recompute)], (1, 3, p, 2 * p)[(number + turn) % 4]
        sliced = t > 1 and (number + turn) % 2 == 0
        replicas = (1 if n // p // t % 2 else 2) if form is DataParallelism.HSDP else None
        yield Plan(
            form,
            m,
            recompute,
            dp_replicate=replicas,
            tensor_parallel=t,
            sequence_parallel=sliced,
            pipeline_parallel=p,
            schedule=order,
        )


def piped(group: ProcessGroup, device: str) -> list[str]:
    """Every order equals one process in float64: losses, norms, gradients, parameters."""
    found, n = [], group.size()
    for turn, model in enumerate((MODEL, TIED)):
        for plan in plans(n, turn):
            config = replace(
                config_for(group, "fp64"), model=model, batch=plan.dp_size(n) * plan.micro_batches, steps=3
            )
            difference = difference_of(config, group, device, plan, one_process(config))
            found += [f"{plan}: {difference}"] if max(difference.values()) > EXACT else []
    return found


def piped_mixed(group: ProcessGroup, device: str) -> list[str]:
    """In bf16 and fp16 they learn what one process learns in float64."""
    found, p = [], group.size()
    for name, bound in CLOSE.items():
        config = replace(config_for(group, name), model=MODEL)
        expected = one_process(replace(config, precision=PRECISIONS["fp64"])).losses
        for order in (PipelineSchedule.ONE_F_ONE_B, PipelineSchedule.ZB_V):
            plan = Plan(DataParallelism.DDP, 4, pipeline_parallel=p, schedule=order)
            far = relative_difference(on_ranks(config, group, device, plan).losses, expected)
            found += [f"{order} in {name}: losses differ by {far:.2g}"] if far > bound else []
    return found


def piped_resumed(group: ProcessGroup, device: str) -> list[str]:
    """What a pipeline has saved, FSDP resumes; and both read held-out text alike."""
    config = replace(config_for(group, "fp64"), model=TIED)
    pipeline = Plan(DataParallelism.ZERO1, 4, pipeline_parallel=group.size(), schedule=PipelineSchedule.INTERLEAVED)
    first, second = (
        Training(config, group, torch.device(device), plan) for plan in (pipeline, Plan(DataParallelism.FSDP))
    )
    first.backward(0)
    first.update(0)
    with shared_folder(group, device) as folder:
        checkpoint.save(folder, first.form, first.optimizer, 1, {}, group)
        checkpoint.load(folder, second.form, second.optimizer, group)
    losses = [validation_loss(training) for training in (first, second)]
    return [] if abs(losses[0] - losses[1]) < EXACT else [f"losses after loading: {losses}"]
