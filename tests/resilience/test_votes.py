"""A flipped bit is found before the update, and the rank is named; or it is said that it cannot be."""

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

from reference.cluster import Cluster
from reference.mesh import Mesh
from reference.parallelize import DataParallelism, Plan
from reference.resilience.plain_votes import outvoted
from reference.resilience.snapshot import TrainingSnapshot
from reference.resilience.votes import ReplicaAxes, Suspicion, Votes, held
from reference.train import Training

from .runs import BITS, CONFIG, flip, training_of

Clusters = Callable[..., Cluster]
WHAT = ("weight", "exp_avg", "gradient")
REPLICAS = (DataParallelism.DDP, DataParallelism.FLAT)
ZERO = (DataParallelism.ZERO1, DataParallelism.ZERO2)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([7, 7, 7], ([], True)),
        ([7, 8, 7], ([1], True)),
        ([8, 7], ([0, 1], False)),
        ([7], ([], True)),
        ([1, 2, 3, 3], ([0, 1, 2, 3], False)),
        ([1, 2, 3, 3, 3], ([0, 1], True)),
    ],
)
def test_a_majority_is_more_than_half(values: list[int], expected: tuple[list[int], bool]) -> None:
    assert outvoted(values) == expected


def tensor_of(training: Training, what: str, name: str) -> torch.Tensor | None:
    """A tensor of this rank that belongs to a parameter, if it has a part of it."""
    part = next((part for part in training.form.parts if part.name == name and part.end > part.begin), None)
    if part is None:
        return None
    if what == "weight":
        return part.master
    return part.master.grad if what == "gradient" else training.optimizer.state[part.master][what]


def after_each_flip(plan: Plan, name: str, seals: bool = True) -> dict[tuple[str, str, int], list[Suspicion]]:
    """What is found, by what was flipped, which bit, and on which rank; nothing else is wrong."""
    training = training_of(plan)
    votes, found = Votes(training), {}
    training.backward(0)
    training.update(0)
    before = TrainingSnapshot.of(training)
    for what in WHAT:
        for kind, bit in BITS.items():
            for rank in range(dist.get_world_size()):
                before.restore(training)
                if seals:
                    votes.seal()
                here = dist.get_rank() == rank
                if here and what != "gradient" and (x := tensor_of(training, what, name)) is not None:
                    flip(x, bit)
                training.backward(1)
                if here and what == "gradient" and (x := tensor_of(training, what, name)) is not None:
                    flip(x, bit)
                found[what, kind, rank] = votes.hold()
                training.form.end_step()
    return found


def named(found: list[Suspicion]) -> set[tuple[tuple[int, ...], bool]]:
    return {(each.ranks, each.certain) for each in found}


@pytest.mark.parametrize(("form", "ranks"), [(DataParallelism.DDP, 3), (DataParallelism.FLAT, 4)])
def test_of_three_replicas_and_more_the_rank_is_named(clusters: Clusters, form: DataParallelism, ranks: int) -> None:
    for found in clusters(ranks).run(after_each_flip, Plan(form), "norm.weight"):
        for (what, _, rank), suspicions in found.items():
            assert named(suspicions) == {((rank,), True)}
            assert f"{what} norm.weight" in {each.what for each in suspicions}


@pytest.mark.parametrize("form", [*ZERO, DataParallelism.FSDP])
def test_what_one_rank_holds_alone_is_named_by_its_seal(clusters: Clusters, form: DataParallelism) -> None:
    """Of a shard's summed gradient there is neither copy nor seal: that is the limit."""
    holders = clusters(3).run(has_part, Plan(form), "embedding.weight")
    for found in clusters(3).run(after_each_flip, Plan(form), "embedding.weight"):
        for (what, _, rank), suspicions in found.items():
            is_seen = holders[rank] and what != "gradient"
            assert named(suspicions) == ({((rank,), True)} if is_seen else set()), (what, rank)


def has_part(plan: Plan, name: str) -> bool:
    return any(part.name == name and part.end > part.begin for part in training_of(plan).form.parts)


def test_of_two_replicas_a_vote_says_only_that_they_differ(clusters: Clusters) -> None:
    for found in clusters(2).run(after_each_flip, Plan(DataParallelism.DDP), "norm.weight", False):
        for suspicions in found.values():
            assert named(suspicions) == {((0, 1), False)}
    assert "no majority says which" in str(suspicions[0])


def test_a_broken_seal_decides_between_two(clusters: Clusters) -> None:
    for found in clusters(2).run(after_each_flip, Plan(DataParallelism.DDP), "norm.weight"):
        for (what, _, rank), suspicions in found.items():
            assert named(suspicions) == ({((0, 1), False)} if what == "gradient" else {((rank,), True)})


def test_replicas_of_shards_are_compared(clusters: Clusters) -> None:
    """HSDP on 4 ranks: ranks 0 and 2 hold the same, and ranks 1 and 3."""
    plan = Plan(DataParallelism.HSDP)
    holders = clusters(4).run(has_part, plan, "embedding.weight")
    for found in clusters(4).run(after_each_flip, plan, "embedding.weight"):
        for (what, _, rank), suspicions in found.items():
            pair = tuple(sorted({rank, (rank + 2) % 4}))
            expected = {(pair, False)} if what == "gradient" else {((rank,), True)}
            assert named(suspicions) == (expected if holders[rank] else set())


@pytest.mark.parametrize(("name", "voters"), [("norm.weight", 4), ("blocks.0.attention.query.weight", 2)])
def test_along_which_axes_there_are_copies_the_spec_says(clusters: Clusters, name: str, voters: int) -> None:
    """2 x 2 ranks: a norm is on all four, a block of a matrix on two."""
    plan = Plan(DataParallelism.DDP, tensor_parallel=2)
    for found in clusters(4).run(after_each_flip, plan, name, False):
        for (_, _, rank), suspicions in found.items():
            pair = tuple(sorted({rank, (rank + 2) % 4}))
            assert named(suspicions) == ({((rank,), True)} if voters == 4 else {(pair, False)})


def test_copies_of_a_parameter() -> None:
    plan = Plan(DataParallelism.HSDP, tensor_parallel=2)
    mesh: Mesh = plan.mesh(8, CONFIG.model)
    update = ReplicaAxes.of("norm.weight", CONFIG.model, plan, 8, of_update=True)
    assert update.groups == mesh.groups(*update.axes) and [len(group) for group in update.groups] == [4, 4]
    matrix = ReplicaAxes.of("blocks.0.attention.query.weight", CONFIG.model, plan, 8, of_update=True)
    assert [len(group) for group in matrix.groups] == [2] * 4


def steps_with_votes(plan: Plan, votes_held: int) -> int:
    training = training_of(plan)
    votes = Votes(training)
    training.backward(0)
    for _ in range(votes_held):
        assert votes.hold() == []
    assert any(True for _ in held(training))
    return len(votes.copies)


@pytest.mark.parametrize(
    "plan",
    [
        Plan(DataParallelism.DDP),
        Plan(DataParallelism.ZERO1),
        Plan(DataParallelism.FSDP),
        Plan(DataParallelism.DDP, tensor_parallel=2),
    ],
    ids=["ddp", "zero1", "fsdp", "ddp and tensor"],
)
def test_where_all_agree_a_vote_is_a_few_integers(clusters: Clusters, plan: Plan) -> None:
    _, without = clusters(4).trace(steps_with_votes, plan, 0)
    counts, trace = clusters(4).trace(steps_with_votes, plan, 2)
    each = 8 * (counts[0] + 1) * 3
    assert [more - less for more, less in zip(trace.bytes_sent, without.bytes_sent, strict=True)] == [2 * each] * 4
    assert len(trace.events[0]) - len(without.events[0]) == 2
