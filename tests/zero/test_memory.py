"""Every rank keeps what ZeRO's table says, byte by byte, and what comes and goes is two units at most."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed import ProcessGroup

from reference.cluster import Cluster
from reference.data_parallel.buckets import in_order_of_use
from reference.data_parallel.flat_layout import FlatLayout
from reference.data_parallel.replicated import DistributedDataParallel
from reference.memory.history import History, MemoryKind
from reference.memory.precision import PRECISIONS, Precision
from reference.memory.recipe import RECIPES, Recipe, Stage, state_bytes
from reference.models import GPTConfig
from reference.zero import FullySharded, Sharded, cost
from reference.zero.lab.measured_step import gauge_of

from ..data_parallel.conftest import in_group, members
from ..data_parallel.training import Language, LeavingOut, Make, Task

CONFIG = GPTConfig(layers=4, width=32, heads=4, kv_heads=2, hidden=96, vocabulary=64)
TASK = Language(CONFIG, rows=6, sequence=3)
EMBEDDING, BLOCK, HEAD = 64 * 32, 3 * 32**2 + 3 * 32 * 96 + 2 * 32, 32 + 64 * 32
UNITS = [EMBEDDING, *[BLOCK] * 4, HEAD]
BUCKET = 40_000  # bytes

PAPER = Precision(torch.bfloat16, torch.bfloat16, torch.float32)
"""Gradients in the precision of compute, as in the paper: 16 bytes a parameter. Ours are in float32: 18."""

MAKES: dict[Stage, Make] = {
    Stage.DDP: partial(DistributedDataParallel, bucket_bytes=BUCKET),
    Stage.ZERO1: partial(Sharded, stage=1, bucket_bytes=BUCKET),
    Stage.ZERO2: partial(Sharded, stage=2, bucket_bytes=BUCKET),
    Stage.ZERO3: FullySharded,
}


def measured(
    group: ProcessGroup,
    make: Make,
    precision: Precision,
    task: Task = TASK,
    micro_batches: int = 1,
) -> History:
    """Two steps; the marks that tests ask for are of the second."""
    model = task.model(precision.master)
    form = make(model, group, precision=precision)
    optimizer = torch.optim.Adam([part.master for part in form.parts], foreach=False)
    parts = group.size() * micro_batches
    with gauge_of(model, form, optimizer) as gauge:
        for step in range(2):
            gauge.mark("micro-batches")
            for k in range(micro_batches):
                with form.micro_batch(last=k == micro_batches - 1):
                    task.loss(model, step, group.rank() * micro_batches + k, parts).backward()
            form.reduce_gradients()
            gauge.mark("step")
            optimizer.step()
            form.end_step()
            gauge.mark("rest")
    return gauge.history


def histories(ranks: Cluster, n: int, *arguments: object, **options: object) -> list[History]:
    """Of every rank."""
    found = ranks.run(in_group, n, partial(measured, **options), *arguments)
    return [found[rank] for rank in members(n)]


def recipe(stage: Stage, precision: Precision) -> Recipe:
    """FSDP keeps its shards in the precision of the update, and rounds them when it gathers."""
    if stage is Stage.ZERO3:
        return replace(RECIPES["fp32 Adam, bf16 compute"], gradients=precision.gradients.itemsize)
    names = {4: "fp32 Adam", 2: "mixed Adam, fp32 gradients"}
    return RECIPES["mixed Adam" if precision is PAPER else names[precision.compute.itemsize]]


@pytest.mark.turns(5)
@pytest.mark.parametrize("stage", Stage)
@pytest.mark.parametrize("precision", [PRECISIONS["fp32"], PRECISIONS["bf16"], PAPER], ids=["fp32", "bf16", "paper"])
def test_state_is_that_of_the_table(ranks: Cluster, precision: Precision, stage: Stage) -> None:
    """Within 2 %, which are padding, of fewer than n elements for each bucket or unit, and Adam's counts of steps."""
    expected = state_bytes(CONFIG.parameters, recipe(stage, precision), stage, ranks=3)
    for history in histories(ranks, 3, MAKES[stage], precision):
        found = history.at("step", -1)
        assert found[MemoryKind.PARAMETERS] == pytest.approx(expected.parameters, rel=0.02)
        assert found[MemoryKind.GRADIENTS] == pytest.approx(expected.gradients, rel=0.02)
        assert found[MemoryKind.OPTIMIZER] == pytest.approx(expected.optimizer, rel=0.02)


@pytest.mark.parametrize("stage", Stage)
def test_nothing_else_is_left_after_a_step(ranks: Cluster, stage: Stage) -> None:
    """Whatever was made since the first step is gone, but for state; replicas and ZeRO-1 leave their buckets alone."""
    expected = state_bytes(CONFIG.parameters, recipe(stage, PRECISIONS["bf16"]), stage, ranks=2)
    kept = expected.total if stage in (Stage.DDP, Stage.ZERO1) else expected.parameters + expected.optimizer
    for history in histories(ranks, 2, MAKES[stage], PRECISIONS["bf16"]):
        assert sum(history.at("rest", -1).values()) == pytest.approx(kept, rel=0.02)


@pytest.mark.parametrize("n", [2, 3])
def test_padding_and_counts_of_steps_are_all_that_is_more(ranks: Cluster, n: int) -> None:
    """To the byte: each unit's shard is rounded up, and Adam counts each part's steps in four bytes."""
    shard = sum(-(-unit // n) for unit in UNITS)
    assert shard == cost.zero_3(UNITS, n).updated
    for rank, history in enumerate(histories(ranks, n, FullySharded, PRECISIONS["fp32"])):
        parts = sum(len(layout.pieces(rank)) for layout in layouts(n))
        found = history.at("step", -1)
        assert found[MemoryKind.PARAMETERS] == found[MemoryKind.GRADIENTS] == 4 * shard
        assert found[MemoryKind.OPTIMIZER] == 8 * shard + 4 * parts - 8 * padding(n, rank)


def layouts(n: int) -> list[FlatLayout]:
    """Of each unit."""
    model = TASK.model(torch.float32)
    units = [model.embedding, *model.blocks, nn.ModuleList([model.norm, model.head])]
    return [FlatLayout.of(list(unit.parameters()), n) for unit in units]


def padding(n: int, rank: int) -> int:
    """Elements of a rank's shards that stand for nothing: the optimizer is not told of them, and keeps nothing."""
    held = sum(piece.end - piece.begin for layout in layouts(n) for piece in layout.pieces(rank))
    return sum(layout.shard for layout in layouts(n)) - held


def whole_units(history: History) -> np.ndarray:
    """[units, moments]: elements of a unit while it is whole, two bytes each; 0 while it is a shard, of four each."""
    sizes = np.stack(list(history.units.values()))
    shards = np.array([[4 * cost.padded(unit, 3) // 3] for unit in UNITS])
    whole = np.array([[2 * cost.padded(unit, 3)] for unit in UNITS])
    assert ((sizes == shards) | (sizes == whole)).all()
    return np.where(sizes == whole, sizes // 2, 0)


@pytest.mark.parametrize(
    ("options", "most"), [({}, 2), ({"prefetch": False}, 1), ({"reshard_after_forward": False}, len(UNITS))]
)
def test_so_many_units_are_whole_at_a_time(ranks: Cluster, options: dict, most: int) -> None:
    make = partial(FullySharded, **options)
    for history in histories(ranks, 3, make, PRECISIONS["bf16"]):
        assert (whole_units(history) > 0).sum(axis=0).max() == most
        assert not whole_units(history.during("step", -1)).any()
        assert not whole_units(history.during("rest", -1)).any()


def test_peak_of_gathered_parameters_is_that_of_the_formula(ranks: Cluster) -> None:
    expected = cost.zero_3(UNITS, 3).passing_parameters
    assert expected == 2 * cost.padded(BLOCK, 3)
    for history in histories(ranks, 3, FullySharded, PRECISIONS["bf16"]):
        assert whole_units(history).sum(axis=0).max() == expected
        shards = sum(4 * cost.padded(unit, 3) // 3 for unit in UNITS)
        assert history.peak_of(MemoryKind.PARAMETERS) == shards + 2 * expected  # so what is free takes no memory


@pytest.mark.parametrize("stage", [Stage.ZERO2, Stage.ZERO3])
def test_gradients_that_pass_are_two_buckets(ranks: Cluster, stage: Stage) -> None:
    """Beside the shards: one bucket fills while another one is in flight, and comes back as one more shard."""
    lengths = UNITS if stage is Stage.ZERO3 else bucket_lengths()
    expected = cost.zero_3(lengths, 4)
    most = 4 * (expected.gradients + expected.passing_gradients + max(lengths) // 4)
    for history in histories(ranks, 4, MAKES[stage], PRECISIONS["bf16"], micro_batches=2):
        assert 4 * expected.passing_gradients < history.peak_of(MemoryKind.GRADIENTS) <= 1.02 * most
        assert most < 0.9 * 4 * CONFIG.parameters  # the test could fail


def bucket_lengths() -> list[int]:
    parameters = list(TASK.model(torch.float32).parameters())
    return [sum(parameter.numel() for parameter in bucket) for bucket in in_order_of_use(parameters, BUCKET)]


def test_a_parameter_that_is_left_out_holds_nothing_up(ranks: Cluster) -> None:
    """Its unit's gradients leave with the unit, not at the end of backward, when those of all units would be there."""
    width, branches = 32, 8
    nobody = LeavingOut(lambda branch, step, parts: range(0), branches, width)
    unit = 8 * 2 * (width * width + width)
    for history in histories(ranks, 2, FullySharded, PRECISIONS["fp64"], task=nobody):
        shards = branches * unit // 2
        assert shards < history.peak_of(MemoryKind.GRADIENTS) <= shards + 2.5 * unit
