"""A rank of 4,096 runs its part of Llama 3 without memory: shapes follow from the plan, and so does what it holds."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from reference.memory.precision import PRECISIONS
from reference.memory.recompute import Recompute
from reference.models import PRESETS
from reference.parallelize import DataParallelism, Parallel, Plan, parallelize
from reference.sharding import Slices

WORLD, SEQUENCE = 4096, 8192
EIGHT, LARGEST = (replace(PRESETS[name], layers=2) for name in ("llama3-8b", "llama3-405b"))
META = torch.device("meta")


@pytest.fixture
def world() -> Iterator[dist.ProcessGroup]:
    """This process is rank 1,000 of 4,096, all of which are made up: collectives return at once, with nothing."""
    dist.init_process_group("fake", store=FakeStore(), rank=1000, world_size=WORLD)
    yield dist.group.WORLD
    dist.destroy_process_group()


def step(parallel: Parallel) -> torch.Tensor:
    """Forward and backward of one window, and all that comes before the optimizer. Returns the logits."""
    tokens = torch.zeros(1, SEQUENCE, dtype=torch.int64, device=META)
    with parallel.form.micro_batch(last=True):
        logits = parallel.model(tokens)
        parallel.loss(logits, tokens, SEQUENCE * parallel.data.size()).backward()
    parallel.form.reduce_gradients()
    return logits


@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("form", DataParallelism)
def test_every_form_runs_on_meta_tensors(
    world: dist.ProcessGroup, form: DataParallelism, sequence_parallel: bool
) -> None:
    plan = Plan(form, recompute=Recompute.FULL, tensor_parallel=8, sequence_parallel=sequence_parallel)
    parallel = parallelize(EIGHT, plan, world, META, PRECISIONS["bf16"])
    assert parallel.data.size() == WORLD // 8
    assert step(parallel).shape == (1, SEQUENCE, EIGHT.vocabulary // 8)
    masters = [part.master for part in parallel.form.parts]
    assert all(master.is_meta and master.grad.shape == master.shape for master in masters)


def test_a_rank_of_eight_holds_an_eighth_of_each_matrix_and_all_norms(world: dist.ProcessGroup) -> None:
    parallel = parallelize(EIGHT, Plan(tensor_parallel=8), world, META, PRECISIONS["fp32"])
    norms = (2 * EIGHT.layers + 1) * EIGHT.width
    held = sum(part.master.numel() for part in parallel.form.parts)
    assert held == (EIGHT.parameters - norms) // 8 + norms


def test_of_more_ranks_than_key_value_heads_some_have_copies(world: dist.ProcessGroup) -> None:
    """Sixteen ranks, eight key-value heads of 128: this one is the ninth of its axis, the first of two with head 4."""
    parallel = parallelize(LARGEST, Plan(tensor_parallel=16, sequence_parallel=True), world, META, PRECISIONS["bf16"])
    assert step(parallel).shape == (1, SEQUENCE, LARGEST.vocabulary // 16)
    [key] = [part for part in parallel.form.parts if part.name == "blocks.1.attention.key.weight"]
    assert (key.block, key.is_primary) == (Slices((4 * 128, 0), (128, LARGEST.width)), True)
