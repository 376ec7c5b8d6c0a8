"""A replica that fails takes no other along, and one that returns becomes equal to them, bit by bit, as they train."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d as c10d

from reference.cluster import Cluster, Gone
from reference.models.data import ReplicaBatches
from reference.parallelize import DataParallelism, Plan
from reference.resilience.lab import faults
from reference.resilience.per_step import Committed, NoReplica, PerStep, ReplicaSays
from reference.resilience.quorum import StoreQuorum
from reference.resilience.snapshot import copied, nbytes
from reference.resilience.together import SkipTogether
from reference.train import Training

from .runs import CPU, EXACT, state_of, training_of

Clusters = Callable[..., Cluster]
STEPS, AT, CULPRIT, PATIENCE = 5, 2, 1, 3.0
PLAN = Plan(DataParallelism.FLAT)
NAME = "blocks.0.attention.query.weight"


class Trouble(Exception):
    """What a replica raises here."""


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def raise_trouble() -> None:
    raise Trouble("a broken replica")


def stand_still() -> None:
    faults.stand_still(partial(time.sleep, PATIENCE + 1.5))  # longer than the others are patient


WAYS = {"dies": die, "raises": raise_trouble, "stands still": stand_still}


@dataclass
class Fault:
    """What goes wrong, once."""

    place: str  # forward, backward, sum, vote
    way: str

    def happen(self) -> None:
        self.place = ""
        WAYS[self.way]()


class Failing(PerStep):
    """A replica that fails at one place of one step."""

    fault: Fault | None = None

    def arm(self, fault: Fault) -> None:
        self.fault = fault
        self.training.model.blocks[1].register_forward_hook(lambda *_: self.meet("forward"))
        self.training.parameters[NAME].register_hook(lambda _: self.meet("backward"))

    def meet(self, place: str) -> None:
        if self.fault and self.fault.place == place and self.step == AT:
            self.fault.happen()

    def sum(self, mine: Tensor | None, said: dict[int, ReplicaSays]) -> Tensor:
        self._group_of(tuple(said))  # the others are in it
        self.meet("sum")
        return super().sum(mine, said)

    def vote(self, said: dict[int, ReplicaSays], has_sum: bool) -> bool:
        self.meet("vote")
        return super().vote(said, has_sum)


def replica(width: int = 1, plan: Plan = PLAN, **options: Any) -> Failing:
    """This rank's."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    store = dist.PrefixStore("per step", c10d._get_default_store())
    first = rank - rank % width
    group = dist.new_group(list(range(first, first + width)), use_local_synchronization=True)
    training = Training(EXACT, group, CPU, plan)
    return Failing(training, StoreQuorum(store, rank, ranks, PATIENCE, width), store, **options)


Ending = tuple[list[Committed], int, list[str]]


def train_with(fault: Fault | None, steps: int = STEPS) -> Ending:
    """Replicas of one rank each, of which one fails: what was committed, the state at the end, and what was raised."""
    one = replica()
    if fault and dist.get_rank() == CULPRIT:
        one.arm(fault)
    committed = one.run(steps)
    one.quorum.close()
    return committed, state_of(one.training), [type(each).__name__ for each in one.troubles]


def in_one_process(replicas: int, brought: list[tuple[int, ...]]) -> tuple[list[float], int]:
    """The same training, where one process computes the gradients that count in each step."""
    training, losses = training_of(PLAN, EXACT), []
    whole, training.updates = training.batches, SkipTogether(training)
    for step, members in enumerate(brought):
        found = []
        for member in members:
            training.batches = ReplicaBatches(whole, member, replicas)
            loss = training.backward(step)
            gradients = [part.master.grad.flatten() for part in training.form.parts]
            found.append(torch.cat([*gradients, loss.view(1)]))
            training.form.end_step()
        mean = sum(found) / len(found)
        sizes = [part.master.numel() for part in training.form.parts]
        for part, gradient in zip(training.form.parts, mean[:-1].split(sizes), strict=True):
            part.master.grad = gradient.view_as(part.master)
        training.update(step)
        losses.append(mean[-1].item())
    return losses, state_of(training)


def hold(endings: list[Ending], replicas: int, brought: list[tuple[int, ...]], clusters: Clusters) -> None:
    """All took the same steps, are equal, and have the losses of one process."""
    losses, _ = clusters(1).run(in_one_process, replicas, brought)[0]
    for committed, _, _ in endings:
        assert [each.brought for each in committed] == brought[len(brought) - len(committed) :]
        assert [each.loss for each in committed] == pytest.approx(losses[len(losses) - len(committed) :], rel=1e-10)
    assert len({state for _, state, _ in endings}) == 1


@pytest.fixture(scope="module")
def three(clusters: Clusters) -> Iterator[Cluster]:
    yield clusters(3)


EVERYONE, OTHERS = (0, 1, 2), (0, 2)


def test_where_nothing_fails_all_steps_count(three: Cluster, clusters: Clusters) -> None:
    hold(three.survive(train_with, None), 3, [EVERYONE] * STEPS, clusters)


@pytest.mark.parametrize("place", ["forward", "backward", "sum", "vote"])
def test_a_replica_that_dies_takes_no_other_along(three: Cluster, clusters: Clusters, place: str) -> None:
    endings = three.survive(train_with, Fault(place, "dies"))
    assert endings.pop(CULPRIT) == Gone(-signal.SIGKILL)
    hold(endings, 3, [EVERYONE] * AT + [OTHERS] * (STEPS - AT), clusters)


@pytest.mark.parametrize("place", ["forward", "backward"])
def test_a_replica_that_raises_brings_nothing_and_stays(three: Cluster, clusters: Clusters, place: str) -> None:
    """It learns the sum, so it is equal to the others after that step, too."""
    endings = three.survive(train_with, Fault(place, "raises"))
    assert [troubles for _, _, troubles in endings] == [[], ["Trouble"], []]
    hold(endings, 3, [EVERYONE] * AT + [OTHERS] + [EVERYONE] * (STEPS - AT - 1), clusters)


def test_a_sum_that_fails_is_made_again(three: Cluster, clusters: Clusters) -> None:
    endings = three.survive(train_with, Fault("sum", "raises"))
    assert "Trouble" in endings[CULPRIT][2] and all(troubles for _, _, troubles in endings)
    hold(endings, 3, [EVERYONE] * STEPS, clusters)


def with_one_that_returns(steps: int, pieces: int) -> Ending:
    """Replica 2 comes when the others have taken two steps, with other weights."""
    is_new = dist.get_rank() == 2
    one = replica(pieces=pieces, newcomer=is_new)
    if is_new:
        with torch.no_grad():
            for parameter in one.training.parameters.values():
                parameter.normal_()
        while int(one.quorum.read("round") or 0) < 2:
            time.sleep(0.01)
    else:
        one.here = (0, 1)
    committed = one.run(steps)
    one.quorum.close()
    return committed, state_of(one.training), [type(each).__name__ for each in one.troubles]


@pytest.mark.parametrize("pieces", [1, 3])
def test_one_that_returns_heals_while_the_others_continue(three: Cluster, clusters: Clusters, pieces: int) -> None:
    steps = 30
    endings = three.survive(with_one_that_returns, steps, pieces)
    others, new = endings[0][0], endings[2][0]
    assert [each.step for each in others] == [*range(steps)]  # not a step is lost
    joined = new[0].step
    assert joined >= 2 and [each.step for each in new] == [*range(joined, steps)]
    brought = [(0, 1)] * (joined + pieces) + [EVERYONE] * (steps - joined - pieces)
    assert [each.brought for each in others] == brought
    hold(endings, 3, brought, clusters)


def bytes_of_pieces(pieces: int) -> tuple[list[int], int, int]:
    """Of a state after a step, as it is sent; and elements and parts of the model."""
    one = replica(pieces=pieces)
    one.run(1)
    one.quorum.close()
    parts = [[copied(one.training, part) for part in one.parts[piece::pieces]] for piece in range(pieces)]
    return [nbytes(each) for each in parts], sum(part.master.numel() for part in one.parts), len(one.parts)


def test_all_pieces_together_are_the_state_once(clusters: Clusters) -> None:
    """Weight and two moments in 8 bytes, and for each parameter its number of steps in 4."""
    sizes, elements, parts = clusters(1).run(bytes_of_pieces, 3)[0]
    assert sum(sizes) == 3 * 8 * elements + 4 * parts and all(sizes)


def test_one_that_was_left_behind_returns(three: Cluster, clusters: Clusters) -> None:
    """A replica whose process stands still for longer than the others are patient finds itself out, and heals."""
    steps = 250
    endings = three.survive(train_with, Fault("forward", "stands still"), steps)
    others, own = endings[0][0], [each.step for each in endings[CULPRIT][0]]
    assert [each.step for each in others] == [*range(steps)]
    missed = sorted({*range(steps)} - {*own})
    assert missed and missed == [*range(missed[0], missed[-1] + 1)] and own[-1] == steps - 1
    brought = [each.brought for each in others]
    pieces = 4
    assert brought == (
        [EVERYONE] * missed[0]
        + [OTHERS] * (len(missed) + pieces)
        + [EVERYONE] * (steps - missed[0] - len(missed) - pieces)
    )
    losses, _ = clusters(1).run(in_one_process, 3, brought)[0]
    assert [each.loss for each in others] == pytest.approx(losses, rel=1e-8)
    assert len({state for _, state, _ in endings}) == 1


def nobody_can(way: str) -> str:
    one = replica()
    if dist.get_rank() == 0 or way == "raises":
        one.training.model.register_forward_hook(lambda *_: WAYS[way]())
    try:
        one.run(1)
    except NoReplica as error:
        return str(error)
    finally:
        one.quorum.close()
    return "taken"


def test_where_no_replica_can_compute_all_say_so(clusters: Clusters) -> None:
    found = clusters(2).survive(nobody_can, "raises")
    assert all("no replica could compute step 0" in each for each in found)


def test_the_last_one_continues_alone(clusters: Clusters) -> None:
    assert clusters(2).survive(nobody_can, "dies") == [Gone(-signal.SIGKILL), "taken"]


def pairs(plan: Plan) -> Ending:
    """Replicas of two ranks each, of which one dies whole."""
    one = replica(width=2, plan=plan)
    if one.replica == CULPRIT:
        one.training.model.register_forward_hook(lambda *_: die() if one.step == AT else None)
    committed = one.run(STEPS)
    one.quorum.close()
    return committed, state_of(one.training), []


@pytest.mark.parametrize("form", [DataParallelism.DDP, DataParallelism.FSDP])
def test_replicas_of_several_ranks_live_and_die_as_one(clusters: Clusters, form: DataParallelism) -> None:
    endings = clusters(6).survive(pairs, Plan(form))
    assert endings[2:4] == [Gone(-signal.SIGKILL)] * 2
    alive = endings[:2] + endings[4:]
    losses, _ = clusters(1).run(in_one_process, 3, [EVERYONE] * AT + [OTHERS] * (STEPS - AT))[0]
    for committed, _, _ in alive:
        assert [each.loss for each in committed] == pytest.approx(losses, rel=1e-10)
    assert alive[0][1] == alive[2][1] and alive[1][1] == alive[3][1]
