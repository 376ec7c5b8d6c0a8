"""`rankwise train --elastic`: a rank is killed from outside, and the others train to the end."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rankwise.cli import BAD_INPUT, run
from rankwise.island_training import CutOff, told

HOUSE = Path(__file__).parents[2]
START = [sys.executable, "-m", "rankwise"]
COMMAND = ("train", "--ranks", "4", "--data-parallel", "fsdp", "--batch", "12", "--sequence", "16")


def test_the_others_continue_where_a_rank_is_killed(tmp_path: Path) -> None:
    text, log = tmp_path / "text", tmp_path / "log"
    text.write_bytes(bytes(range(256)) * 40)
    command = [*START, *COMMAND, "--steps", "100", "--data", str(text), "--log", str(log), "--elastic"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=HOUSE) as running:
        said = ""
        for line in running.stdout:
            said += line
            if line.startswith("step") and " 1/100" not in line:
                break
        victim = re.search(r"processes are \d+, (\d+)", said)
        os.kill(int(victim[1]), signal.SIGKILL)
        said += running.communicate(timeout=200)[0]
    assert running.returncode == 0
    assert "rank 1 has died" in said
    assert re.search(r"4 ranks became 3 after step \d+: [\d.]+ s until they had agreed", said)
    assert "nats per byte" in said


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--tensor-parallel", "3"], "4 ranks do not divide into groups of 3 tensor-parallel ones"),
        (["--device", "cuda"], "leave out --device cuda"),
        (["--save", "FOLDER", "--save-in-background"], "leave out --save-in-background"),
    ],
    ids=" ".join,
)
def test_what_it_does_otherwise_is_refused(
    tmp_path: Path, more: list[str], said: str, capsys: pytest.CaptureFixture
) -> None:
    given = [str(tmp_path) if word == "FOLDER" else word for word in more]
    assert run([*COMMAND, "--elastic", *given]) == BAD_INPUT
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1 and said in shown


def test_it_resumes_and_overwrites_nothing(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    text = tmp_path / "text"
    text.write_bytes(bytes(range(256)) * 40)
    command = [*COMMAND, "--elastic", "--data", str(text), "--steps", "4", "--save", str(tmp_path / "run")]
    assert run(command) == 0
    assert run(command) == BAD_INPUT
    assert "--resume" in capsys.readouterr().err
    assert run([*command, "--resume", "--steps", "6"]) == 0
    assert "resuming after step 4" in capsys.readouterr().out


ISLANDS = ("--islands", "4", "--outer", "diloco")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ([*ISLANDS, "--save", "FOLDER"], "leave out --save"),
        ([*ISLANDS, "--wire", "int8"], "leave out --wire"),
        ([*ISLANDS, "--synchronous-steps", "5"], "leave out --synchronous-steps"),
        (["--islands", "4", "--outer", "easgd"], "meet by --outer diloco or local-sgd, not by easgd"),
        ([*ISLANDS, "--cut-off", "3:20:30"], "takes --nodes 4 or more"),
        ([*ISLANDS, "--cut-off", "3:20"], "3:20:30, not 3:20"),
        ([*ISLANDS, "--cut-off", "1:5:inf"], "which have an end, not 1:5:inf"),
        ([*ISLANDS, "--cut-off", "1:nan:5"], "which have an end, not 1:nan:5"),
        (["--nodes", "4", "--cut-off", "3:20:30"], "takes --elastic and islands"),
    ],
    ids=" ".join,
)
def test_islands_that_cannot_come_and_go_are_refused(
    tmp_path: Path, more: list[str], said: str, capsys: pytest.CaptureFixture
) -> None:
    given = [str(tmp_path) if word == "FOLDER" else word for word in more]
    assert run(["train", "--ranks", "4", "--elastic", *given]) == BAD_INPUT
    assert said in capsys.readouterr().err


def test_who_has_met_is_told_by_rounds() -> None:
    all_four, three = (0, 1, 2, 3), (0, 1, 2)
    assert told([(5, all_four), (10, all_four), (15, three), (20, all_four)]) == [
        "islands 0, 1, 2, 3: 2 rounds to step 10",
        "islands 0, 1, 2: 1 round to step 15",
        "islands 0, 1, 2, 3: 1 round to step 20",
    ]
    assert CutOff.of("3:20:30") == CutOff(3, 20.0, 30.0)
