"""The formulas of `cost` say what the papers say, and what a trace of the stages in short counts."""

from collections.abc import Callable
from math import prod

import pytest
import torch
import torch.distributed as dist

from reference.cluster import Cluster
from reference.trace import Trace
from reference.zero import cost, plain
from reference.zero.answers import on_shards
from reference.zero.cost import StepCost

DIVISIBLE = (840, 1680)  # by every n up to 8
ODD = (5, 12, 1, 37)
DOUBLE = 8  # bytes


@pytest.mark.parametrize("n", range(1, 9))
@pytest.mark.parametrize(("strategy", "passes"), [(cost.ddp, 2), (cost.zero_1, 2), (cost.zero_2, 2), (cost.zero_3, 3)])
def test_a_rank_sends_so_many_passes_of_n_minus_one_over_n(
    strategy: Callable[..., StepCost], passes: int, n: int
) -> None:
    """ZeRO, sec. 7: stages 1 and 2 send what plain data parallelism sends, stage 3 half as much again."""
    found = strategy(DIVISIBLE, n)
    assert (found.gathered + found.reduced) * n == passes * sum(DIVISIBLE) * (n - 1)


@pytest.mark.parametrize("n", range(1, 9))
def test_without_resharding_stage_3_sends_two_passes_and_holds_everything(n: int) -> None:
    found = cost.zero_3_gathered(DIVISIBLE, n)
    assert (found.gathered + found.reduced) * n == 2 * sum(DIVISIBLE) * (n - 1)
    assert found.passing_parameters == sum(DIVISIBLE)


@pytest.mark.parametrize("n", range(1, 9))
def test_what_a_rank_keeps_is_figure_1(n: int) -> None:
    """ZeRO, figure 1: each stage divides one more of parameters, gradients and optimizer state by n."""
    whole, part = sum(DIVISIBLE), sum(DIVISIBLE) // n
    kept = {each: each(DIVISIBLE, n) for each in (cost.ddp, cost.zero_1, cost.zero_2, cost.zero_3)}
    assert [(each.parameters, each.gradients, each.updated) for each in kept.values()] == [
        (whole, whole, whole),
        (whole, whole, part),
        (whole, part, part),
        (part, part, part),
    ]


@pytest.mark.parametrize("n", range(1, 9))
def test_shards_of_all_ranks_hold_every_element_and_less_than_n_more_a_unit(n: int) -> None:
    together = n * cost.zero_3(ODD, n).parameters
    assert sum(ODD) <= together < sum(ODD) + n * len(ODD)


def test_only_stages_2_and_3_send_in_every_micro_batch() -> None:
    once, often = ([each(DIVISIBLE, 4, k) for each in (cost.zero_2, cost.zero_3)] for k in (1, 5))
    assert [each.reduced for each in often] == [5 * each.reduced for each in once]
    assert [each.gathered for each in often] == [once[0].gathered, 5 * once[1].gathered]
    assert [cost.elements_sent(stage, 12, 4, 5) for stage in range(4)] == [18, 18, 54, 135]


@pytest.mark.parametrize("stage", range(4))
@pytest.mark.parametrize("micro_batches", [1, 3])
def test_the_short_formula_is_that_of_one_unit(stage: int, micro_batches: int) -> None:
    """Plain data parallelism apart, whose all-reduce needs no padding."""
    unit, n = (36 if stage == 0 else 37,), 6
    found = (
        cost.ddp(unit, n),
        cost.zero_1(unit, n),
        cost.zero_2(unit, n, micro_batches),
        cost.zero_3(unit, n, micro_batches),
    )[stage]
    assert found.gathered + found.reduced == cost.elements_sent(stage, unit[0], n, micro_batches)


@pytest.mark.parametrize("units", [DIVISIBLE, ODD])
def test_one_replica_is_fsdp_and_one_shard_is_data_parallelism(units: tuple[int, ...]) -> None:
    assert cost.hsdp(units, shards=4, replicas=1, micro_batches=3) == cost.zero_3(units, 4, 3)
    alone, plain = cost.hsdp(units, shards=1, replicas=4, replica=2), cost.ddp(units, 4, rank=2)
    assert (alone.gathered, alone.reduced, alone.steps) == (0, plain.reduced, plain.steps)


def test_hybrid_shards_send_little_between_nodes() -> None:
    """2(Ψ/s)(r-1)/r, where a flat group of r·s ranks would send nearly 3Ψ around a ring that crosses nodes."""
    inside, both = cost.zero_3(DIVISIBLE, 4), cost.hsdp(DIVISIBLE, shards=4, replicas=2)
    assert both.reduced - inside.reduced == 2 * (sum(DIVISIBLE) // 4) // 2
    assert both.gathered == inside.gathered


def test_bytes_are_counted_in_the_dtype_that_travels() -> None:
    found = cost.zero_3(DIVISIBLE, 4)
    assert found.bytes_sent(parameter_size=2, gradient_size=4) == 2 * found.gathered + 4 * found.reduced


def test_at_most_two_units_are_whole_at_once() -> None:
    assert cost.zero_3((10, 20, 30, 5), 5).passing_parameters == 20 + 30
    assert cost.zero_3((10,), 5).passing_parameters == 10


# The stages in short, on ranks: what is traced is what the formulas say.

SHAPES = ((3, 5), (4, 3), (2, 4), (1, 2))
UNITS = tuple(prod(shape) for shape in SHAPES)
MICRO_BATCHES = 3


def data_parallel() -> None:
    """All-reduce the gradient of each unit."""
    for unit in UNITS:
        dist.all_reduce(torch.ones(unit, dtype=torch.float64))


def stage_1() -> None:
    """One step of Adam for each unit, each padded."""
    group, n = dist.group.WORLD, dist.get_world_size()
    for unit in UNITS:
        plain.zero_1(torch.ones(cost.padded(unit, n), dtype=torch.float64), torch.ones_like, 1, group)


def stage_2() -> None:
    """Gradients of some micro-batches, then parameters."""
    n = dist.get_world_size()
    backward = (
        (i, torch.ones(unit, dtype=torch.float64)) for _ in range(MICRO_BATCHES) for i, unit in enumerate(UNITS)
    )
    for shard, shape in zip(plain.zero_2(backward, len(UNITS), dist.group.WORLD), SHAPES, strict=True):
        assert shard.numel() * n == cost.padded(prod(shape), n)
        plain.gather(shard, shape, dist.group.WORLD)


def stage_3() -> None:
    """Forward and backward of layers in shards."""
    n = dist.get_world_size()
    shards = [torch.ones(cost.padded(unit, n) // n, dtype=torch.float64) for unit in UNITS]
    x, upstream = (torch.ones(2, width, dtype=torch.float64) for width in (5, 1))
    for _ in range(MICRO_BATCHES):
        plain.fully_sharded(x, shards, SHAPES, upstream, dist.group.WORLD)


def traced(cluster: Cluster, function: Callable[[], None]) -> Trace:
    return cluster.trace(function)[1]


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8])
def test_formulas_equal_the_trace(clusters: Callable[..., Cluster], n: int) -> None:
    expected = {
        data_parallel: lambda rank: cost.ddp(UNITS, n, rank),
        stage_1: lambda rank: cost.zero_1(UNITS, n),
        stage_2: lambda rank: cost.zero_2(UNITS, n, MICRO_BATCHES),
        stage_3: lambda rank: cost.zero_3(UNITS, n, MICRO_BATCHES),
    }
    for function, formula in expected.items():
        trace = traced(clusters(n), function)
        assert trace.bytes_sent == [formula(rank).bytes_sent(DOUBLE, DOUBLE) for rank in range(n)], function.__name__
        assert trace.steps == formula(0).steps, function.__name__


def hybrid(shards: int) -> None:
    """One step with one unit, over nodes of so many ranks."""
    replicas = dist.get_world_size() // shards
    mesh = dist.init_device_mesh("cpu", (replicas, shards), mesh_dim_names=("inter", "intra"))
    shard = torch.ones(cost.padded(UNITS[0], shards) // shards, dtype=torch.float64)
    on_shards.hybrid(shard, torch.ones_like, 0.1, mesh.get_group("intra"), mesh.get_group("inter"))


@pytest.mark.parametrize("shards", [1, 2, 3, 6])
def test_the_formula_of_hybrid_shards_equals_the_trace(clusters: Callable[..., Cluster], shards: int) -> None:
    """In short it gathers once: there is no second gather before backward."""
    trace = traced(clusters(6), lambda: hybrid(shards))
    for rank, sent in enumerate(trace.bytes_sent):
        found = cost.hsdp(UNITS[:1], shards, 6 // shards, replica=rank // shards)
        assert sent == DOUBLE * (found.gathered // 2 + found.reduced)
