"""The command that is run when there is a GPU is known to run: its own code, and steps of it as a dry run."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

import expected
import first_half_hour
from first_half_hour import NO_GPU, Outcome, Step

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "tests.gpu.first_half_hour"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_it_says_so_in_one_line_and_exits_with_a_code_of_its_own() -> None:
    done = subprocess.run(COMMAND, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (NO_GPU, "")
    assert done.stderr.startswith("there is no GPU here") and done.stderr.count("\n") == 1


def test_steps_run_dry(tmp_path: Path) -> None:
    """One that computes, one that starts ranks: over gloo, on the CPU."""
    chosen = ["--step", "chains", "--step", "1f1b_1", "--out", str(tmp_path)]
    done = subprocess.run([*COMMAND, "--dry-run", *chosen], cwd=ROOT, capture_output=True, text=True, timeout=580)
    assert done.returncode == 0, done.stdout
    numbers = [json.loads(line) for line in (tmp_path / "numbers.jsonl").read_text().splitlines()]
    assert [each["measure"] for each in numbers][:3] == [
        "dropout, one place",
        "turning, one layer",
        "SwiGLU's product",
    ]
    assert numbers[3] == {"step": "1f1b_1", "measure": "1f1b, 1 connection", "value": 1.0}
    assert "expected 0.04 to 0.5" in done.stdout and "0 has ended" in (tmp_path / "1f1b_1.txt").read_text()


def test_every_step_has_a_limit_and_all_fit_their_time() -> None:
    import steps

    assert sorted(step.name for step in first_half_hour.PLAN) == sorted(steps.STEPS)
    limits = {phase: sum(s.limit for s in first_half_hour.PLAN if s.phase == phase) for phase in first_half_hour.LIMITS}
    assert all(limits[phase] <= first_half_hour.LIMITS[phase] for phase in limits)
    assert sum(limits[phase] for phase in first_half_hour.USUAL) <= first_half_hour.BUDGET < 30 * 60


def test_a_step_that_hangs_takes_its_own_time_alone(monkeypatch: pytest.MonkeyPatch, capsys, tmp_path: Path) -> None:
    """And what it had found before is kept; what it has started is ended."""
    program = tmp_path / "steps.py"
    program.write_text(
        "import json, subprocess, sys, time\n"
        "print(json.dumps({'measure': 'step', 'value': 300.0}), flush=True)\n"
        "if sys.argv[1] == 'hangs':\n"
        "    child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(1000)'])\n"
        f"    open({str(tmp_path / 'child')!r}, 'w').write(str(child.pid))\n"
        "    time.sleep(1000)\n"
        "if sys.argv[1] == 'fails':\n"
        "    sys.exit('no memory')\n"
    )
    monkeypatch.setattr(first_half_hour, "__file__", str(program))
    began = time.monotonic()
    steps = [Step("A", name, 8.0) for name in ("hangs", "fails", "works")]
    assert not first_half_hour.go_through(steps, dry=False, out=None)
    said = capsys.readouterr().out
    assert time.monotonic() - began < 60
    assert said.count("expected 200 to 315") == 3
    assert "hangs was still running after 8 s" in said and "fails ended with code 1: no memory" in said
    child = Path("/proc", (tmp_path / "child").read_text(), "stat")
    deadline = time.monotonic() + 10
    while child.exists() and child.read_text().split()[2] != "Z" and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not child.exists() or child.read_text().split()[2] == "Z"


def test_no_step_begins_that_has_no_time(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setitem(first_half_hour.LIMITS, "A", 1.0)
    assert not first_half_hour.go_through([Step("A", "machine", 30.0)], dry=False, out=None)
    assert "left out: no time is left for it" in capsys.readouterr().out


def test_a_number_out_of_its_range_is_pointed_at() -> None:
    step = Step("B", "step", 1.0)
    lines, fine = first_half_hour.table(step, Outcome({"step": 300.0, "MFU": 20.0}, "", 1.0), dry=False)
    assert not fine and "<--" not in lines[0] and lines[1].endswith("<-- see step")
    assert first_half_hour.table(step, Outcome({"step": 300.0}, "", 1.0), dry=False)[1]
    assert first_half_hour.table(step, Outcome({"MFU": 20.0}, "", 1.0), dry=True)[1]
    assert not first_half_hour.table(step, Outcome({"step": 300.0}, "", 1.0, "ended with code 1"), dry=True)[1]


def test_a_wrong_value_is_pointed_at_in_a_dry_run_too() -> None:
    """Speeds are those of a GPU, but what is wrong on a CPU is wrong."""
    step = Step("A", "alone_lazy", 1.0)
    wrong = {"wrong: 1 rank, lazy": 2.0, "loss fp32 against CPU": 0.1, "zb-v, 32 connections": 0.0}
    for measure, value in (wrong | {"traceback shown": 0.0}).items():
        (line,), fine = first_half_hour.table(step, Outcome({measure: value}, "", 1.0), dry=True)
        assert not fine and "<--" in line
    assert first_half_hour.table(step, Outcome({"launch says cuda": 0.0, "step": 1.0}, "", 1.0), dry=True)[1]


def test_whether_a_pipeline_hangs_with_one_queue_is_told_and_not_judged() -> None:
    step = Step("C", "zb-v_1", 1.0)
    (line,), fine = first_half_hour.table(step, Outcome({"zb-v, 1 connection": 1.0}, "", 1.0), dry=False)
    assert fine and "expected hangs; not judged" in line


def test_ranges_are_ranges() -> None:
    for name, known in expected.EXPECTED.items():
        assert known.low <= known.high and known.otherwise, name
        assert known.fits(known.low) and known.fits(known.high) and not known.fits(known.high + 1)
