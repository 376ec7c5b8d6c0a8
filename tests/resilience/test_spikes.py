"""A run that has gone back past a spike is the run that never saw those batches, bit by bit."""

from collections.abc import Callable
from dataclasses import fields

import pytest
import torch
from torch import Tensor

from reference.cluster import Cluster
from reference.errors import BadInput
from reference.models.data import Batches
from reference.parallelize import DataParallelism, Plan
from reference.resilience.plain_votes import is_spike
from reference.resilience.spikes import Spike, SpikeGuard, SpikePolicy, TooManySpikes

from .runs import state_of, training_of

Clusters = Callable[..., Cluster]
STEPS = 16
POLICY = SpikePolicy(window=5, deviations=3.0, least=0.2, before=2, beyond=1, every=2, most=3)


class Poisoned(Batches):
    """Batches of which some are noise: not what follows in any text."""

    poison: tuple[int, ...] = ()

    def of_step(self, step: int, rank: int = 0, world_size: int = 1) -> tuple[Tensor, Tensor]:
        tokens, targets = super().of_step(step, rank, world_size)
        if step not in self.poison:
            return tokens, targets
        generator = torch.Generator().manual_seed(1000 * step + rank)
        return tokens, torch.randint(128, 256, targets.shape, generator=generator)


@pytest.mark.parametrize(
    ("loss", "spikes"), [(3.0, False), (3.3, False), (4.0, True), (1.0, False), (float("nan"), True)]
)
def test_what_is_out_of_line(loss: float, spikes: bool) -> None:
    assert is_spike(loss, [3.2, 3.1, 3.0, 2.9, 2.8, 9.0], deviations=4) is spikes


def run(plan: Plan, poison: tuple[int, ...], skipped: tuple[int, ...] = ()) -> tuple[list[float], list[Spike], int]:
    training = training_of(plan)
    batches = Poisoned(**{each.name: getattr(training.batches, each.name) for each in fields(Batches)})
    object.__setattr__(batches, "poison", poison)
    training.batches = batches
    guard = SpikeGuard(training, POLICY, skipped={*skipped})
    return guard.run(STEPS), guard.spikes, state_of(training)


@pytest.mark.parametrize("form", [DataParallelism.DDP, DataParallelism.ZERO1, DataParallelism.FSDP])
@pytest.mark.parametrize("poison", [(9,), (9, 10), (8, 13)], ids=["one", "two in a row", "two spikes"])
def test_losses_are_those_of_a_run_that_never_saw_them(
    clusters: Clusters, form: DataParallelism, poison: tuple[int, ...]
) -> None:
    found = clusters(2).run(run, Plan(form), poison)
    spikes = found[0][1]
    assert spikes and all(each[1] == spikes for each in found)
    left_out = {batch for spike in spikes for batch in spike.skipped}
    assert {*poison} <= left_out
    never = clusters(2).run(run, Plan(form), (), tuple(sorted(left_out)))
    assert [(losses, state) for losses, _, state in found] == [(losses, state) for losses, _, state in never]
    assert never[0][1] == []


def test_back_to_a_snapshot_some_steps_before(clusters: Clusters) -> None:
    """Snapshots are of steps 0, 2, 4, ...: a spike at step 9 goes back to 6, and batch 10 is left out as well."""
    _, (spike,), _ = clusters(2).run(run, Plan(DataParallelism.DDP), (9,))[0]
    assert (spike.step, spike.back_to, spike.skipped) == (9, 6, (6, 7, 8, 9, 10))


def spoilt_everywhere() -> str:
    try:
        run(Plan(DataParallelism.DDP), tuple(range(12, 99)))
    except TooManySpikes as error:
        return str(error)
    return ""


def test_where_it_does_not_help_all_stop_together(clusters: Clusters) -> None:
    found = clusters(2).run(spoilt_everywhere)
    assert found[0] == found[1] and "3 spikes are enough" in found[0]


@pytest.mark.parametrize("wrong", [{"window": 0}, {"every": 0}, {"before": -1}, {"deviations": 0.0}, {"most": -1}])
def test_numbers_that_make_no_sense_are_refused(wrong: dict) -> None:
    with pytest.raises(BadInput):
        SpikePolicy(**wrong)
