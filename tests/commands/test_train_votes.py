"""`rankwise train --voting-replicas`: a replica is killed from outside, and the others train to the end."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rankwise.cli import run
from reference.report import read_log
from reference.resilience.preemption import PREEMPTED

HOUSE = Path(__file__).parents[2]
START = [sys.executable, "-m", "rankwise"]
COMMON = ["train", "--ranks", "4", "--model", "tiny", "--batch", "8", "--sequence", "16", "--precision", "fp64"]
COMMON += ["--data-parallel", "fsdp"]
VOTES = ["--voting-replicas", "2"]
STEPS = 60


@pytest.fixture
def common(tmp_path: Path) -> list[str]:
    text = tmp_path / "text"
    text.write_bytes(bytes(range(256)) * 40)
    return [*COMMON, "--steps", str(STEPS), "--data", str(text)]


def begun(running: subprocess.Popen) -> tuple[str, list[int]]:
    """What a run says until it has reported a second step, and its processes."""
    said = ""
    for line in running.stdout:
        said += line
        if re.match(r"step +(?!1/)", line):
            break
    pids = re.search(r"processes are ([\d, ]+):", said)[1]
    return said, [int(pid) for pid in pids.split(",")]


def losses(log: Path) -> list[float]:
    return [step.loss for step in read_log(log)[0]]


@pytest.mark.parametrize(
    ("sent", "fates"),
    [
        (signal.SIGKILL, [r"rank 1 has died \(status -9\)", "rank 0 was left behind: "]),
        (signal.SIGSTOP, ["rank 1 hung, and was killed at the end", "rank 0 (hung, and was killed|was left behind)"]),
    ],
)
def test_a_replica_of_which_a_rank_dies_or_hangs_takes_no_other_along(
    sent: int, fates: list[str], common: list[str], tmp_path: Path
) -> None:
    """The replica's other rank is left behind, and checkpoints, which this replica had written, are the next one's.

    Where a rank hangs, the other one waits for it in their collective, or for the others' vote, which ends first.
    """
    common += ["--save", str(tmp_path / "saved"), "--save-every", "10"]
    with subprocess.Popen([*START, *common, *VOTES], stdout=subprocess.PIPE, text=True, cwd=HOUSE) as running:
        said, pids = begun(running)
        os.kill(pids[1], sent)
        said += running.communicate(timeout=200)[0]
    assert running.returncode == 0
    assert [fate for fate in fates if not re.search(fate, said)] == [], said
    assert re.search(r"from step \d+ on gradients are those of replica 1\n", said)
    assert "nats per byte" in said
    assert [*(tmp_path / "saved").glob(f"*-step-{STEPS}")]


def test_all_stop_after_the_same_step_and_resume_as_if_nothing_had_been(common: list[str], tmp_path: Path) -> None:
    part = ["--save", str(tmp_path / "saved"), "--log", str(tmp_path / "parts")]
    command = [*START, *common, *VOTES, *part]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=HOUSE) as running:
        begun(running)
        os.kill(running.pid, signal.SIGTERM)
        _, said = running.communicate(timeout=200)
    assert running.returncode == PREEMPTED
    (stopped,) = re.findall(r"told to stop: saved after step (\d+) in .*; --resume continues there", said)
    assert 1 < int(stopped) < STEPS and len(losses(tmp_path / "parts")) == int(stopped)
    assert run(["train", "--resume", *part]) == 0
    assert run([*common, "--log", str(tmp_path / "whole")]) == 0
    assert losses(tmp_path / "parts") == pytest.approx(losses(tmp_path / "whole"), rel=1e-9)


@pytest.mark.parametrize("stops", [False, True], ids=["to the end", "told to stop"])
def test_what_could_not_be_saved_is_said(stops: bool, common: list[str], tmp_path: Path) -> None:
    """The replica that writes fails at it after the last step, when the other one has come to the end."""
    folder = tmp_path / "saved"
    command = [*START, *common, "--steps", "200", *VOTES, "--save", str(folder), "--save-every", "1000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=HOUSE) as running:
        begun(running)
        folder.rmdir()
        folder.touch()
        if stops:
            os.kill(running.pid, signal.SIGTERM)
        said, refused = running.communicate(timeout=200)
    assert running.returncode == 2
    assert re.search(r"rank 0 was left behind: step \d+ was not saved: ", said) and "nats per byte" in said
    assert re.fullmatch(rf"rankwise: step \d+ was not saved: .*{folder}.*\n", refused)


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (["--voting-replicas", "3"], "4 ranks do not divide into 3 replicas that vote"),
        (["--voting-replicas", "0"], "4 ranks do not divide into 0 replicas that vote"),
        ([*VOTES, "--batch", "6"], "6 windows does not divide among 2 replicas, in 4 parts together"),
        ([*VOTES, "--device", "cuda"], "leave out --device cuda"),
        ([*VOTES, "--elastic"], "say one of them"),
        ([*VOTES, "--save", "FOLDER", "--save-in-background"], "takes --no-save-in-background"),
        ([*VOTES, "--optimizer", "muon"], "take --optimizer adamw or sgd"),
        ([*VOTES, "--islands", "2", "--outer", "diloco"], "leave out --outer"),
        ([*VOTES, "--spike-deviations", "8"], "leave out --spike-deviations"),
        ([*VOTES, "--offload", "cpu"], "leave out --offload"),
        ([*VOTES, "--data-parallel", "ddp", "--compress", "bf16"], "send gradients as they are"),
        ([*VOTES, "--model", "moe-tiny"], "take a model without experts"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
def test_what_does_not_go_together_is_refused(
    more: list[str], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    given = [str(tmp_path) if word == "FOLDER" else word for word in more]
    assert run([*COMMON, *given]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and reason in said
