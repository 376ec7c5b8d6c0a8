"""A checkpoint goes from any plan to any other, along both axes: what one rank had as rows others have as columns."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint import FileSystemReader

from reference.cluster import Cluster
from reference.data_parallel import ParameterShard, gather_full
from reference.memory.precision import PRECISIONS
from reference.models import GPTConfig
from reference.oracle import Record, one_process, relative_difference
from reference.parallelize import DataParallelism, Plan
from reference.sharding import Slices
from reference.train import TrainConfig, Training, summed
from reference.zero.checkpoint import latest, load, save
from reference.zero.chunk import Chunk

Clusters = Callable[..., Cluster]
Tensors = dict[str, Tensor]
EXACT = 1e-10  # in float64 the order of additions costs about 1e-15 a step, any mistake at least 1e-3
STEPS = 2  # of each leg
KINDS = ("master", "exp_avg", "exp_avg_sq")  # and what Adam remembers
PADDED = GPTConfig(1, 24, heads=6, kv_heads=1, hidden=36)
TIED = GPTConfig(2, 32, heads=8, kv_heads=2, hidden=48, tied=True, dropout=0.1)
CONFIG = TrainConfig(PADDED, batch=12, sequence=24, warmup=2, precision=PRECISIONS["fp64"])


class Leg(NamedTuple):
    """A run that resumes from what another one has saved."""

    ranks: int
    form: DataParallelism
    tensor_parallel: int
    sequence_parallel: bool = False

    @property
    def plan(self) -> Plan:
        return Plan(self.form, tensor_parallel=self.tensor_parallel, sequence_parallel=self.sequence_parallel)


class Run(NamedTuple):
    """What a rank has seen of one leg."""

    losses: list[float]
    loaded: Tensors  # masters and what the optimizer remembers, whole, as the leg before has left them
    saved: Tensors  # as this one leaves them
    padding: int  # elements of this rank that are nowhere in the model


# 256 tokens are 86 and 84 with padding for three ranks, and 43 for six; all ranks share the one key-value head.
UNEVEN = [
    Leg(8, DataParallelism.FSDP, 2),
    Leg(3, DataParallelism.ZERO1, 3),
    Leg(1, DataParallelism.NAIVE, 1),
    Leg(6, DataParallelism.FSDP, 3, True),
    Leg(6, DataParallelism.DDP, 6),
    Leg(8, DataParallelism.HSDP, 2, True),
    Leg(6, DataParallelism.ZERO2, 6, True),
    Leg(4, DataParallelism.FLAT, 1),
]
# Four and eight ranks share two key-value heads; what is left out does not depend on the plan either.
SHARED = [
    Leg(8, DataParallelism.FLAT, 8),
    Leg(8, DataParallelism.FSDP, 4, True),
    Leg(2, DataParallelism.ZERO1, 1),
    Leg(4, DataParallelism.ZERO2, 4),
    Leg(8, DataParallelism.HSDP, 2),
    Leg(8, DataParallelism.DDP, 8, True),
    Leg(6, DataParallelism.FSDP, 2),
]


@pytest.mark.parametrize(("model", "legs"), [(PADDED, UNEVEN), (TIED, SHARED)], ids=["padded", "shared heads"])
def test_a_run_goes_on_under_any_plan(
    clusters: Clusters, tmp_path: Path, model: GPTConfig, legs: Sequence[Leg]
) -> None:
    config = replace(CONFIG, model=model, steps=STEPS * len(legs))
    losses, before, padding = [], {}, 0
    for number, leg in enumerate(legs):
        runs = clusters(leg.ranks).run(go_on, config, leg.plan, tmp_path, STEPS * number)
        for run in runs:
            assert_same_bits(run.loaded, before)
            assert_same_bits(run.saved, runs[0].saved)
        losses, before = losses + runs[0].losses, runs[0].saved
        padding += sum(run.padding for run in runs)
    assert_same(losses, before, one_process(config))
    assert (padding > 0) == (model is PADDED)


def go_on(config: TrainConfig, plan: Plan, folder: Path, first: int) -> Run:
    """Take some steps after the `first` ones. What is not loaded would be NaN in everything that comes after."""
    training = Training(config, dist.group.WORLD, torch.device("cpu"), plan)
    form, optimizer, loaded, padding = training.form, training.optimizer, {}, 0
    if first:
        for part in form.parts:
            part.master.data.fill_(torch.nan)
        assert load(folder, form, optimizer, training.group) == (first, {})
        loaded = held_by_all(training)
        padding = sum(numel_of_padding(part, optimizer.state[part.master]) for part in form.parts)
    losses = []
    for step in range(first, first + STEPS):
        losses.append(summed(training.backward(step), training.data))
        training.update(step)
    save(folder, form, optimizer, first + STEPS, {}, training.group)
    return Run(losses, loaded, held_by_all(training), padding)


def held_by_all(training: Training) -> Tensors:
    """Masters and moments, whole. Where several ranks have the same, they have the same bits."""
    form, found = training.form, {}
    for kind in KINDS:

        def of_kind(part: ParameterShard, kind: str = kind) -> Tensor:
            return part.master.detach() if kind == "master" else training.optimizer.state[part.master][kind]

        values = gather_full(form, of_kind)
        for part in form.parts:
            assert all(torch.equal(box.within(values[part.name]), own) for box, own in part.pieces(of_kind(part)))
        found |= {f"{kind} {name}": value for name, value in values.items()}
    return found


def numel_of_padding(part: ParameterShard, state: Tensors) -> int:
    """How many elements are padding. They are zero, in the master and in the moments."""
    padding = torch.ones_like(part.master, requires_grad=False)
    for _, inside in part.pieces(padding):
        inside.zero_()
    for values in (part.master, state["exp_avg"], state["exp_avg_sq"]):
        assert not values[padding.bool()].any()
    return int(padding.sum())


def assert_same_bits(mine: Tensors, expected: Tensors) -> None:
    assert mine.keys() == expected.keys()
    assert all(torch.equal(mine[name], value) for name, value in expected.items())


def assert_same(losses: list[float], saved: Tensors, oracle: Record) -> None:
    assert relative_difference(losses, oracle.losses) <= EXACT
    for name, value in oracle.parameters.items():
        assert relative_difference(saved[f"master {name}"], value) <= EXACT, name


@pytest.mark.parametrize(("model", "leg"), [(PADDED, UNEVEN[3]), (TIED, SHARED[1])], ids=["padded", "shared heads"])
def test_what_many_ranks_have_is_written_once(clusters: Clusters, tmp_path: Path, model: GPTConfig, leg: Leg) -> None:
    """Norms and key-value heads of neighbours; and of a table with padding, what is in the model."""
    config = replace(CONFIG, model=model)
    clusters(leg.ranks).run(go_on, config, leg.plan, tmp_path, 0)
    checkpoint = latest(tmp_path)
    metadata = FileSystemReader(checkpoint).read_metadata()
    for name, parameter in one_process(replace(config, steps=1)).parameters.items():
        for key in (f"master.{name}", f"state.exp_avg.{name}", f"state.exp_avg_sq.{name}"):
            boxes = metadata.state_dict_metadata[key].chunks
            assert sum(box.sizes.numel() for box in boxes) == parameter.numel()
    written = sum(path.stat().st_size for path in checkpoint.glob("*.distcp"))
    assert written == sum(item.length for item in metadata.storage_data.values())


def test_a_rank_with_padding_alone_has_nothing_to_save() -> None:
    """17 tokens for 8 ranks: three for each of the first five, two for the sixth, none for the others."""
    held = torch.zeros(3 * 4)
    for rank, rows in enumerate([3, 3, 3, 3, 3, 2, 0, 0]):
        block = Slices((3 * rank, 0), (3, 4))
        chunk = Chunk(ParameterShard("table", torch.Size([17, 4]), 0, 12, nn.Parameter(held), block), held)
        assert chunk.shape == (17, 4)
        sizes = [item.tensor_data.chunk.sizes for item in chunk.__create_write_items__("table", chunk)]
        assert sizes == [(rows, 4)] * bool(rows)


def test_what_is_loaded_goes_into_the_boxes() -> None:
    """The middle of a block of columns: the end of a row, a row, and the start of one."""
    held = torch.zeros(8)
    part = ParameterShard("weight", torch.Size([4, 6]), 1, 9, nn.Parameter(held), Slices((1, 2), (3, 3)))
    chunk = Chunk(part, held)
    whole = torch.arange(24.0).view(4, 6)
    for item in chunk.__create_write_items__("weight", chunk):
        (row, column), (rows, columns) = item.index.offset, item.tensor_data.chunk.sizes
        chunk.__get_tensor_shard__(item.index)[:] = whole[row : row + rows, column : column + columns]
    assert held.tolist() == [9, 10, 14, 15, 16, 20, 21, 22]
