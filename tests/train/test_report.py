"""What a run says can be read while it grows."""

from pathlib import Path

from reference.report import Step, line, logger, printer, read_log

FIRST, SECOND = Step(1, 5.5, 1.25, 2048, 0.5), Step(2, 5.25, 1.0, 4096, 1.0)


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
        report(Step(step, 1.0, 1.0, 100 * step, float(step)))
    assert [text.split("/")[0] for text in capsys.readouterr().out.splitlines()] == [f"step {n}" for n in (1, 3, 6, 7)]
