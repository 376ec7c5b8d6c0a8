"""Every form with replicas equals one process: losses, norms, gradients, parameters, whatever is learned, and how."""

import itertools
import re
from collections.abc import Callable, Sequence
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from reference.cluster import Cluster
from reference.data_parallel.replicated import DistributedDataParallel, Replicated, flat
from reference.trace import Op

from .conftest import MOST, in_group, prove, records, wrong
from .low_precision import prove_low_precision
from .steps import (
    NO_STEPS,
    begun,
    collected,
    complaint,
    failed,
    frozen,
    publish,
    refusal,
    through,
)
from .training import (
    BUCKET,
    FORMS,
    FROZEN,
    OPTIMIZERS,
    TIED,
    UNTIED,
    Case,
    Language,
    LeavingOut,
    Make,
    by_some,
    one_process,
    train,
)

BUCKETS = partial(DistributedDataParallel, bucket_bytes=200)  # several parameters of a `LeavingOut` in each
PERMISSIVE = {"naive": partial(FORMS["naive"], unused=True), "DDP": partial(BUCKETS, unused=True)}


@pytest.mark.turns(3)
@pytest.mark.parametrize("n", range(1, MOST + 1))
def test_any_number_of_ranks_equals_one_process(ranks: Cluster, n: int) -> None:
    """With one to three micro-batches, of which some have a row more than others."""
    prove(ranks, n, [Case(name, FORMS[name], micro_batches=1 + (n + i) % 3) for i, name in enumerate(FORMS)])


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_any_optimizer_any_tying_any_freezing(ranks: Cluster, optimizer: str) -> None:
    tasks = [Language(config, frozen) for config, frozen in itertools.product((UNTIED, TIED), ((), FROZEN))]
    prove(ranks, 3, [Case(name, FORMS[name], task, optimizer) for name in ("flat", "DDP") for task in tasks])


@pytest.mark.parametrize("n", [1, 2, 3])
def test_what_no_rank_used_has_no_gradient_and_does_not_move(ranks: Cluster, n: int) -> None:
    """Adam moves a parameter whose gradient is zero, by what it remembers of earlier ones; without one it stays."""
    cases = [Case(name, make, LeavingOut(by_some), micro_batches=2) for name, make in PERMISSIVE.items()]
    prove(ranks, n, cases)
    oracle = one_process(LeavingOut(by_some), parts=2 * n)
    assert "gradient of branches.1.sometimes.weight" in oracle
    assert "gradient of branches.2.sometimes.weight" not in oracle


@pytest.mark.parametrize("make", [FORMS["naive"], FORMS["flat"], BUCKETS])
def test_what_is_not_used_is_an_error_that_names_it(ranks: Cluster, make: Make) -> None:
    case = Case("strict", make, LeavingOut(by_some), micro_batches=2)
    said = ranks.run(in_group, 1, complaint, train, case)[-1]
    assert re.fullmatch(
        r"branches.2.sometimes.(weight|bias) got no gradient in this step \(2 of 12 did not\): .*", said
    )


def test_the_price_of_unused_parameters_is_a_byte_for_each(ranks: Cluster) -> None:
    flags = []
    for make in (BUCKETS, partial(BUCKETS, unused=True)):
        _, trace = ranks.trace(in_group, 2, train, Case("DDP", make, LeavingOut(lambda *_: range(2)), steps=1))
        flags.append(
            [event.shape for event in trace.events[-1] if event.dtype == "uint8" and event.op is Op.ALL_REDUCE]
        )
    assert flags == [[], [(12,)]]


@pytest.mark.parametrize("name", ["flat", "DDP"])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_low_precision_is_off_by_its_rounding_alone(ranks: Cluster, name: str, precision: str) -> None:
    prove_low_precision(ranks, Case(name, FORMS[name], precision=precision))


@pytest.mark.parametrize("name", ["flat", "DDP"])
def test_frozen_parameters_are_rounded_like_the_others(ranks: Cluster, name: str) -> None:
    prove_low_precision(ranks, Case(name, FORMS[name], Language(frozen=FROZEN), precision="bf16"))


def averaged(gradients: Sequence[Tensor], group: ProcessGroup) -> None:
    flat(gradients, group)
    for gradient in gradients:
        gradient /= dist.get_world_size(group)


def all_but_one(gradients: Sequence[Tensor], group: ProcessGroup) -> None:
    flat(gradients[:-1], group)


def not_at_all(gradients: Sequence[Tensor], group: ProcessGroup) -> None:
    """The gradients stay as they are."""


@pytest.mark.parametrize("reduce", [averaged, all_but_one, not_at_all])
def test_a_wrong_sum_is_noticed(ranks: Cluster, reduce: Callable) -> None:
    [found] = records(ranks, 2, [Case("wrong", partial(Replicated, reduce=reduce))])
    assert wrong(found, one_process(Language(), parts=2), bound=1e-3)


@pytest.mark.parametrize("make", [FORMS["naive"], FORMS["flat"], FORMS["DDP, a bucket each"]])
@pytest.mark.parametrize(("actions", "said"), NO_STEPS)
def test_what_is_no_step_is_an_error(ranks: Cluster, make: Make, actions: tuple, said: str) -> None:
    assert re.search(said, ranks.run(in_group, 2, complaint, through, make, actions)[-1])


@pytest.mark.parametrize("make", [FORMS["naive"], FORMS["flat"], FORMS["DDP, a bucket each"]])
@pytest.mark.parametrize("before", [(failed, publish), (begun, publish), (collected, publish)])
def test_publish_forgets_every_gradient(ranks: Cluster, make: Make, before: tuple) -> None:
    """Those of a micro-batch that failed half way, too."""
    expected, got = (ranks.run(in_group, 2, through, make, (*actions, collected))[-1] for actions in ((), before))
    assert got == expected


@pytest.mark.parametrize("make", [*FORMS.values(), *PERMISSIVE.values()])
def test_where_nothing_learns_nothing_is_sent(ranks: Cluster, make: Make) -> None:
    def on_rank(group: ProcessGroup) -> int:
        form = make(nn.Linear(2, 2).requires_grad_(False), group)
        with form.micro_batch(last=True):
            """Nothing to go backward through."""
        form.reduce_gradients()
        form.end_step()
        return len(form.parts)

    assert ranks.run(in_group, 2, on_rank)[-1] == 0


@pytest.mark.parametrize("make", FORMS.values(), ids=FORMS)
def test_complex_parameters_are_refused(ranks: Cluster, make: Make) -> None:
    said = "phase is complex: make its real and its imaginary part two parameters"
    assert ranks.run(in_group, 2, refusal, make)[-1] == said


@pytest.mark.parametrize("make", FORMS.values(), ids=FORMS)
def test_what_is_frozen_and_not_real_stays_as_it_is(ranks: Cluster, make: Make) -> None:
    assert ranks.run(in_group, 2, frozen, make)[-1] == [torch.complex64, torch.int64]


def twice_in_the_last(group: ProcessGroup) -> None:
    """Backward twice within the last micro-batch, where buckets leave as soon as they are full."""
    task = Language()
    model = task.model(torch.float32)
    form = DistributedDataParallel(model, group, bucket_bytes=BUCKET)
    with form.micro_batch(last=True):
        for part in range(2):
            task.loss(model, 0, part, 2).backward()


def test_a_second_backward_after_the_buckets_have_left_is_an_error(ranks: Cluster) -> None:
    assert "its gradients have already been sent off" in ranks.run(in_group, 1, complaint, twice_in_the_last)[-1]
