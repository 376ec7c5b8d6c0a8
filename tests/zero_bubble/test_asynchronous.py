"""Pipelines without a flush, on ranks: they see what was planned, and learn what one process learns."""

from collections.abc import Callable
from dataclasses import replace
from statistics import mean
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Function

from reference.cluster import Cluster
from reference.errors import BadInput
from reference.models import GPT, PRESETS, create, token_loss
from reference.oracle import alone, record, relative_difference
from reference.pipeline_parallel.schedule import Action
from reference.zero_bubble.asynchronous import TrainingSetup, asynchronous
from reference.zero_bubble.lab.convergence import curves
from reference.zero_bubble.methods import METHODS, PIPEMARE, TWO_BUFFERED, Method
from reference.zero_bubble.pipemare import PipeMareOptions
from reference.zero_bubble.versions import kept
from reference.zero_bubble.weights import Weights

from .delayed import CONFIG, CPU, OneProcess, Papers, on_ranks, setup_of

Clusters = Callable[..., Cluster]
SIZES = [(2, 1, "momentum"), (2, 3, "adamw"), (4, 1, "adamw"), (4, 3, "momentum"), (4, 4, "adamw")]


class Witness(Function):
    """Hands x on; tells what the weight is in forward, and what it is in backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, told: list[float], step: float) -> Tensor:
        ctx.told, ctx.step = told, step
        ctx.save_for_backward(weight)
        told.append(weight.item())
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (weight,) = ctx.saved_tensors
        ctx.told.append(weight.item())
        return gradient, torch.full_like(weight, -ctx.step), None, None


class Counting(nn.Module):
    """A stage whose weight is the number of updates it has had, when each makes a step of 1."""

    def __init__(self, m: int) -> None:
        super().__init__()
        self.weight, self.told, self.step = nn.Parameter(torch.zeros((), dtype=torch.float64)), [], 1 / m

    def forward(self, x: Tensor) -> Tensor:
        return Witness.apply(x, self.weight, self.told, self.step)


def witnessed(method: Method, m: int, updates: int) -> dict[Action, tuple[int, tuple[int, ...]]]:
    """Of each action of this rank, the version that it really had, and those that were there."""
    group = dist.group.WORLD
    schedule = method.order(group.size(), m, updates)
    stage = Counting(m)
    seen = method.seen(schedule, m)
    weights = Weights(stage, group.rank(), schedule, seen, m, torch.optim.SGD, lambda t: 1.0)
    there: list[tuple[int, ...]] = []
    context = weights.context

    def recorded(action: Action) -> Any:
        there.append(tuple(sorted(weights.versions)))
        return context(action)

    weights.context = recorded
    asynchronous(schedule, {group.rank(): weights}, group, CPU).step(
        lambda k: (torch.ones(2, dtype=torch.float64),), lambda y, k: y.sum()
    )
    line = schedule.lines[group.rank()]
    told = [round(version) for version in stage.told]
    return {action: both for action, *both in zip(line, told, there, strict=True)}


@pytest.mark.parametrize("m", [1, 3, 4])
@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_a_run_sees_and_keeps_the_versions_that_were_planned(clusters: Clusters, method: Method, m: int) -> None:
    p, updates = 4, 8
    if method is TWO_BUFFERED and m == 1:
        m = 5
    schedule = method.order(p, m, updates)
    seen = method.seen(schedule, m)
    versions = kept(schedule, m, seen)
    found = {action: both for part in clusters(p).run(witnessed, method, m, updates) for action, both in part.items()}
    assert {action: version for action, (version, _) in found.items()} == seen
    assert {action: there for action, (_, there) in found.items()} == versions


@pytest.mark.turns(3)
@pytest.mark.parametrize(("p", "m", "optimizer"), SIZES)
@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_ranks_learn_what_one_process_learns_from_late_gradients(
    clusters: Clusters, method: Method, p: int, m: int, optimizer: str
) -> None:
    """In float64 the order of additions costs 1e-14, another version 1e-3."""
    if method is TWO_BUFFERED and m < p - 1:
        m = 12
    assert difference(clusters, method, p, setup_of(m, optimizer)) < 1e-10


def test_a_warm_up_that_flushes_is_a_matter_of_the_order(clusters: Clusters) -> None:
    method = replace(PIPEMARE, pipemare=PipeMareOptions(updates=5, remembered=0.5, warm_up=3))
    assert difference(clusters, method, 4, setup_of(1, "adamw"), flushed=3) < 1e-10


def difference(clusters: Clusters, method: Method, p: int, wanted: TrainingSetup, flushed: int = 0) -> float:
    """How far losses and weights of p ranks are from those of one process."""
    oracle = OneProcess(Papers(method, p, wanted.micro_batches, flushed), wanted).learn()
    parts = [part for part in clusters(4).run(on_ranks, method, p, wanted) if part]
    weights = {name: weight for part in parts for name, weight in part.weights.items()}
    assert weights.keys() == oracle.weights.keys()
    worst = max(relative_difference(weights[name], oracle.weights[name]) for name in weights)
    return max(worst, *(relative_difference(part.losses, oracle.losses) for part in parts))


@pytest.mark.parametrize("optimizer", ["momentum", "adamw"])
@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_on_one_rank_nothing_is_late(clusters: Clusters, method: Method, optimizer: str) -> None:
    wanted = setup_of(3, optimizer)
    model = create(GPT, CONFIG, wanted.seed, CPU, wanted.dtype)

    def loss(update: int) -> Tensor:
        tokens, targets = wanted.batches.of_step(update)
        return token_loss(model(tokens), targets, wanted.batches.tokens)

    plain = record(model, alone(model, wanted.optimizer(model.parameters()), loss, wanted.updates, rate=wanted.rate))
    learned = clusters(4).run(on_ranks, method, 1, wanted)[0]
    assert relative_difference(learned.losses, plain.losses) < 1e-10
    for name, weight in plain.parameters.items():
        assert relative_difference(learned.weights[name], weight) < 1e-10


def test_the_watch_has_nothing_to_say(clusters: Clusters) -> None:
    wanted = setup_of(4, "momentum", updates=3)
    for method in METHODS:
        found = clusters(4, watch=True).run(on_ranks, method, 4, wanted)
        assert found[0].losses == found[3].losses


def test_all_methods_train_a_small_gpt(clusters: Clusters) -> None:
    """The late ones learn a little less from as many updates, and need little more than half of the time."""
    flushing, *late = curves(clusters(4), updates=60, rate=3e-3)
    begin, reached = flushing.losses[0], mean(flushing.losses[-10:])
    assert begin == pytest.approx(5.55, abs=0.05)
    for curve in late:
        assert curve.losses[0] == pytest.approx(begin, rel=1e-5)
        assert reached < mean(curve.losses[-10:]) < reached + 0.4, curve.method.name
        assert curve.update_times[-1] <= 0.6 * flushing.update_times[-1]


def test_a_tied_table_is_refused() -> None:
    with pytest.raises(BadInput, match="a tied table would have versions on two stages"):
        replace(setup_of(4, "adamw"), model=PRESETS["tiny"])


def test_dropout_is_refused() -> None:
    plain = setup_of(4, "adamw")
    with pytest.raises(BadInput, match=r"train without dropout: set it to 0, not 0\.1"):
        replace(plain, model=replace(plain.model, dropout=0.1))


def test_windows_that_do_not_divide_are_refused() -> None:
    with pytest.raises(BadInput, match="12 windows do not divide among 5 micro-batches"):
        setup_of(5, "adamw")
