"""A bit that flips while gradients are added up is found, and in a ring the rank is named."""

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from reference.cluster import Cluster
from reference.collectives import all_reduce, cost
from reference.collectives.communicator import ByHand, Communicator, Native
from reference.parallelize import DataParallelism, Plan
from reference.resilience.checked_sums import TAIL, Checked, CheckedRing

from .runs import flip, state_of, training_of

Clusters = Callable[..., Cluster]
LENGTH = 37
SEEN = {"sign": 31, "exponent": 27, "first of the mantissa": 22}


def contribution(rank: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Between 1 and 2 in magnitude: what a bit changes is known."""
    generator = torch.Generator().manual_seed(rank)
    signs = torch.randint(0, 2, (LENGTH,), generator=generator) * 2 - 1
    return (signs * (1 + torch.rand(LENGTH, generator=generator))).to(dtype)


class Broken(CheckedRing):
    """A ring in which one rank's k-th addition goes wrong."""

    def __init__(self, culprit: int, turn: int, bit: int) -> None:
        super().__init__(dist.group.WORLD)
        self.culprit, self.turn, self.bit, self.additions = culprit, turn, bit, 0

    def add(self, chunk: Tensor, received: Tensor) -> None:
        super().add(chunk, received)
        if self.rank() == self.culprit and self.additions == self.turn:
            flip(chunk, self.bit)
        self.additions += 1


def accused_where_one_is_broken(bit: int) -> dict[tuple[int, int], list[int]]:
    """By culprit and turn: whom all ranks accuse."""
    n, found = dist.get_world_size(), {}
    for culprit in range(n):
        for turn in range(n - 1):
            ring = Broken(culprit, turn, bit)
            ring.all_reduce(contribution(dist.get_rank()))
            found[culprit, turn] = ring.accused()
    return found


@pytest.mark.parametrize("bit", SEEN.values(), ids=SEEN.keys())
@pytest.mark.parametrize("n", [2, 3, 4])
def test_a_ring_names_the_rank_that_adds_up_wrongly(clusters: Clusters, n: int, bit: int) -> None:
    for found in clusters(n).run(accused_where_one_is_broken, bit):
        assert found == {(culprit, turn): [culprit] for culprit in range(n) for turn in range(n - 1)}


def test_the_last_bit_is_within_rounding(clusters: Clusters) -> None:
    assert not any(found for each in clusters(3).run(accused_where_one_is_broken, 0) for found in each.values())


class Forgetful(CheckedRing):
    """A ring in which one rank's copy of the sum goes wrong before it is passed on."""

    def __init__(self, culprit: int) -> None:
        super().__init__(dist.group.WORLD)
        self.culprit, self.passed = culprit, 0

    def _pass(self, outgoing: Tensor, *others: Tensor) -> Tensor:
        if self.rank() == self.culprit and self.passed == self.size():  # the second message of the all-gather
            flip(outgoing, 30)
        self.passed += 1
        return super()._pass(outgoing, *others)


def accused_where_one_forgets() -> list[list[int]]:
    found = []
    for culprit in range(dist.get_world_size()):
        ring = Forgetful(culprit)
        ring.all_reduce(contribution(dist.get_rank()))
        found.append(ring.accused())
    return found


def test_a_ring_names_the_rank_that_passes_on_something_else(clusters: Clusters) -> None:
    """And not those that pass that on."""
    assert clusters(4).run(accused_where_one_forgets) == [[[0], [1], [2], [3]]] * 4


def both_rings(dtype: torch.dtype) -> tuple[bool, list[int]]:
    ring, x = CheckedRing(dist.group.WORLD), contribution(dist.get_rank(), dtype)
    y = x.clone()
    ring.all_reduce(x)
    all_reduce.ring(y, dist.group.WORLD)
    return torch.equal(x, y), ring.accused()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("n", [1, 2, 5])
def test_a_ring_that_is_well_sums_as_any_other(clusters: Clusters, n: int, dtype: torch.dtype) -> None:
    assert clusters(n).run(both_rings, dtype) == [(True, [])] * n


def other_reductions() -> list[list[float]]:
    """The largest and the smallest number, and a sum of whole ones."""
    ring, rank = CheckedRing(dist.group.WORLD), dist.get_rank()
    found = []
    for x, op in (
        (torch.full([5], rank + 1.0), dist.ReduceOp.MAX),
        (torch.full([5], rank + 1.0), dist.ReduceOp.MIN),
        (torch.full([5], rank + 1), dist.ReduceOp.SUM),
    ):
        ring.all_reduce(x, op)
        found.append(x.tolist())
    return found


def test_a_checked_ring_has_other_reductions_than_sums(clusters: Clusters) -> None:
    assert clusters(3).run(other_reductions) == [[[3.0] * 5, [1.0] * 5, [6] * 5]] * 3


def checked_ring_alone() -> None:
    CheckedRing(dist.group.WORLD).all_reduce(contribution(dist.get_rank()))


def test_a_checked_ring_sends_sixteen_bytes_more_in_each_message(clusters: Clusters) -> None:
    _, trace = clusters(4).trace(checked_ring_alone)
    plain = [cost.of(all_reduce.ring).bytes(rank, 4, LENGTH, 4) for rank in range(4)]
    assert trace.bytes_sent == [sent + 2 * 3 * TAIL for sent in plain]


class Flipping(Native):
    """Sums that are wrong in one bit, on all ranks: of the k-th reduction of more than a checksum."""

    def __init__(self, bit: int) -> None:
        super().__init__(dist.group.WORLD)
        self.bit = bit

    def _finish(self, x: Tensor) -> Tensor:
        if x.dtype == torch.float32:
            flip(x, self.bit)
        return x

    def start_all_reduce(self, x: Tensor, op: dist.ReduceOp = dist.ReduceOp.SUM) -> Callable[[], Tensor]:
        finish = super().start_all_reduce(x, op)
        return lambda: self._finish(finish())

    def start_reduce_scatter(self, x: Tensor, out: Tensor) -> Callable[[], Tensor]:
        finish = super().start_reduce_scatter(x, out)
        return lambda: self._finish(finish()) if self.rank() == 1 else finish()


def all_reduced(communicator: Communicator, x: Tensor) -> None:
    communicator.start_all_reduce(x)()


def reduce_scattered(communicator: Communicator, x: Tensor) -> None:
    communicator.start_reduce_scatter(x, x.new_empty(len(x) // communicator.size()))()


def wrong_sums(bit: int) -> tuple[int, int]:
    """How many wrong sums this rank finds in an all-reduce, and in a reduce-scatter that is wrong on rank 1."""
    n, found = dist.get_world_size(), []
    for start in (all_reduced, reduce_scattered):
        checked = Checked(Flipping(bit))
        start(checked, contribution(dist.get_rank())[: LENGTH // n * n].clone())
        found.append(len(checked.wrong))
    return tuple(found)


@pytest.mark.parametrize("bit", SEEN.values(), ids=SEEN.keys())
def test_the_sum_of_the_sum_is_the_sum_of_the_sums(clusters: Clusters, bit: int) -> None:
    assert clusters(4).run(wrong_sums, bit) == [(1, int(rank == 1)) for rank in range(4)]


def three_steps(plan: Plan, is_checked: bool) -> tuple[int, int]:
    made: list[Checked] = []

    def communicate(group: dist.ProcessGroup) -> Checked:
        made.append(Checked(group))
        return made[-1]

    training = training_of(plan, **({"communicate": communicate} if is_checked else {}))
    for step in range(3):
        training.backward(step)
        training.update(step)
    return state_of(training), sum(len(each.wrong) for each in made)


@pytest.mark.parametrize("form", [DataParallelism.DDP, DataParallelism.ZERO2, DataParallelism.FSDP])
def test_training_that_is_well_is_unchanged_and_raises_no_alarm(clusters: Clusters, form: DataParallelism) -> None:
    plain, checked = (clusters(3).run(three_steps, Plan(form), is_checked) for is_checked in (False, True))
    assert checked == plain and all(wrong == 0 for _, wrong in checked)


def one_checked_sum(of: Callable[[Communicator, Tensor], None]) -> None:
    of(Checked(ByHand(dist.group.WORLD)), contribution(dist.get_rank())[:36])


@pytest.mark.parametrize(("of", "passes", "more"), [(all_reduced, 2, 16), (reduce_scattered, 1, 64)])
def test_what_a_checksum_costs(
    clusters: Clusters, of: Callable[[Communicator, Tensor], None], passes: int, more: int
) -> None:
    """Around a ring of 4 ranks, in chunks of which all are equally long."""
    _, trace = clusters(4).trace(one_checked_sum, of)
    sums = passes * 3 / 4 * (36 * 4 + more)
    assert sum(trace.bytes_sent) == 4 * sums
