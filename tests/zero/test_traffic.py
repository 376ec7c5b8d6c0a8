"""Each stage sends what the formula says: parameters in the dtype that is computed in, gradients in theirs."""

from collections.abc import Callable
from functools import partial
from itertools import pairwise

import pytest
import torch
from torch import nn

from reference.cluster import Cluster
from reference.data_parallel.buckets import in_order_of_use
from reference.memory.precision import PRECISIONS
from reference.trace import Op
from reference.zero import FullySharded, Sharded, cost

from ..data_parallel.conftest import MOST, in_group, members
from ..data_parallel.traffic import GATHERS, REDUCTIONS, between, sent, steps
from ..data_parallel.training import BUCKET, UNTIED, Case, Language, LeavingOut, TwoLayers
from .forms import FORMS, FULLY, STAGES

SIZES = {"fp32": (4, 4), "bf16": (2, 4), "fp64": (8, 8)}  # bytes of an element of parameters, and of gradients

BLOCK = 2 * 144 + 2 * 48 + 3 * 84 + 2 * 12
UNITS = [17 * 12, BLOCK, BLOCK, 12 + 17 * 12]  # embedding, blocks, norm and head
HALF = (2 * 144 + 2 * 48, 3 * 84)  # attention, feed-forward
LEFT = 17 * 12 + 5 * 12  # by halves and head: the embedding and five norms


def buckets(precision: str) -> list[int]:
    """Elements of each bucket of ZeRO-1 and ZeRO-2."""
    parameters = list(Language().model(PRECISIONS[precision].master).parameters())
    return [sum(parameter.numel() for parameter in bucket) for bucket in in_order_of_use(parameters, BUCKET)]


def formula(case: Case, n: int) -> cost.StepCost:
    """What `cost` says of a step."""
    formulas: dict[str, Callable[[], cost.StepCost]] = {
        "ZeRO-1": lambda: cost.zero_1(buckets(case.precision), n),
        "ZeRO-2": lambda: cost.zero_2(buckets(case.precision), n, case.micro_batches),
        "ZeRO-2, one bucket": lambda: cost.zero_2([sum(UNITS)], n, case.micro_batches),
        "FSDP": lambda: cost.zero_3(UNITS, n, case.micro_batches),
        "FSDP, gathered once": lambda: cost.zero_3_gathered(UNITS, n, case.micro_batches),
        "FSDP in one unit": lambda: cost.zero_3([sum(UNITS)], n, case.micro_batches),
        "FSDP by halves": lambda: cost.zero_3([LEFT, *HALF, *HALF, 17 * 12], n, case.micro_batches),
    }
    return formulas[case.name.removesuffix(", no prefetch")]()


def gathers_in_steps(case: Case) -> int:
    """Of a training: ZeRO-1 and ZeRO-2 gather each bucket by an algorithm of several steps."""
    if case.name not in STAGES:
        return 0
    return case.steps * (1 if "one bucket" in case.name else len(buckets(case.precision)))


def test_the_units_are_all_of_the_model() -> None:
    assert sum(UNITS) == UNTIED.parameters == 1740


@pytest.mark.turns(2)
@pytest.mark.parametrize("n", range(1, MOST + 1))
def test_each_form_sends_what_the_formula_says(ranks: Cluster, n: int) -> None:
    """In the first step, when FSDP does not know what to fetch next, and in the second."""
    precision = ("bf16", "fp64")[n % 2]
    common = {"micro_batches": 1 + n % 3, "precision": precision, "steps": 2 if n <= 4 else 1}
    cases = [Case(name, FORMS[name], **common) for name in (*STAGES, *FULLY, "FSDP by halves")]
    found = sent(ranks, n, cases)
    for case in cases:
        traffic, expected = found[str(case)], formula(case, n)
        assert traffic.bytes == [case.steps * expected.bytes_sent(*SIZES[precision])] * n, str(case)
        collectives = traffic.collectives + gathers_in_steps(case)  # each is n-1 messages in a row
        at_once = [0] * n if case.name in STAGES else traffic.messages  # FSDP's gathers: n-1 messages each
        for messages in at_once:
            assert collectives * (n - 1) + messages == case.steps * expected.steps, str(case)


@pytest.mark.parametrize("n", [2, 4])
@pytest.mark.parametrize(
    ("name", "passes"),
    [("ZeRO-1", (1, 1)), ("ZeRO-2", (1, 1)), ("FSDP", (2, 1)), ("FSDP, gathered once", (1, 1))],
)
def test_where_n_divides_it_is_two_or_three_passes(ranks: Cluster, name: str, passes: tuple, n: int) -> None:
    """Of Ψ(n-1)/n elements each: gathers of two bytes in bf16, reductions of four."""
    for precision, sizes in SIZES.items():
        case = Case(name, FORMS[name], precision=precision, steps=1)
        size = sum(times * size for times, size in zip(passes, sizes, strict=True))
        assert sent(ranks, n, [case])[str(case)].bytes == [size * 1740 * (n - 1) // n] * n


@pytest.mark.parametrize(
    ("make", "n", "elements"),
    [
        (partial(Sharded, stage=1), 4, (21, 21)),  # 26 and 2 of padding, of which three quarters leave
        (partial(Sharded, stage=2), 3, (18, 18)),  # 26 and 1; two thirds
        (FullySharded, 4, (2 * (12 + 9), 12 + 9)),  # units of 16 and 10 and 2 of padding
        (FullySharded, 3, (2 * (12 + 8), 12 + 8)),  # 16 and 2, 10 and 2
        (partial(FullySharded, reshard_after_forward=False), 3, (12 + 8, 12 + 8)),
        (FullySharded, 1, (0, 0)),
    ],
)
def test_counted_by_hand(ranks: Cluster, make: Callable, n: int, elements: tuple[int, int]) -> None:
    for precision, sizes in SIZES.items():
        case = Case("by hand", make, TwoLayers(), precision=precision, steps=1)
        by_hand = sum(count * size for count, size in zip(elements, sizes, strict=True))
        assert sent(ranks, n, [case])[str(case)].bytes == [by_hand] * n


@pytest.mark.parametrize(
    ("name", "gathers", "reductions"),
    [("ZeRO-1", (0, 0, 0), (0, 0, 1)), ("ZeRO-2", (0, 0, 0), (1, 1, 1)), ("FSDP", (2, 2, 2), (1, 1, 1))],
)
def test_what_each_micro_batch_sends(ranks: Cluster, name: str, gathers: tuple, reductions: tuple) -> None:
    """ZeRO-1 keeps gradients until the last; the others have no room for them. ZeRO-1 and 2 gather after the step."""
    case = Case(name, FORMS[name], micro_batches=3, steps=1)
    _, trace = ranks.trace(in_group, 2, steps, case, True)
    for rank in members(2):
        for k, events in enumerate(between(trace.events[rank])):
            gathered = sum(event.bytes * 2 for event in events if event.op in GATHERS)
            reduced = sum(event.bytes for event in events if event.op in REDUCTIONS)
            assert (gathered, reduced) == (1740 * 8 * gathers[k], 1740 * 8 * reductions[k])


@pytest.mark.parametrize("frozen", [("blocks.0",), ("embedding", "blocks")])
def test_frozen_parameters_are_gathered_and_have_no_gradients(ranks: Cluster, frozen: tuple[str, ...]) -> None:
    """Where nothing before a unit learns, backward does not come to it, and it is gathered once."""
    case = Case("FSDP", partial(FullySharded, prefetch=False), Language(frozen=frozen), precision="fp32", steps=1)
    gathered = 2 * 1740 if frozen == ("blocks.0",) else 1740 + UNITS[-1]
    learning = 1740 - (BLOCK if frozen == ("blocks.0",) else 204 + 2 * BLOCK)
    assert sent(ranks, 4, [case])[str(case)].bytes == [4 * (gathered + learning) * 3 // 4] * 4


class TwiceInOneStep(Language):
    """Two forwards before one backward, as contrastive losses have it."""

    def loss(self, model: nn.Module, step: int, part: int, parts: int) -> torch.Tensor:
        return sum(super(TwiceInOneStep, self).loss(model, step + 100 * i, part, parts) for i in range(2))


def test_a_second_forward_is_gathered_for_and_reduced_with_the_first(ranks: Cluster) -> None:
    case = Case("FSDP", partial(FullySharded, prefetch=False), TwiceInOneStep(), precision="fp32", steps=1)
    assert sent(ranks, 2, [case])[str(case)].bytes == [(4 + 1) * 1740 * 4 // 2] * 2


def test_one_gather_is_under_way_at_a_time(ranks: Cluster) -> None:
    """The next one begins when the unit that computes is whole: both at a time would share the link."""
    _, trace = ranks.trace(in_group, 2, steps, Case("FSDP", FullySharded, steps=2))
    for rank in members(2):
        gathers = [event for event in trace.events[rank] if event.op is Op.RECV]  # between two ranks: one each
        assert len(gathers) == 2 * 2 * len(UNITS)
        assert all(one.completed < other.posted for one, other in pairwise(gathers))


def test_a_model_that_is_only_asked_is_gathered_once(ranks: Cluster) -> None:
    def asked(group: object, case: Case) -> None:
        model = case.task.model(torch.float32)
        FullySharded(model, group)
        with torch.no_grad():
            for _ in range(2):
                case.task.output(model)

    _, trace = ranks.trace(in_group, 2, asked, Case("FSDP", FullySharded))
    assert [trace.bytes_sent[rank] for rank in members(2)] == [2 * 1740 * 4 // 2] * 2


def test_ranks_that_use_different_parameters_reduce_in_one_order(ranks: Cluster) -> None:
    task = LeavingOut(lambda branch, step, parts: range(parts // 2))  # the first rank uses all, the second half
    _, trace = ranks.trace(in_group, 2, steps, Case("FSDP", FullySharded, task, steps=2))
    first, second = ([(event.op, event.shape) for event in trace.events[rank]] for rank in members(2))
    assert first == second
    assert sum(op in REDUCTIONS for op, _ in first) == 2 * task.branches
