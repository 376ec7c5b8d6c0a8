"""NaN or infinity on one rank: all ranks leave the step out, in the same step, and it is named where it began."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from reference.cluster import Cluster
from reference.memory.precision import PRECISIONS
from reference.parallelize import DataParallelism, Plan
from reference.resilience.together import FirstNotFinite, NotFinite, SkipTogether, take_step
from reference.train import Training

from .runs import EXACT, state_of, training_of

Clusters = Callable[..., Cluster]
NAME = "blocks.1.attention.query.weight"
STEPS, BAD = 4, 2
PLANS = {
    "flat": Plan(DataParallelism.FLAT),
    "ddp": Plan(DataParallelism.DDP),
    "zero2": Plan(DataParallelism.ZERO2),
    "fsdp": Plan(DataParallelism.FSDP),
    "hsdp": Plan(DataParallelism.HSDP),
    "tensor": Plan(DataParallelism.DDP, tensor_parallel=2),
}


def spoil_gradient(training: Training, rank: int, step: Callable[[], int], value: float) -> None:
    """Let one element of a gradient of this rank be infinite or NaN in a step, before it is summed."""

    def spoil(gradient: Tensor) -> Tensor | None:
        if dist.get_rank() != rank or step() != BAD:
            return None
        spoilt = gradient.clone()
        spoilt.view(-1)[0] = value
        return spoilt

    training.parameters[NAME].register_hook(spoil)


def spoilt_run(plan: Plan, rank: int, value: float) -> tuple[list[int], list[int], list[str]]:
    """Steps that were left out, this rank's state after each, and what was named."""
    training, step, states, named = training_of(plan, EXACT), 0, [], []
    training.updates = SkipTogether(training)
    spoil_gradient(training, rank, lambda: step, value)  # what autograd finds, before a watch can look at it
    watch = FirstNotFinite(training)
    for step in range(STEPS):
        watch.begin()
        taken = take_step(training, step)
        if not taken.counts:
            named += map(str, watch.named())
        states.append(state_of(training))
    return training.updates.skipped, states, named


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS.keys())
def test_all_leave_it_out_and_the_rank_and_the_parameter_are_named(
    clusters: Clusters, plan: Plan, value: float
) -> None:
    for culprit in (0, 3):
        for skipped, states, named in clusters(4).run(spoilt_run, plan, culprit, value):
            assert skipped == [BAD]
            assert states[BAD] == states[BAD - 1] != states[BAD + 1]
            assert named == [f"rank {culprit}: the gradient of {NAME} is the first that is not finite"]


def without_a_watch(plan: Plan, updates: bool) -> list[float]:
    """The same by the policy alone, in the loop as it is: norms of all steps."""
    training, step = training_of(plan, EXACT), 0
    if updates:
        training.updates = SkipTogether(training)
        spoil_gradient(training, 1, lambda: step, float("nan"))
    norms = []
    for step in range(STEPS):
        training.backward(step)
        norms.append(training.update(step))
    return norms


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS.keys())
def test_the_policy_needs_no_message_of_its_own(clusters: Clusters, plan: Plan) -> None:
    _, usual = clusters(4).trace(without_a_watch, plan, False)
    norms, trace = clusters(4).trace(without_a_watch, plan, True)
    assert trace.bytes_sent == usual.bytes_sent
    assert [[norm == norm for norm in of_rank] for of_rank in norms] == [[True, True, False, True]] * 4


def after_the_sum(plan: Plan, culprit: int) -> tuple[list[int], list[int]]:
    """NaN in one replica's copy of the summed gradient."""
    training, states = training_of(plan, EXACT), []
    training.updates, backward = SkipTogether(training), training.backward

    def spoilt_backward(step: int) -> Tensor:
        loss = backward(step)
        if step == BAD and dist.get_rank() == culprit:
            training.form.parts[0].master.grad.view(-1)[0] = float("nan")
        return loss

    training.backward = spoilt_backward
    for step in range(STEPS):
        take_step(training, step)
        states.append(state_of(training))
    return training.updates.skipped, states


@pytest.mark.parametrize("plan", [PLANS["ddp"], PLANS["hsdp"], PLANS["tensor"]], ids=["ddp", "hsdp", "tensor"])
def test_what_arises_after_the_sum_travels_with_the_loss(clusters: Clusters, plan: Plan) -> None:
    for culprit in range(4):
        for skipped, states in clusters(4).run(after_the_sum, plan, culprit):
            assert skipped == [BAD] and states[BAD] == states[BAD - 1]


def one_step(is_together: bool) -> None:
    training = training_of(PLANS["ddp"], EXACT)
    training.updates = SkipTogether(training)
    if is_together:
        take_step(training, 0)
        return
    loss = training.backward(0)
    training.update(0)
    dist.all_reduce(loss, group=training.loss_group)


def test_the_flag_takes_eight_bytes_in_a_message_that_is_there(clusters: Clusters) -> None:
    (_, plain), (_, trace) = (clusters(2).trace(one_step, is_together) for is_together in (False, True))
    assert len(trace.events[0]) == len(plain.events[0])
    assert sum(trace.bytes_sent) - sum(plain.bytes_sent) == 2 * 8


def where_a_weight_is_broken(plan: Plan, culprit: int) -> list[str]:
    training = training_of(plan, EXACT)
    training.updates = SkipTogether(training)
    watch = FirstNotFinite(training)
    if dist.get_rank() == culprit:
        with torch.no_grad():
            training.parameters["blocks.1.attention_norm.weight"].view(-1)[0] = float("inf")
    take_step(training, 0)
    return [*map(str, watch.named())]


def test_a_broken_weight_is_named_by_the_first_module_that_shows_it(clusters: Clusters) -> None:
    line = "rank 2: the output of blocks.1.attention_norm is the first that is not finite"
    assert clusters(3).run(where_a_weight_is_broken, PLANS["ddp"], 2) == [[line]] * 3


def until_it_is_enough(most: int) -> str:
    training = training_of(PLANS["ddp"], EXACT)
    training.updates = SkipTogether(training, most)
    training.parameters[NAME].register_hook(lambda x: x * float("nan") if dist.get_rank() == 1 else None)
    try:
        for step in range(9):
            training.backward(step)
            training.update(step)
    except NotFinite as error:
        return str(error)
    return ""


@pytest.mark.parametrize("most", [0, 2])
def test_all_stop_in_the_same_step(clusters: Clusters, most: int) -> None:
    said = f"gradients are infinite or NaN in {most + 1} steps in a row, up to step {most}"
    assert clusters(2).run(until_it_is_enough, most) == [said] * 2


def with_a_large_scale() -> tuple[list[int], float, int]:
    """In fp16, from a scale that overflows at first."""
    training = training_of(PLANS["ddp"], replace(EXACT, precision=PRECISIONS["fp16"]))
    training.updates = SkipTogether(training, most=0)
    training.scaler.factor = 2.0**30
    for step in range(30):
        take_step(training, step)
    return training.updates.skipped, training.scaler.factor, state_of(training)


def test_a_scale_that_overflows_is_the_scalers_affair(clusters: Clusters) -> None:
    found = clusters(2).run(with_a_large_scale)
    assert found[0] == found[1] and found[0][0] == [] and found[0][1] < 2.0**30
