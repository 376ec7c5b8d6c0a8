"""A model that is split over a tensor axis is the model of one process: losses, norms, gradients, parameters."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from unittest.mock import patch

import pytest

from reference import on_mesh
from reference.cluster import Cluster
from reference.memory.recompute import Recompute
from reference.parallelize import DataParallelism, Plan

from ..data_parallel.low_precision import ADD_UP, ROUNDING
from ..data_parallel.training import FROZEN, OPTIMIZERS, Language, same_bits
from .training import Case, Found, apart, found_of, model_for, oracle_of, train_all, wrong

Clusters = Callable[..., Cluster]
BOTH = (False, True)  # sequence parallelism off and on


def prove(cluster: Cluster, cases: Sequence[Case]) -> None:
    """Each equals one process; what several ranks hold, and what all say, is the same to the last bit."""
    for case, found in zip(cases, found_of(cluster, cases), strict=True):
        assert wrong(found, oracle_of(case, cluster.world_size)) == {}, case
        assert apart(found) == [], case
        assert all(same_bits(record, found[0].record) for record, _ in found), case


@pytest.mark.turns(2)
@pytest.mark.parametrize("t", range(1, 9))
def test_any_number_of_ranks_equals_one_process(clusters: Clusters, t: int) -> None:
    """With as many key-value heads as ranks, with fewer, and with one for all; with and without a head of its own."""
    ways = [(t, False), (1, True), (1, False), (t // 2, True)]  # key-value heads, sequence parallelism
    cases = []
    for kv_heads, slices in ways[: 1 if t == 1 else 3 if t % 2 else 4]:
        task = Language(model_for(t, kv_heads, tied=len(cases) % 2 == 1), sequence=2 * t)
        plan = Plan(
            (DataParallelism.DDP, DataParallelism.FSDP)[len(cases) // 2], tensor_parallel=t, sequence_parallel=slices
        )
        cases.append(Case(plan, task))
    prove(clusters(t), cases)


@pytest.mark.parametrize(
    ("t", "forms"),
    [
        (2, tuple(DataParallelism)),
        (4, (DataParallelism.DDP, DataParallelism.ZERO2, DataParallelism.HSDP, DataParallelism.FSDP)),
    ],
)
def test_any_form_of_data_parallelism_on_the_other_axis(
    clusters: Clusters, t: int, forms: tuple[DataParallelism, ...]
) -> None:
    """On 8 ranks, one or two micro-batches of uneven rows, whatever is recomputed. Two ranks share a key-value head."""
    task = Language(model_for(t, t // 2), sequence=2 * t)
    cases = []
    for i, form in enumerate(forms):
        how = tuple(Recompute)[i % 3]
        plan = Plan(form, 1 + i % 2, how, tensor_parallel=t, sequence_parallel=(i + t // 2) % 2 == 0)
        cases.append(Case(plan, task))
    prove(clusters(8), cases)


def test_any_optimizer_any_tying_any_freezing(clusters: Clusters) -> None:
    cases = []
    for optimizer, tied, frozen in itertools.product(OPTIMIZERS, BOTH, ((), FROZEN)):
        plan = Plan(DataParallelism.DDP, tensor_parallel=2, sequence_parallel=len(cases) % 3 == 1)
        cases.append(Case(plan, Language(model_for(2, tied=tied), frozen, sequence=4), optimizer))
    prove(clusters(4), cases)


@pytest.mark.parametrize("frozen", [("norm", "blocks"), ("embedding", "norm", "head"), ("blocks.1", "head")])
def test_any_part_may_be_frozen(clusters: Clusters, frozen: tuple[str, ...]) -> None:
    """What needs no gradient is not computed, and what learns is not cut off from it, whatever is recomputed."""
    task = Language(model_for(4, 2), frozen, sequence=4)
    plans = [Plan(recompute=how, tensor_parallel=4, sequence_parallel=how is not Recompute.FULL) for how in Recompute]
    prove(clusters(4), [Case(plan, task) for plan in plans])


def forgotten(cases: Sequence[Case]) -> list[Found]:
    """Trainings in which no gradients are summed over the tensor axis."""
    with patch.object(on_mesh, "partial_groups", lambda *_: []):
        return train_all(cases)


@pytest.mark.parametrize(
    ("case", "name"),
    [
        (Case(Plan(tensor_parallel=2, sequence_parallel=True), Language(model_for(2, 2), sequence=4)), "norm.weight"),
        (Case(Plan(tensor_parallel=2), Language(model_for(2), sequence=4)), "blocks.0.attention.key.weight"),
    ],
)
def test_a_forgotten_sum_is_noticed(clusters: Clusters, case: Case, name: str) -> None:
    """Of norms, where each rank saw other tokens; of a head that both have. The norm is off, and copies drift apart."""
    found = [of_rank[0] for of_rank in clusters(2).run(forgotten, [case])]
    far = wrong(found, oracle_of(case, 2), bound=1e-5)
    assert f"gradient of {name}" in far and "norm in step 0" in far
    assert name in {place.name for place in apart(found)}


@pytest.mark.parametrize("slices", BOTH)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_low_precision_is_off_by_its_rounding_alone(clusters: Clusters, precision: str, slices: bool) -> None:
    """Four ranks round four parts of a sum, and then the sum: no more than one process, within a factor that is noise.

    The optimizer is SGD: a step is then as exact as its gradient.
    """
    task = Language(model_for(4, 2), sequence=8)
    plan = Plan(tensor_parallel=4, sequence_parallel=slices)
    cases = [
        Case(replace(plan, data_parallel=form), task, "SGD", precision)
        for form in (DataParallelism.DDP, DataParallelism.FSDP)
    ]
    for case, found in zip(cases, found_of(clusters(8), cases), strict=True):
        far = wrong(found, oracle_of(case, 8), bound=0.0)
        bounds = {name: ADD_UP[name.split()[0]] * ROUNDING[precision] for name in far}
        assert {name: far[name] for name in far if far[name] > bounds[name]} == {}, case
        assert apart(found) == [], case
