"""Every form that shards equals one process: losses, norms, gradients, parameters, however the model is cut."""

import itertools
import re
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.distributed import ProcessGroup

from reference.cluster import Cluster
from reference.zero.answers.on_shards import clip_by_global_norm

from ..data_parallel.conftest import MOST, in_group, prove
from ..data_parallel.low_precision import prove_low_precision
from ..data_parallel.steps import (
    NO_STEPS,
    alone,
    begun,
    collected,
    complaint,
    failed,
    frozen,
    publish,
    refusal,
    through,
)
from ..data_parallel.training import (
    FROZEN,
    OPTIMIZERS,
    TIED,
    UNTIED,
    Case,
    Language,
    LeavingOut,
    Make,
    TwoLayers,
    by_some,
)
from .forms import FORMS, FULLY, OF_A_GPT, STAGES

FEW = ("ZeRO-1", "ZeRO-2", "FSDP", "FSDP, gathered once", "FSDP by halves")  # for large groups, which take long


@pytest.mark.turns(2)
@pytest.mark.parametrize("n", range(1, MOST + 1))
def test_any_number_of_ranks_equals_one_process(ranks: Cluster, n: int) -> None:
    """With one to three micro-batches, of which some have a row more than others."""
    names = FORMS if n <= 4 else FEW
    prove(ranks, n, [Case(name, FORMS[name], micro_batches=1 + (n + i) % 3) for i, name in enumerate(names)])


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_any_optimizer_any_tying_any_freezing(ranks: Cluster, optimizer: str) -> None:
    tasks = [Language(config, frozen) for config, frozen in itertools.product((UNTIED, TIED), ((), FROZEN))]
    prove(ranks, 3, [Case(name, FORMS[name], task, optimizer) for name in ("ZeRO-1", "FSDP") for task in tasks])


def test_a_tied_parameter_in_any_unit(ranks: Cluster) -> None:
    prove(ranks, 3, [Case(name, make, Language(TIED), micro_batches=2) for name, make in {**FULLY, **OF_A_GPT}.items()])


def test_a_rank_may_have_no_part(ranks: Cluster) -> None:
    """26 parameters in shards of four: the last of eight ranks has nothing to update."""
    prove(ranks, 8, [Case(name, FORMS[name], TwoLayers()) for name in ("ZeRO-1", "ZeRO-2", "FSDP in one unit")])


@pytest.mark.parametrize("n", [1, 2, 3])
def test_what_no_rank_used_has_a_gradient_of_zero(ranks: Cluster, n: int) -> None:
    """Ranks use different parameters of a unit, too."""
    forms = {**STAGES, **FULLY}
    cases = [Case(name, make, LeavingOut(by_some), micro_batches=2) for name, make in forms.items()]
    prove(ranks, n, cases, zeros=True)


@pytest.mark.parametrize("name", ["ZeRO-1", "ZeRO-2", "FSDP"])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_low_precision_is_off_by_its_rounding_alone(ranks: Cluster, name: str, precision: str) -> None:
    prove_low_precision(ranks, Case(name, FORMS[name], precision=precision))


@pytest.mark.parametrize("name", ["ZeRO-1", "FSDP"])
def test_frozen_parameters_are_rounded_like_the_others(ranks: Cluster, name: str) -> None:
    prove_low_precision(ranks, Case(name, FORMS[name], Language(frozen=FROZEN), precision="bf16"))


@pytest.mark.parametrize("make", [*STAGES.values(), *FULLY.values()], ids=[*STAGES, *FULLY])
def test_complex_parameters_are_refused(ranks: Cluster, make: Make) -> None:
    said = "phase is complex: make its real and its imaginary part two parameters"
    assert ranks.run(in_group, 2, refusal, make)[-1] == said


@pytest.mark.parametrize("make", STAGES.values(), ids=STAGES)
def test_what_is_frozen_and_not_real_stays_as_it_is(ranks: Cluster, make: Make) -> None:
    assert ranks.run(in_group, 2, frozen, make)[-1] == [torch.complex64, torch.int64]


@pytest.mark.parametrize("make", [*STAGES.values(), *FULLY.values()], ids=[*STAGES, *FULLY])
@pytest.mark.parametrize("before", [begun, failed, alone, collected])
def test_publish_forgets_whatever_was_not_sent(ranks: Cluster, make: Make, before: Callable) -> None:
    """And what was: the next step is as if there had been none."""
    expected, got = (
        ranks.run(in_group, 2, through, make, (*actions, collected)) for actions in ((), (before, publish))
    )
    assert got == expected


@pytest.mark.parametrize("make", [*STAGES.values(), FULLY["FSDP"]], ids=[*STAGES, "FSDP"])
@pytest.mark.parametrize(("actions", "said"), NO_STEPS)
def test_what_is_no_step_is_an_error(ranks: Cluster, make: Make, actions: tuple, said: str) -> None:
    assert re.search(said, ranks.run(in_group, 2, complaint, through, make, actions)[-1])


@pytest.mark.parametrize("model", [nn.Tanh(), nn.Linear(2, 2).requires_grad_(False)])
@pytest.mark.parametrize("make", [*STAGES.values(), *FULLY.values()], ids=[*STAGES, *FULLY])
def test_where_nothing_learns_nothing_is_updated(ranks: Cluster, make: Make, model: nn.Module) -> None:
    def on_rank(group: ProcessGroup) -> int:
        form = make(model, group)
        with form.micro_batch(last=True):
            model(torch.ones(1, 2))
        form.reduce_gradients()
        form.end_step()
        return len(form.parts)

    assert ranks.run(in_group, 2, on_rank)[-1] == 0


def test_gradients_of_zero_may_be_clipped_to_nothing(ranks: Cluster) -> None:
    def on_rank(group: ProcessGroup) -> tuple[float, list[float]]:
        shard = torch.zeros(2)
        return clip_by_global_norm([shard], [2], 0.0, group).item(), shard.tolist()

    assert ranks.run(in_group, 1, on_rank)[-1] == (0.0, [0.0, 0.0])


def test_squares_of_half_precision_do_not_overflow(ranks: Cluster) -> None:
    """The square of 1000 is more than fp16 can hold."""

    def on_rank(group: ProcessGroup) -> tuple[float, list[float]]:
        shard = torch.full((2,), 1000.0, dtype=torch.float16)
        return clip_by_global_norm([shard], [4], 500.0, group).item(), shard.tolist()

    assert ranks.run(in_group, 2, on_rank)[-1] == (2000.0, [250.0, 250.0])
