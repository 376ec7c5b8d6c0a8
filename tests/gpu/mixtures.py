"""The checks of experts on every rank: each returns what it found wrong, as those in `family.py`."""

from collections.abc import Iterator
from dataclasses import replace

from family import CLOSE, EXACT, config_for, difference_of
from torch.distributed import ProcessGroup

from reference.memory.precision import PRECISIONS
from reference.memory.recompute import Recompute
from reference.models.moe_config import Balance, MoEConfig
from reference.oracle import on_ranks, one_process, relative_difference
from reference.parallelize import DataParallelism, Plan

MODEL = MoEConfig(2, 48, 12, 4, 40, experts=12, top_k=2, expert_hidden=24, shared_experts=1, balance=Balance.SEQUENCE)


def plans(n: int) -> Iterator[Plan]:
    """Experts on all ranks, on nodes, in chunks, with shared matrices, and folded over other axes."""
    yield Plan(DataParallelism.FSDP, expert_parallel=n, recompute=Recompute.FULL)
    yield Plan(DataParallelism.DDP, expert_parallel=n, expert_nodes=n, expert_chunks=3)
    yield Plan(expert_tensor_parallel=n if 24 % n == 0 else 1)
    if n % 2 == 0:
        yield Plan(DataParallelism.ZERO2, tensor_parallel=2, expert_parallel=n // 2, expert_tensor_parallel=2)
        yield Plan(DataParallelism.FSDP, context_parallel=2, expert_parallel=2)
        yield Plan(pipeline_parallel=2, micro_batches=2, expert_parallel=n // 2)


def experts(group: ProcessGroup, device: str) -> list[str]:
    """Experts on these ranks equal one process in float64."""
    config = replace(config_for(group, "fp64"), model=MODEL, sequence=24, steps=3)
    expected = one_process(config)
    return [
        f"{plan}: {difference}"
        for plan in plans(group.size())
        if max((difference := difference_of(config, group, device, plan, expected)).values()) > EXACT
    ]


def experts_mixed(group: ProcessGroup, device: str) -> list[str]:
    """In bf16 and fp16 they learn what one process learns in float64."""
    found = []
    for name, bound in CLOSE.items():
        config = replace(config_for(group, name), model=MODEL, sequence=24)
        expected = one_process(replace(config, precision=PRECISIONS["fp64"])).losses
        for plan in plans(group.size()):
            far = relative_difference(on_ranks(config, group, device, plan).losses, expected)
            found += [f"{name}, {plan}: {far:.2g}"] if not far < bound else []
    return found
