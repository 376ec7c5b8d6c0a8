"""What a run says can be read while it grows."""

import io
import os
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from rich.console import Console

from rankwise.progress import following
from reference.report import StepReport, held_out, line, logger, printer, read_log

FIRST, SECOND = StepReport(1, 5.5, 1.25, 2048, 0.5), StepReport(2, 5.25, 1.0, 4096, 1.0)


def test_a_log_is_read_piece_by_piece(tmp_path: Path):
    log = tmp_path / "log"
    report = logger(log)
    report(FIRST)
    assert read_log(log)[0] == [FIRST]
    _, position = read_log(log)
    assert read_log(log, position) == ([], position)
    report(SECOND)
    assert read_log(log, position)[0] == [SECOND]
    assert read_log(log)[0] == [FIRST, SECOND]


def test_a_run_that_goes_on_takes_as_long_as_its_own_steps():
    assert StepReport(6, 5.0, 1.0, 6144, seconds=2.0, began=4).left(10) == 4.0


def test_a_line_that_is_still_being_written_is_left_for_later(tmp_path: Path):
    log = tmp_path / "log"
    logger(log)(FIRST)
    whole = log.read_bytes()
    log.write_bytes(whole + whole[:20])
    steps, position = read_log(log)
    assert steps == [FIRST]
    log.write_bytes(whole + whole)
    assert read_log(log, position)[0] == [FIRST]


def test_a_line_tells_loss_speed_and_time_left():
    assert line(SECOND, 300) == "step   2/300   loss 5.250   4,096 tokens/s   149 s left"


def test_a_printer_speaks_first_last_and_now_and_then(capsys):
    report = printer(steps=7, every=3)
    for step in range(1, 8):
        report(StepReport(step, 1.0, 1.0, 100 * step, float(step)))
    assert [text.split("/")[0] for text in capsys.readouterr().out.splitlines()] == [f"step {n}" for n in (1, 3, 6, 7)]


def test_a_run_that_has_diverged_says_so():
    assert held_out(2.5) == "held-out loss 2.500 nats per byte"
    for loss in (float("nan"), float("inf")):
        assert held_out(loss).endswith("training has diverged, try a smaller --learning-rate")


def test_only_what_is_added_to_a_log_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture):
    log = tmp_path / "log"
    logger(log)(FIRST)
    with following(log, 2, Console()):
        logger(log)(SECOND)
    assert [text.split("/")[0] for text in capsys.readouterr().out.splitlines()] == ["step 2"]


def test_a_run_goes_on_when_nobody_listens_any_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """As in `rankwise train | head -1`."""
    read, write = os.pipe()
    os.close(read)
    failed: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    log = tmp_path / "log"
    log.touch()
    with suppress(BrokenPipeError), os.fdopen(write, "w") as nobody:
        monkeypatch.setattr(sys, "stdout", nobody)
        with following(log, 2, Console(file=io.StringIO())):
            logger(log)(FIRST)
            logger(log)(SECOND)
    assert failed == []
    assert len(read_log(log)[0]) == 2


def test_a_model_with_experts_says_how_busy_they_are() -> None:
    assert line(StepReport(2, 5.25, 1.0, 4096, 1.0, busiest=1.75, dropped=0.125), 4).endswith(
        "left   busiest expert 1.8 times the mean, 12.5% dropped"
    )
    assert "dropped" not in line(StepReport(2, 5.25, 1.0, 4096, 1.0, busiest=1.75, dropped=0.0), 4)
    assert "expert" not in line(SECOND, 4)
