"""SIGTERM: all ranks stop after the same step, save, and say so; a run that resumes is the one that would have been."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from rankwise import on_rank
from rankwise.cli import run
from reference.cluster import Cluster
from reference.config import TrainConfig
from reference.models import PRESETS
from reference.parallelize import Plan
from reference.report import StepReport, read_log
from reference.resilience.preemption import PREEMPTED, Preempted, StopNotice, on_sigterm
from reference.saves import Saves
from reference.train import train
from reference.zero import checkpoint_folder

ROOT = Path(on_rank.__file__).parents[1]
COMMON = ["--model", "tiny", "--batch", "4", "--sequence", "16", "--precision", "fp64"]


def test_a_notice_is_taken_and_the_handler_put_back() -> None:
    before, notice = signal.getsignal(signal.SIGTERM), StopNotice()
    with on_sigterm(notice.give):
        assert not notice.given
        os.kill(os.getpid(), signal.SIGTERM)
        assert notice.given
        os.kill(os.getpid(), signal.SIGTERM)  # a second one changes nothing
    assert signal.getsignal(signal.SIGTERM) is before


def test_in_another_thread_signals_are_left_alone() -> None:
    before, found = signal.getsignal(signal.SIGTERM), []

    def enter() -> None:
        with on_sigterm(StopNotice().give):
            found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert found == [before]


@pytest.mark.parametrize("in_background", [False, True], ids=["at once", "in the background"])
@pytest.mark.parametrize("told", [0, 2], ids="rank {}".format)
def test_one_rank_is_told_and_all_stop_after_the_same_step(
    eight: Cluster, tmp_path: Path, short_text: Path, told: int, in_background: bool
) -> None:
    """In the third step, after which they agree. With a save every 3 steps, one may still be being written."""
    config = TrainConfig(PRESETS["tiny"], str(short_text), 8, batch=12, sequence=16)

    def stopped(folder: Path) -> tuple[str, list[int]] | None:
        group, steps = dist.new_group([0, 1, 2]), []
        if dist.get_rank() > 2:
            return None

        def report(step: StepReport) -> None:
            steps.append(step.step)
            if step.step == 3 and dist.get_rank() == told:
                os.kill(os.getpid(), signal.SIGTERM)

        saves = Saves(folder, every=3, in_background=in_background)
        with pytest.raises(Preempted) as reason:
            train(config, group, torch.device("cpu"), Plan(), report, saves)
        return str(reason.value), steps

    found = eight.run(stopped, tmp_path)[:3]
    said = f"told to stop: saved after step 4 in {tmp_path}; --resume continues there"
    assert found == [(said, [1, 2, 3, 4])] * 3
    assert [each.name for each in checkpoint_folder.complete(tmp_path)] == ["000001-step-3", "000002-step-4"]


@pytest.fixture(scope="module")
def through(short_text: Path, tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of a run that nothing interrupts."""
    log = tmp_path_factory.mktemp("through") / "log"
    assert run(["train", "--ranks", "2", *COMMON, "--data", str(short_text), "--log", str(log), "--steps", "60"]) == 0
    return [step.loss for step in read_log(log)[0]]


def test_the_command_passes_it_on_saves_and_resumes(short_text: Path, tmp_path: Path, through: list[float]) -> None:
    """To the process that a person started, as Kubernetes and `kill` send it."""
    folder, log = tmp_path / "checkpoints", tmp_path / "log"
    options = ["--data", str(short_text), "--steps", "60", "--save", str(folder), "--log", str(log)]
    command = [sys.executable, "-m", "rankwise", "train", "--ranks", "2", *COMMON]
    program = subprocess.Popen(
        [*command, *options], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    until_a_step_is_logged(log)
    program.send_signal(signal.SIGTERM)
    _, err = program.communicate(timeout=120)
    assert program.returncode == PREEMPTED == 143
    assert err.count("\n") == 1 and err.startswith("rankwise: told to stop: saved after step ")
    stopped = checkpoint_folder.contents(checkpoint_folder.latest(folder))["step"]
    assert 1 <= stopped < 60
    assert run(["train", "--save", str(folder), "--resume", "--log", str(log)]) == 0
    steps, _ = read_log(log)
    assert [step.loss for step in steps] == through


def test_under_torchrun_one_rank_is_told(short_text: Path, tmp_path: Path, through: list[float]) -> None:
    folder = tmp_path / "checkpoints"
    options = ["--data", str(short_text), "--steps", "60", "--save", str(folder), "--device", "cpu"]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", "-m"]
    program = subprocess.Popen(
        [*launcher, "reference.train", *COMMON, *options],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1,
    )  # fmt: skip
    assert any(line.startswith("step ") for line in program.stdout)
    os.kill(child_of(program.pid), signal.SIGTERM)
    _, err = program.communicate(timeout=120)
    said = [line for line in err.splitlines() if line.startswith("reference.train: ")]
    stopped = checkpoint_folder.contents(checkpoint_folder.latest(folder))["step"]
    assert said == [f"reference.train: told to stop: saved after step {stopped} in {folder}; --resume continues there"]
    assert "exitcode  : 143" in err
    log = tmp_path / "log"
    assert run(["train", "--ranks", "2", "--save", str(folder), "--resume", "--log", str(log)]) == 0
    assert [step.loss for step in read_log(log)[0]] == pytest.approx(through[stopped:], rel=1e-12)


def child_of(pid: int) -> int:
    """The last process that another has started: one of its ranks."""
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[-1])


def until_a_step_is_logged(log: Path) -> None:
    deadline = time.monotonic() + 100
    while not (log.exists() and log.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.01)
