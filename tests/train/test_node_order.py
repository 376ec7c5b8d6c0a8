"""Ranks whose order does not suit a plan are named when a run starts, in one line for each reason."""

import re

import pytest

from reference.choices import ContextMethod
from reference.models import GPTConfig
from reference.models.moe_config import MoEConfig
from reference.node_order import Whereabouts, names_of, order_warnings
from reference.plan import DataParallelism, Plan

MODEL = GPTConfig(4, 64, 8, 8, 128)
EXPERTS = MoEConfig(2, 64, 8, 8, 128, experts=8)
BLOCKS = ["a", "a", "a", "a", "b", "b", "b", "b"]

FITS = {
    "replicas": Plan(DataParallelism.DDP),
    "shards": Plan(DataParallelism.FSDP),
    "tensor parallelism within nodes": Plan(tensor_parallel=4),
    "replicas of shards within nodes": Plan(DataParallelism.HSDP, dp_replicate=2),
    "a pipeline across nodes": Plan(pipeline_parallel=2, micro_batches=2, tensor_parallel=4),
    "a ring across nodes": Plan(context_parallel=8),
    "heads within nodes, a ring across": Plan(
        context_parallel=8, context_method=ContextMethod.USP, context_neighbours=4
    ),
}


@pytest.mark.parametrize("plan", FITS.values(), ids=FITS)
def test_what_stays_inside_nodes_is_not_warned_of(plan: Plan) -> None:
    assert order_warnings(BLOCKS, plan, MODEL) == []


CROSSES = {
    "tensor": (
        Plan(tensor_parallel=8),
        "tensor parallelism crosses nodes: ranks 0, 1, 2, 3, 4, 5, 6, 7 are on a and b",
    ),
    "hsdp": (Plan(DataParallelism.HSDP, dp_replicate=1), r"sharding within replicas \(hsdp\) crosses nodes"),
    "second copies": (Plan(DataParallelism.FSDP, secondary_shards=8), r"the second copy \(hpZ\) crosses nodes"),
    "ulysses": (Plan(context_parallel=8, context_method=ContextMethod.ULYSSES), "all-to-all of heads crosses nodes"),
}


@pytest.mark.parametrize(("plan", "said"), CROSSES.values(), ids=CROSSES)
def test_an_axis_that_crosses_nodes_is_named(plan: Plan, said: str) -> None:
    (warning,) = order_warnings(BLOCKS, plan, MODEL)
    assert re.search(said, warning), warning


def test_experts_on_several_nodes_are_told_of_copies() -> None:
    (warning,) = order_warnings(BLOCKS, Plan(expert_parallel=8), EXPERTS)
    assert "expert parallelism crosses nodes" in warning and "--expert-nodes" in warning
    assert order_warnings(BLOCKS, Plan(expert_parallel=8, expert_nodes=2), EXPERTS) == []


def test_ranks_in_turns_are_named_and_so_is_what_they_break() -> None:
    order, axis = order_warnings(["a", "b"] * 4, Plan(tensor_parallel=2), MODEL)
    assert "not numbered node after node: a has 0, 2, 4, 6" in order and "srun --distribution=block" in order
    assert "tensor parallelism crosses nodes: ranks 0, 1 are on a and b" in axis


def test_nodes_with_different_numbers_of_ranks_are_named() -> None:
    uneven, axis = order_warnings(["a"] * 3 + ["b"] * 5, Plan(tensor_parallel=2), MODEL)
    assert "b has 5 and a has 3" in uneven
    assert "ranks 2, 3 are on a and b" in axis


def test_one_node_is_never_warned_of() -> None:
    assert order_warnings(["a"] * 8, Plan(tensor_parallel=8), MODEL) == []


@pytest.mark.parametrize(
    ("places", "names"),
    [
        ([Whereabouts("a", "0"), Whereabouts("a", "0"), Whereabouts("b", "1")], ["a", "a", "b"]),
        ([Whereabouts("a", ""), Whereabouts("b", "")], ["a", "b"]),  # started by srun, without torchrun
        ([Whereabouts("a", "0"), Whereabouts("a", "1")], ["node 0", "node 1"]),  # nodes of one machine
        (
            [Whereabouts("a", "0"), Whereabouts("a", "1"), Whereabouts("b", "2")],
            ["node 0 of a", "node 1 of a", "node 2 of b"],
        ),
    ],
)
def test_a_node_is_called_by_its_host_if_it_has_one_of_its_own(places: list[Whereabouts], names: list[str]) -> None:
    assert names_of(places) == names
