"""Whatever the order, a pipeline computes what one process computes."""

from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from reference.cluster import Cluster, RankError
from reference.mesh import Mesh
from reference.oracle import relative_difference
from reference.pipeline_parallel.channels import channels_of
from reference.pipeline_parallel.orders import gpipe, interleaved, one_f_one_b
from reference.pipeline_parallel.passes import channels
from reference.pipeline_parallel.run import Pipeline
from reference.pipeline_parallel.schedule import Action, Schedule
from reference.pipeline_parallel.split_backward import DeferredWeightGradients, split_backward
from reference.trace.events import Op
from reference.zero_bubble.orders import dual_pipe, zb_h1

from .pipes import ALL, one_process, pipelined, together

Clusters = Callable[..., Cluster]
oracle = lru_cache(one_process)


def fits(name: str, ranks: int) -> bool:
    """Whether eight layers make so many stages, and two directions so many pairs of ranks."""
    return ranks * ALL[name].chunks <= 8 and (name != "dual_pipe" or ranks % 2 == 0)


@pytest.mark.turns(3)
@pytest.mark.parametrize("m", [1, 3, 8])
@pytest.mark.parametrize("name", ALL)
def test_every_order_equals_one_process(clusters: Clusters, name: str, m: int) -> None:
    """In float64 the order of additions costs 1e-15, a mistake 1e-3."""
    loss, gradients = oracle(m)
    for ranks in (1, 2, 3, 4, 8) if m == 3 else (2, 4):
        if fits(name, ranks):
            found_loss, found = together(clusters(8).run(pipelined, ALL[name].make, ranks, m))
            assert found_loss == pytest.approx(loss, rel=1e-12)
            assert found.keys() == gradients.keys()
            assert max(relative_difference(found[key], gradients[key]) for key in gradients) < 1e-10, ranks


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("name", ["1F1B", "interleaved 2", "zb_v"])
def test_every_channel_may_have_a_group_of_its_own(clusters: Clusters, name: str, ranks: int) -> None:
    loss, gradients = oracle(ranks)
    found_loss, found = together(clusters(ranks).run(pipelined, ALL[name].make, ranks, ranks, with_channels=True))
    assert found_loss == pytest.approx(loss, rel=1e-12)
    assert max(relative_difference(found[key], gradients[key]) for key in gradients) < 1e-10


def connected(mesh: Mesh, schedule: Schedule) -> None:
    channels_of(dist.group.WORLD, mesh, schedule, torch.device("cpu"))


@pytest.mark.parametrize("schedule", [one_f_one_b(2, 2), dual_pipe(2, 2), interleaved(4, 4, 2), dual_pipe(4, 4)])
def test_every_channel_has_its_first_message_before_a_step(clusters: Clusters, schedule: Schedule) -> None:
    """DualPipe begins at both ends: ranks that connect when they first send would wait for each other."""
    mesh = Mesh({"pp": schedule.ranks, "dp_shard": 4 // schedule.ranks})
    _, trace = clusters(4, watch=True).trace(connected, mesh, schedule)
    for pipe in mesh.groups("pp"):
        ways = [(pipe[channel.source], pipe[channel.target]) for channel in channels(schedule)]
        for rank in pipe:
            said = [event for event in trace.events[rank] if event.op.point_to_point]
            found = [(rank, event.peer) if event.op is Op.SEND else (event.peer, rank) for event in said]
            assert found == [way for way in ways if rank in way]


@pytest.mark.parametrize("name", ["GPipe", "1F1B", "interleaved 2", "zb_v", "dual_pipe"])
def test_the_watch_has_nothing_to_say(clusters: Clusters, name: str) -> None:
    loss, _ = oracle(4)
    assert together(clusters(4, watch=True).run(pipelined, ALL[name].make, 4, 4))[0] == pytest.approx(loss, rel=1e-12)


def a_fork(steps: int) -> list[float]:
    """Losses of a schedule in which stage 0 hands one micro-batch to rank 1 and another to rank 2."""
    lines = ("F0.0 F0.1 B0.0 B0.1", "F1.0 B1.0", "F2.1 B2.1")
    actions = tuple(tuple(map(Action.parse, line.split())) for line in lines)
    schedule = Schedule(actions, placement=(0, 1, 2), routes=((0, 1), (0, 2)))
    stage = nn.Linear(3, 3, bias=False)
    nn.init.constant_(stage.weight, dist.get_rank() + 1.0)
    pipeline = Pipeline(schedule, {dist.get_rank(): stage}, dist.group.WORLD, torch.device("cpu"))
    losses = [pipeline.step(lambda k: (torch.full((2, 3), k + 1.0),), lambda y, k: y.sum()) for _ in range(steps)]
    return [0.0 if loss is None else loss.item() for loss in losses]


def test_a_stage_may_hand_its_results_to_two_ranks(clusters: Clusters) -> None:
    """A micro-batch of ones, through three 1s, then three 2s; one of twos, through 1s and 3s: 2 rows of 3 numbers."""
    assert clusters(3, watch=True).run(a_fork, 2) == [[0.0] * 2, [6 * 3 * 6.0] * 2, [6 * 2 * 3 * 9.0] * 2]


def with_frozen_first_stage() -> Tensor | None:
    rank = dist.get_rank()
    stage = nn.Linear(3, 3, bias=False).requires_grad_(rank > 0)
    pipeline = Pipeline(gpipe(2, 2), {rank: stage}, dist.group.WORLD, torch.device("cpu"))
    pipeline.step(lambda k: (torch.ones(2, 3),), lambda y, k: y.sum())
    return stage.weight.grad


def test_a_stage_may_have_nothing_to_learn(clusters: Clusters) -> None:
    first, second = clusters(2, watch=True).run(with_frozen_first_stage)
    assert first is None and second.abs().sum() > 0


class Blind(nn.Module):
    """Makes of everything the same."""

    def forward(self, x: Tensor) -> Tensor:
        """Ones like x."""
        return torch.ones_like(x)


def before_a_blind_stage(schedule: Schedule) -> list[float]:
    """What the first of two stages, of 1 rank or 2, finds of the second, in two steps."""
    first = nn.Linear(3, 1, bias=False)
    stages = {0: first, 1: Blind()}
    own = {number: stages[number] for number in schedule.stages_on(dist.get_rank())}
    split_backward(nn.ModuleList(own.values()), deferred := DeferredWeightGradients())
    pipeline = Pipeline(schedule, own, dist.group.WORLD, torch.device("cpu"), deferred=deferred)
    for _ in range(2):
        pipeline.step(lambda k: (torch.ones(1, 3),), lambda y, k: y.sum())
    return first.weight.grad.tolist() if 0 in own else []


@pytest.mark.parametrize("schedule", [gpipe(2, 2), zb_h1(2, 3), interleaved(1, 2, 2)])
def test_a_stage_that_makes_nothing_of_its_input_leaves_it_no_gradient(clusters: Clusters, schedule: Schedule) -> None:
    assert clusters(schedule.ranks).run(before_a_blind_stage, schedule)[0] == [[0.0] * 3]


class Twice(nn.Module):
    """Makes two tensors."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The same, twice."""
        return x, x


def with_outputs(stage: nn.Module, with_gradients: bool, of_loss: Tensor | None) -> None:
    pipeline = Pipeline(interleaved(1, 1, 2), {0: stage, 1: nn.Identity()}, dist.group.WORLD, torch.device("cpu"))
    with torch.set_grad_enabled(with_gradients):
        pipeline.step(lambda k: (torch.ones(2, 3),), lambda y, k: of_loss)


@pytest.mark.parametrize(
    ("stage", "with_gradients", "of_loss", "said"),
    [
        (Twice(), True, torch.ones(()), "stage 0 makes a tuple, and what is handed on is one tensor"),
        (nn.Identity(), True, None, "the loss makes a NoneType, and what is handed on is one tensor"),
        (nn.Identity(), False, torch.ones(()), "goes backward, and gradients are off: for inference, take `forward_o"),
    ],
)
def test_a_step_that_cannot_be_gone_back_is_refused(
    clusters: Clusters, stage: nn.Module, with_gradients: bool, of_loss: Tensor | None, said: str
) -> None:
    with pytest.raises(RankError, match=said):
        clusters(1).run(with_outputs, stage, with_gradients, of_loss)


def after_a_step_that_failed() -> Tensor:
    """The gradient of a weight whose second half was still to come when the loss failed."""
    lines = [map(Action.parse, ("F0.0", "I0.0", "F0.1", "I0.1", "W0.0", "W0.1"))]
    stage = nn.Linear(3, 3, bias=False)
    split_backward(stage, deferred := DeferredWeightGradients())
    pipeline = Pipeline(
        Schedule.straight(lines, [0], 2), {0: stage}, dist.group.WORLD, torch.device("cpu"), deferred=deferred
    )
    with suppress(ZeroDivisionError):
        pipeline.step(lambda k: (torch.ones(2, 3),), lambda y, k: y.sum() * (1 // (1 - k)))
    pipeline.step(lambda k: (torch.ones(2, 3),), lambda y, k: y.sum())
    return stage.weight.grad


def test_a_step_that_fails_leaves_nothing_to_the_next(clusters: Clusters) -> None:
    """Two micro-batches of two rows of ones."""
    assert clusters(1).run(after_a_step_that_failed)[0].tolist() == [[4.0] * 3] * 3


def with_another_shape(second: Tensor) -> None:
    rank = dist.get_rank()
    pipeline = Pipeline(gpipe(2, 2), {rank: nn.Linear(3, 3)}, dist.group.WORLD, torch.device("cpu"))
    pipeline.step(lambda k: ((torch.ones(2, 3), second)[k],), lambda y, k: y.sum())


def test_micro_batches_of_another_shape_are_refused(clusters: Clusters) -> None:
    with pytest.raises(RankError, match=r"stage 0 makes \[1, 3\] of torch.float32, after \[2, 3\]"):
        clusters(2).run(with_another_shape, torch.ones(1, 3))


def of_other_sizes(schedule: Schedule, stages: tuple[int, ...]) -> None:
    Pipeline(schedule, {stage: nn.Linear(3, 3) for stage in stages}, dist.group.WORLD, torch.device("cpu"))


@pytest.mark.parametrize(
    ("schedule", "stages", "said"),
    [
        (gpipe(3, 2), (0,), "a schedule of 3 ranks does not run on 1"),
        (gpipe(1, 2), (1,), r"rank 0 has stages \(0,\) in the schedule, and was given \(1,\)"),
        (zb_h1(1, 2), (0,), "the schedule splits backward: give `deferred="),
    ],
)
def test_what_a_pipeline_cannot_run_is_refused(
    clusters: Clusters, schedule: Schedule, stages: tuple[int, ...], said: str
) -> None:
    with pytest.raises(RankError, match=said):
        clusters(1).run(of_other_sizes, schedule, stages)
