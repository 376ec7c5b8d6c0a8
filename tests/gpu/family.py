"""The checks of the data-parallel family that the tests on GPUs run on every rank: each returns what it found wrong.

Each takes a group of all ranks and "cuda" or "cpu", so that the checks themselves can be tried without a GPU.
"""

import gc
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from reference.memory.lab.gauge import CUDA_GRAIN, Gauge
from reference.memory.offload import Offload
from reference.memory.precision import PRECISIONS
from reference.memory.recompute import Recompute
from reference.models import GPTConfig
from reference.oracle import largest_difference, on_ranks, one_process, relative_difference
from reference.parallelize import DataParallelism, Plan
from reference.train import TrainConfig, Training
from reference.zero import checkpoint

MODEL = GPTConfig(layers=3, width=24, heads=3, kv_heads=1, hidden=40)
LARGE = GPTConfig(layers=4, width=256, heads=4, kv_heads=2, hidden=704)
EXACT = 1e-9  # float64; a GPU multiplies in another order than the one process on the CPU
CLOSE = {"fp32": 1e-2, "bf16": 5e-2, "fp16": 5e-2}  # of losses: another order of additions, fewer bits
SHARE = 0.02  # of what formulas say


def exact(group: ProcessGroup, device: str) -> list[str]:
    """Every form, with and without accumulation, equals one process in float64."""
    config = config_for(group, "fp64")
    expected = one_process(config)
    return [
        f"{form}, {accumulate} micro-batches: {difference}"
        for form in _forms(group)
        for accumulate in (1, 2)
        if max((difference := difference_of(config, group, device, Plan(form, accumulate), expected)).values()) > EXACT
    ]


def mixed(group: ProcessGroup, device: str) -> list[str]:
    """Every form learns in bf16 and fp16 what one process learns in float64."""
    found = []
    for name, bound in CLOSE.items():
        config = config_for(group, name)
        expected = one_process(replace(config, precision=PRECISIONS["fp64"])).losses
        for form in _forms(group):
            far = relative_difference(on_ranks(config, group, device, Plan(form)).losses, expected)
            found += [f"{form} in {name}: losses differ by {far:.2g}"] if far > bound else []
    return found


def lighter(group: ProcessGroup, device: str) -> list[str]:
    """Recomputation and offload change nothing."""
    config = config_for(group, "fp64")
    expected = one_process(config)
    plans = [Plan(form, 2, how) for form in (DataParallelism.DDP, DataParallelism.FSDP) for how in Recompute]
    plans += [Plan(form, offload=where) for form in (DataParallelism.DDP, DataParallelism.FSDP) for where in Offload]
    return [
        f"{plan}: {difference}"
        for plan in plans
        if max((difference := difference_of(config, group, device, plan, expected)).values()) > EXACT
    ]


@contextmanager
def shared_folder(group: ProcessGroup, device: str) -> Iterator[Path]:
    """A new folder that all ranks see, and that is gone when all have left it."""
    folders: list = [tempfile.mkdtemp() if dist.get_rank(group) == 0 else None]
    dist.broadcast_object_list(folders, group=group, device=torch.device(device))
    yield Path(folders[0])
    dist.barrier(group)
    if dist.get_rank(group) == 0:
        shutil.rmtree(folders[0])


def resumed(group: ProcessGroup, device: str) -> list[str]:
    """What FSDP has saved, ZeRO-1 resumes."""
    config = config_for(group, "fp64")
    first, second = (
        Training(config, group, torch.device(device), Plan(form))
        for form in (DataParallelism.FSDP, DataParallelism.ZERO1)
    )
    first.backward(0)
    first.update(0)
    with shared_folder(group, device) as folder:
        checkpoint.save(folder, first.form, first.optimizer, 1, {}, group)
        step, _ = checkpoint.load(folder, second.form, second.optimizer, group)
    losses = [float(training.backward(step).item()) for training in (first, second)]
    return [] if abs(losses[0] - losses[1]) < EXACT else [f"losses after loading: {losses}"]


def state(group: ProcessGroup, device: str) -> list[str]:
    """Between steps a rank keeps what the formulas say: bytes of the allocator against bytes of the state."""
    if device != "cuda":
        return []
    _one_step(group, device)
    n, parameters, found = dist.get_world_size(group), LARGE.parameters, []
    formulas = {
        DataParallelism.DDP: 4 + 4 + 8,
        DataParallelism.ZERO1: 4 + 4 + 8 / n,
        DataParallelism.ZERO2: 4 + 8 / n,
        DataParallelism.FSDP: 4 / n + 8 / n,
    }
    for form, per_parameter in formulas.items():
        before = _allocated()
        training = Training(replace(config_for(group, "fp32"), model=LARGE), group, torch.device(device), Plan(form))
        training.backward(0)
        training.update(0)
        kept, expected = _allocated() - before, per_parameter * parameters
        if abs(kept / expected - 1) > SHARE:
            found.append(f"{form}: {kept:,} bytes are kept, the formula says {expected:,.0f}")
        del training
    return found


def gauged(group: ProcessGroup, device: str) -> list[str]:
    """The gauge counts what the allocator counts."""
    if device != "cuda":
        return []
    _one_step(group, device)
    training = Training(replace(config_for(group, "fp32"), model=LARGE), group, torch.device(device))
    training.backward(0)
    training.update(0)
    before = _allocated()
    with Gauge.of(training.model, training.optimizer, grain=CUDA_GRAIN) as gauge:
        start = int(gauge.history.usage[-1].sum())
        loss = training.model(torch.zeros(2, 32, dtype=torch.int64, device=device)).sum()
        here = int(gauge.history.usage[-1].sum()) - start
        allocated = torch.cuda.memory_allocated() - before
        loss.backward()
    return [] if abs(here - allocated) <= SHARE * allocated else [f"gauge {here:,}, allocator {allocated:,} bytes"]


def _one_step(group: ProcessGroup, device: str) -> None:
    """Have cuBLAS keep its workspaces, 32 MiB for each thread that multiplies: they are not what is measured next."""
    training = Training(config_for(group, "fp32"), group, torch.device(device))
    training.backward(0)
    training.update(0)


def _allocated() -> int:
    gc.collect()  # forms and their hooks hold each other
    torch.cuda.synchronize()
    return torch.cuda.memory_allocated()


def _forms(group: ProcessGroup) -> list[DataParallelism]:
    """HSDP takes an even number of ranks."""
    return [form for form in DataParallelism if form is not DataParallelism.HSDP or dist.get_world_size(group) % 2 == 0]


def config_for(group: ProcessGroup, precision: str) -> TrainConfig:
    """A few steps that divide among the ranks."""
    batch = 4 * dist.get_world_size(group)
    return TrainConfig(MODEL, steps=5, batch=batch, sequence=16, warmup=2, precision=PRECISIONS[precision])


def difference_of(config: TrainConfig, group: ProcessGroup, device: str, plan: Plan, expected) -> dict[str, float]:
    """How far a plan is from one process."""
    return largest_difference(on_ranks(config, group, device, plan), expected)
