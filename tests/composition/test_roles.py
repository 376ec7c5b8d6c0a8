"""Who sums whose: the table that follows from specs is what a dyed step of the same plan finds."""

from collections.abc import Callable

import pytest

from reference.cluster import Cluster
from reference.composition.lab.by_axis import SEVERAL, groups_of_views, matrices_of_views
from reference.config import TrainConfig
from reference.errors import BadInput
from reference.ledger import ledger_of
from reference.mesh import Mesh
from reference.models import GPTConfig
from reference.models.moe_config import Balance, MoEConfig
from reference.parallelize import DataParallelism, Plan
from reference.roles import Role, kind_of, roles

Clusters = Callable[..., Cluster]
SHAPE = {"layers": 2, "width": 16, "heads": 4, "kv_heads": 2, "hidden": 24}
MOE = MoEConfig(**SHAPE, experts=4, top_k=2, expert_hidden=8, shared_experts=1, balance=Balance.SWITCH)
SLICES = {"tensor_parallel": 2, "sequence_parallel": True}
PLANS = {
    "stages": Plan(pipeline_parallel=2, context_parallel=2, expert_parallel=2, **SLICES),
    "shards": Plan(DataParallelism.FSDP, context_parallel=2, expert_parallel=4, **SLICES),
    "replicas": Plan(DataParallelism.HSDP, dp_replicate=2, expert_parallel=2, expert_tensor_parallel=2, **SLICES),
    "whole": Plan(DataParallelism.ZERO1, tensor_parallel=4, expert_parallel=2),
}
"""Of eight ranks; the last share two key-value heads among four ranks."""


@pytest.mark.parametrize("name", PLANS)
def test_sums_go_along_the_axes_where_the_table_says_that_there_are_parts(clusters: Clusters, name: str) -> None:
    plan = PLANS[name]
    config = TrainConfig(MOE, steps=1, batch=8, sequence=16, warmup=1)
    ledger = ledger_of(config, plan, clusters(8))
    table, seen = roles(MOE, plan, 8), set()
    assert [entry for entry in ledger.entries if entry.what != "norm" and entry.fault] == []
    for entry in ledger.entries:
        row = {"loss": "loss", "gradient": f"gradient: {kind_of(entry.name)}", "router": "router counts"}.get(
            entry.what
        )
        if row and "of a window" not in entry.name:
            parts = tuple(axis for axis, role in table[row].items() if role is Role.PARTS)
            assert entry.axes == tuple(axis for axis in parts if entry.mesh.size(axis) > 1), (row, entry.rank)
            seen.add(row)
    assert {row for row in table if not row.startswith("norm")} == seen


@pytest.mark.parametrize("name", PLANS)
def test_a_norm_has_parts_where_something_is_split(name: str) -> None:
    plan = PLANS[name]
    table = roles(MOE, plan, 8)
    split = {
        axis for row, by_axis in table.items() if row.startswith("gradient") for axis, role in by_axis.items()
        if role is Role.SPLIT
    }  # fmt: skip
    dense = {axis for axis, role in table["norm"].items() if role is Role.PARTS}
    assert dense == (split & set(table["norm"]) - {"pp"}) | set(plan.split_axes)
    experts = {axis for axis, role in table["norm: experts"].items() if role is Role.PARTS}
    assert experts == {"pp", "ep", "etp", *plan.expert_shard_axes}


def test_a_tied_table_has_parts_at_both_ends_of_a_pipeline() -> None:
    tied = GPTConfig(**SHAPE, tied=True)
    table = roles(tied, Plan(pipeline_parallel=2), 4)
    assert table["gradient: embedding"]["pp"] is Role.PARTS
    assert table["gradient: queries, output"]["pp"] is Role.SPLIT
    assert "router counts" not in table and "norm: experts" not in table


def test_messages_of_both_views_are_told_apart(clusters: Clusters) -> None:
    plan = PLANS["stages"]
    trace = ledger_of(TrainConfig(MOE, steps=1, batch=8, sequence=16, warmup=1), plan, clusters(8)).trace
    mesh, view = plan.mesh(8, MOE), plan.expert_mesh(8, MOE)
    assert view.sizes == (2, 1, 2, 2, 1)
    with pytest.raises(BadInput, match=r"ep and tp have the same groups, such as \(0, 1\)"):
        matrices_of_views(trace, mesh, view)
    wide = Plan(pipeline_parallel=2, context_parallel=2, expert_parallel=4, **SLICES)
    trace = ledger_of(TrainConfig(MOE, steps=1, batch=8, sequence=16, warmup=1), wide, clusters(8)).trace
    found = matrices_of_views(trace, mesh, wide.expert_mesh(8, MOE))
    assert set(found) == {"tp", "cp", "pp", "ep", SEVERAL}
    assert sum(int(matrix.sum()) for matrix in found.values()) == sum(trace.bytes_sent)
    rows = found["ep"]
    assert (rows[:4, 4:] == 0).all() and (rows[4:, :4] == 0).all(), "experts of a stage stay in it"
    assert (rows[:4, :4].sum(1) > 0).all()


def test_groups_have_the_names_of_their_axes() -> None:
    mesh = Mesh({"pp": 1, "dp_replicate": 1, "dp_shard": 2, "cp": 2, "tp_head": 2, "tp_copy": 1})
    view = mesh.view({"edp": 2, "ep": 4, "etp": 1}, of=("dp_shard", "cp", "tp_head", "tp_copy"))
    named = groups_of_views(mesh, view)
    assert named[frozenset({0, 1})] == "tp"
    assert named[frozenset({0, 2, 4, 6})] == "dp_shard x cp"
    assert named[frozenset({0, 1, 2, 3})] == "ep"
    assert named[frozenset({0, 4})] == "edp"
