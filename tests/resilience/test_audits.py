"""A gradient that is wrong before it is summed is found by computing it again on another rank."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from reference.choices import Compress
from reference.cluster import Cluster
from reference.errors import BadInput
from reference.models.data import Batches, python_text
from reference.parallelize import DataParallelism, Plan
from reference.resilience.audits import Audits, Brought, Passed

from .runs import BITS, CONFIG, flip, state_of, training_of

Clusters = Callable[..., Cluster]
NAME = "blocks.0.attention.query.weight"
PLANS = [
    (Plan(DataParallelism.DDP), 3),
    (Plan(DataParallelism.FLAT, micro_batches=2), 3),
    (Plan(DataParallelism.ZERO1), 3),
    (Plan(DataParallelism.ZERO2, micro_batches=2), 3),
    (Plan(DataParallelism.FSDP), 3),
    (Plan(DataParallelism.HSDP, dp_replicate=3), 6),
]
IDS = ["ddp", "flat", "zero1", "zero2", "fsdp", "hsdp"]
NEVER, FOR_THE_NEIGHBOUR, ITS_OWN, ALWAYS = (), (1,), (2,), (1, 2, 3)


def test_parts_are_passed_on_and_nothing_else_changes() -> None:
    batches = Batches.of(python_text(), 16, 12)
    passed = Passed.from_batches(batches, 1)
    for rank in range(3):
        for x, y in zip(passed.of_step(5, rank, 3), batches.of_step(5, (rank - 1) % 3, 3), strict=True):
            assert torch.equal(x, y)
    assert passed.tokens == batches.tokens and passed.windows == batches.windows


def audited(plan: Plan, bit: int, wrong_in: tuple[int, ...]) -> list[set[tuple[tuple[int, ...], bool]]]:
    """Who is named, where one rank after the other computes wrongly in some of its backwards of a step."""
    brought, found = Brought(), []
    training = training_of(plan, communicate=brought.over)
    audits, backwards, culprit = Audits(training, brought), 0, 0

    def compute_wrongly(gradient: Tensor) -> Tensor | None:
        nonlocal backwards
        backwards += 1
        turn, micro_batch = divmod(backwards - 1, plan.micro_batches)
        if dist.get_rank() != culprit or turn + 1 not in wrong_in or micro_batch:  # two flips may add up to none
            return None
        gradient = gradient.clone()
        flip(gradient, bit, int(gradient.abs().argmax()))  # a bit of a small one is lost in a sum with a large one
        return gradient

    training.parameters[NAME].register_hook(compute_wrongly)
    for rank in range(dist.get_world_size()):
        culprit, backwards = rank, 0
        _, suspicions = audits.backward(3)
        found.append({(each.ranks, each.certain) for each in suspicions})
        training.form.end_step()
    return found


@pytest.mark.turns(4)
@pytest.mark.parametrize("wrong_in", [FOR_THE_NEIGHBOUR, ITS_OWN, ALWAYS], ids=["neighbour", "own", "always"])
@pytest.mark.parametrize(("plan", "ranks"), PLANS, ids=IDS)
def test_the_rank_is_named(clusters: Clusters, plan: Plan, ranks: int, wrong_in: tuple[int, ...]) -> None:
    """One bit at the end of a mantissa is enough."""
    found = clusters(ranks).run(audited, plan, BITS["mantissa"], wrong_in)
    assert found == [[{((culprit,), True)} for culprit in range(ranks)]] * ranks


@pytest.mark.parametrize("bit", [BITS["sign"], BITS["exponent"]], ids=["sign", "exponent"])
def test_any_bit_will_do(clusters: Clusters, bit: int) -> None:
    found = clusters(3).run(audited, Plan(DataParallelism.DDP), bit, ITS_OWN)
    assert found == [[{((culprit,), True)} for culprit in range(3)]] * 3


def test_of_two_ranks_the_one_that_was_wrong_once_is_named_and_not_one_that_always_is(clusters: Clusters) -> None:
    plan = Plan(DataParallelism.DDP)
    once = clusters(2).run(audited, plan, BITS["mantissa"], ITS_OWN)
    assert once == [[{((0,), True)}, {((1,), True)}]] * 2
    always = clusters(2).run(audited, plan, BITS["mantissa"], ALWAYS)
    assert always == [[{((0, 1), False)}] * 2] * 2


def step_after_step(plan: Plan, is_audited: bool) -> tuple[list[float], int]:
    brought, losses = Brought(), []
    training = training_of(plan, communicate=brought.over)
    audits = Audits(training, brought)
    for step in range(3):
        loss, suspicions = audits.backward(step) if is_audited else (training.backward(step), [])
        assert suspicions == []
        training.update(step)
        losses.append(float(loss))
    return losses, state_of(training)


@pytest.mark.parametrize(("plan", "ranks"), PLANS, ids=IDS)
def test_an_audited_step_that_is_well_is_the_step(clusters: Clusters, plan: Plan, ranks: int) -> None:
    plain, checked = (clusters(ranks).run(step_after_step, plan, is_audited) for is_audited in (False, True))
    assert checked == plain


def one_step(is_audited: bool) -> None:
    brought = Brought()
    training = training_of(Plan(DataParallelism.DDP), communicate=brought.over)
    if is_audited:
        Audits(training, brought).backward(0)
    else:
        training.backward(0)


def test_an_audit_sends_a_step_twice_and_sixteen_bytes_to_each_other_rank(clusters: Clusters) -> None:
    (_, plain), (_, checked) = (clusters(3).trace(one_step, is_audited) for is_audited in (False, True))
    assert checked.bytes_sent == [2 * sent + 16 * 2 for sent in plain.bytes_sent]


def refused(plan: Plan, compress: Compress = Compress.NONE) -> str:
    brought = Brought()
    training = training_of(plan, replace(CONFIG, compress=compress), communicate=brought.over)
    try:
        Audits(training, brought)
    except BadInput as error:
        return str(error)
    return ""


def test_where_other_axes_have_a_part_in_gradients_an_audit_is_refused(clusters: Clusters) -> None:
    assert all("2 or more ranks" in each for each in clusters(4).run(refused, Plan(tensor_parallel=2)))


@pytest.mark.parametrize("compress", [Compress.TOP_K, Compress.POWER_SGD, Compress.ONE_BIT])
def test_what_is_kept_of_compressed_gradients_would_be_counted_twice(clusters: Clusters, compress: Compress) -> None:
    found = clusters(3).run(refused, Plan(DataParallelism.FLAT), compress)
    assert all("leave out --compress" in each for each in found)
