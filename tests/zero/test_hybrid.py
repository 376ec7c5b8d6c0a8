"""HSDP: sharded along the rows of a mesh, replicated along its columns, and equal to one process all the same."""

from dataclasses import replace

import pytest
from torch.distributed import ProcessGroup

from reference.cluster import Cluster
from reference.memory.history import History, MemoryKind
from reference.memory.precision import PRECISIONS
from reference.trace import Op
from reference.zero import FullySharded, cost

from ..data_parallel.conftest import members, train_all, wrong
from ..data_parallel.traffic import bare, between, by_case, steps
from ..data_parallel.training import TIED, Case, Language, TwoLayers, one_process
from .forms import FULLY, OF_A_GPT, hybrid, hybrids, in_mesh
from .test_memory import UNITS, measured
from .test_traffic import SIZES
from .test_traffic import UNITS as SMALL_UNITS

MESHES = [(2, 2), (2, 3), (4, 2), (1, 3), (3, 1)]
"""(replicas, shards). One replica is FSDP, one shard is DDP."""


@pytest.mark.turns(2)
@pytest.mark.parametrize("mesh", MESHES)
def test_any_mesh_equals_one_process(ranks: Cluster, mesh: tuple[int, int]) -> None:
    """And all ranks of it each other, to the last bit."""
    forms = {**FULLY, **OF_A_GPT}
    names = ("FSDP", "FSDP, gathered once", "FSDP by halves", "FSDP from meta")
    cases = [Case(name, forms[name], micro_batches=1 + i % 3) for i, name in enumerate(names)]
    cases.append(Case("tied", FullySharded, Language(TIED), "AdamW", micro_batches=2))
    found = ranks.run(in_mesh, *mesh, hybrids, train_all, cases)
    n = mesh[0] * mesh[1]
    for i, case in enumerate(cases):
        oracle = one_process(case.task, case.optimizer, n * case.micro_batches)
        assert wrong([found[rank][i] for rank in members(n)], oracle) == {}, f"{case} on {mesh}"


@pytest.mark.parametrize("mesh", MESHES)
def test_it_sends_what_the_formula_says(ranks: Cluster, mesh: tuple[int, int]) -> None:
    """Replicas add up their shards once a step, however many micro-batches it has."""
    replicas, shards = mesh
    cases = [
        Case("HSDP", FullySharded, micro_batches=micro_batches, precision=precision, steps=1)
        for micro_batches in (1, 2)
        for precision in SIZES
    ]
    _, trace = ranks.trace(in_mesh, replicas, shards, hybrids, bare, cases)
    for case, traffic in zip(cases, by_case(trace, replicas * shards), strict=True):
        costs = [
            cost.hsdp(SMALL_UNITS, shards, replicas, case.micro_batches, replica=place // shards)
            for place in range(replicas * shards)
        ]
        assert traffic.bytes == [each.bytes_sent(*SIZES[case.precision]) for each in costs], str(case)


def test_counted_by_hand(ranks: Cluster) -> None:
    """Units of 16 and 10 in two shards: 8 + 5 leave in each of three passes. Two replicas cut the shards into 4 + 4 and
    3 + 2, of which a rank sends one half on the way up, and the other one on the way down."""
    case = Case("HSDP", FullySharded, TwoLayers(), precision="fp32", steps=1)
    _, trace = ranks.trace(in_mesh, 2, 2, hybrids, bare, [case])
    assert by_case(trace, 4)[0].bytes == [4 * (3 * (8 + 5) + (4 + 4) + (3 + 2))] * 4 == [208] * 4


def test_only_the_last_micro_batch_leaves_the_row(ranks: Cluster) -> None:
    """That is what hybrid sharding is for: the slow links between nodes carry a shard, once."""
    case = Case("HSDP", FullySharded, micro_batches=3, steps=1)
    _, trace = ranks.trace(in_mesh, 2, 2, marked, case)
    for rank in members(4):
        *before, last = between(trace.events[rank])
        assert not any(event.op is Op.ALL_REDUCE for events in before for event in events)
        across = [event for event in trace.events[rank] if event.op is Op.ALL_REDUCE]
        assert sum(event.bytes for event in across) == 8 * 1740 // 2
        assert {len(event.group) for event in across} == {2}
        assert len(last) > 0


def marked(group: ProcessGroup, row: ProcessGroup, column: ProcessGroup, case: Case) -> None:
    steps(group, replace(case, make=hybrid(case.make, row, column)), mark_micro_batches=True)


def measured_on_mesh(group: ProcessGroup, row: ProcessGroup, column: ProcessGroup) -> History:
    return measured(group, hybrid(FullySharded, row, column), PRECISIONS["fp32"])


def test_a_rank_keeps_the_shard_of_its_row(ranks: Cluster) -> None:
    """Two replicas of two shards: each rank has a half, not a quarter."""
    found = ranks.run(in_mesh, 2, 2, measured_on_mesh)
    expected = cost.hsdp(UNITS, shards=2, replicas=2)
    assert expected.updated == sum(UNITS) // 2
    for rank in members(4):
        kept = found[rank].at("step", -1)
        assert kept[MemoryKind.PARAMETERS] == kept[MemoryKind.GRADIENTS] == 4 * expected.updated
        assert kept[MemoryKind.OPTIMIZER] == pytest.approx(8 * expected.updated, rel=0.02)
