"""A run that has gone back past a spike is the run that never saw those batches, bit by bit."""

import random
import re
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from rankwise.cli import run as command
from reference.cluster import Cluster
from reference.config import TrainConfig
from reference.errors import BadInput
from reference.models import PRESETS
from reference.models.data import Batches, file_text
from reference.parallelize import DataParallelism, Plan
from reference.report import read_log
from reference.resilience.plain_votes import is_spike
from reference.resilience.spikes import Spike, SpikeGuard, SpikePolicy, TooManySpikes
from reference.saves import Saves

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


def run(
    plan: Plan, poison: tuple[int, ...], skipped: tuple[int, ...] = (), before: tuple[Spike, ...] = ()
) -> tuple[list[float], list[Spike], int]:
    training = training_of(plan)
    batches = Poisoned(**{each.name: getattr(training.batches, each.name) for each in fields(Batches)})
    object.__setattr__(batches, "poison", poison)
    training.batches = batches
    guard = SpikeGuard(training, POLICY, [*before], {*skipped})
    return guard.run(STEPS), guard.spikes, state_of(training)


@pytest.mark.turns(3)
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


def spoilt_everywhere(before: tuple[Spike, ...]) -> str:
    try:
        run(Plan(DataParallelism.DDP), tuple(range(12, 99)), before=before)
    except TooManySpikes as error:
        return str(error)
    return ""


@pytest.mark.parametrize("before", [0, 3, 5], ids="{} before".format)
def test_where_it_does_not_help_all_stop_together(clusters: Clusters, before: int) -> None:
    """Also a run that resumes with fewer spikes allowed than it has had."""
    found = clusters(2).run(spoilt_everywhere, (Spike(1, 9.0, 0, (1,)),) * before)
    assert found[0] == found[1] and "3 spikes are enough" in found[0]


@pytest.mark.parametrize(
    "wrong",
    [{"window": 0}, {"every": 0}, {"before": -1}, {"beyond": -1}, {"deviations": 0.0}, {"most": -1}, {"least": -1.0}],
)
def test_numbers_that_make_no_sense_are_refused_by_their_names(wrong: dict) -> None:
    with pytest.raises(BadInput, match="^" + next(iter(wrong))):
        SpikePolicy(**wrong)


@pytest.fixture(scope="module")
def spoilt_text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sentence again and again, and six times something else."""
    chance, text = random.Random(0), bytearray(b"the quick brown fox jumps over it. " * 400)
    for _ in range(6):
        at = chance.randrange(2000, len(text) - 64)
        text[at : at + 64] = bytes(chance.randrange(128, 256) for _ in range(64))
    path = tmp_path_factory.mktemp("spikes") / "text"
    path.write_bytes(text)
    return path


RUN = ["train", "--ranks", "2", "--data-parallel", "fsdp", "--model", "tiny", "--batch", "4", "--sequence", "16"]
RUN += ["--steps", "30", "--warmup", "3", "--learning-rate", "0.01"]
GUARDED = ["--spike-deviations", "4", "--spike-window", "5", "--spike-least", "0.4", "--spike-before", "2"]
GUARDED += ["--spike-beyond", "0", "--spike-every", "2"]


def last_losses(log: Path) -> list[float]:
    """Of each step the last one."""
    steps = {step.step: step.loss for step in read_log(log)[0]}
    return [steps[step] for step in sorted(steps)]


def never_saw(config: TrainConfig, left_out: set[int]) -> list[float]:
    training = training_of(Plan(DataParallelism.FSDP), replace(config, spike_deviations=1e9))
    training.guard.skipped |= left_out
    return training.guard.run(config.steps)


def test_the_command_line_goes_back_past_spikes_also_where_it_was_resumed(
    clusters: Clusters, spoilt_text: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    common, folder = [*RUN, "--data", str(spoilt_text), *GUARDED], str(tmp_path / "saved")
    assert command([*common, "--log", str(tmp_path / "whole")]) == 0
    said = re.findall(r"step (\d+) was a spike: .* step \d+, without batches (\d+) to (\d+)", capsys.readouterr().out)
    spikes = [tuple(map(int, each)) for each in said]
    assert spikes and spikes[0][0] < 20 < spikes[-1][0] - 4  # on both sides of where the other run is cut
    part = ["--log", str(tmp_path / "parts"), "--save", folder]
    assert command([*common, *part, "--stop-after", "20"]) == 0
    assert command(["train", "--resume", *part]) == 0
    left_out = {batch for _, first, last in spikes for batch in range(first, last + 1)}
    config = TrainConfig(
        PRESETS["tiny"], str(spoilt_text), 30, batch=4, sequence=16, warmup=3, learning_rate=0.01
    )  # fmt: skip
    never = clusters(2).run(never_saw, config, left_out)[0]
    assert last_losses(tmp_path / "whole") == last_losses(tmp_path / "parts") == never


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (["--spike-before", "3"], "--spike-before needs --spike-deviations: without it no loss is a spike"),
        (["--spike-deviations", "0"], "deviations (0.0) are above 0"),
        (["--spike-deviations", "8", "--islands", "2", "--outer", "diloco"], "leave out --spike-deviations"),
        (["--spike-deviations", "8", "--offload", "cpu"], "snapshots take the memory that --offload saves"),
        (["--spike-deviations", "8", "--elastic"], "--elastic goes back where ranks die, and not past spikes"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
def test_what_does_not_go_together_is_refused(more: list[str], reason: str, capsys: pytest.CaptureFixture) -> None:
    assert command([*RUN, *more]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and reason in said


def test_a_run_that_goes_back_past_spikes_does_not_resume_as_one_that_does_not(
    spoilt_text: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """It would read batches that were left out, and lose others."""
    begun = [*RUN, "--data", str(spoilt_text), *GUARDED, "--stop-after", "2"]
    assert command([*begun, "--save", str(tmp_path / "saved")]) == 0
    config = TrainConfig(PRESETS["tiny"], str(spoilt_text), 30, batch=4, sequence=16)
    batches = Batches.of(file_text(spoilt_text), 16, 4, 0)
    with pytest.raises(BadInput, match="of a run with loss spikes rolled back past, and this has none"):
        Saves(tmp_path / "saved", resume=True).check(config, batches)
    assert command(["train", "--save", str(tmp_path / "saved"), "--resume", "--spike-beyond", "1"]) == 0
    assert "from here on: spike beyond 1 instead of 0" in capsys.readouterr().out
