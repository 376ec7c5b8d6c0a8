"""Cell, pytest and command line: one check, one history."""

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from IPython.core.interactiveshell import InteractiveShell
from matplotlib.text import Text

from puzzles import catalog
from puzzles.grading import checking, my_solution, notebook, predictions, text, verdict_report
from puzzles.grading.course import Course
from puzzles.grading.files import write_whole
from rankwise import cli
from reference.errors import BadInput
from visualizations import timeline

PUZZLE = catalog.find("networks.ring_time")  # the quickest to check
RANKS = catalog.find("ranks.ring_shift")
SOLUTION, STUB = text.solution(PUZZLE), text.stub(PUZZLE)
WRONG = text.wrong(PUZZLE, PUZZLE.wrong[0])
NO_TEXT = b"\xff\xfe\x00"
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def course(tmp_path: Path) -> Course:
    """A copy of the course with the stub of one puzzle."""
    course = Course(tmp_path)
    course.write(PUZZLE, STUB, "test")
    return course


@pytest.fixture
def shell(course: Course, monkeypatch: pytest.MonkeyPatch) -> Iterator[InteractiveShell]:
    """A notebook's shell whose course is the copy."""
    monkeypatch.setattr(checking, "here", lambda: course)
    shell = InteractiveShell.instance()
    shell.run_line_magic("load_ext", "puzzles")
    yield shell
    InteractiveShell.clear_instance()


def rankwise(*arguments: str, course: Course) -> int:
    return cli.run([*arguments, "--course", str(course.root)])


class TestCheck:
    def test_the_file_is_checked_and_the_attempt_kept(self, course: Course) -> None:
        course.write(PUZZLE, WRONG, "test")
        assert not checking.check("ring_time", course=course).passed
        course.write(PUZZLE, SOLUTION, "test")
        assert checking.check("ring_time", course=course, face="pytest").passed
        assert [(a.face, a.stage) for a in course.state.history()] == [("python", "wrong values"), ("pytest", "passed")]

    def test_a_text_a_path_and_a_function_are_solutions(self, course: Course) -> None:
        file = course.root / "elsewhere.py"
        file.write_text(SOLUTION)
        for solution in (SOLUTION, file, str(file), PUZZLE.function):
            assert checking.check("ring_time", solution, course=course).passed
        assert course.read(PUZZLE) == STUB

    def test_what_is_no_solution_is_refused(self, course: Course) -> None:
        with pytest.raises(BadInput, match=r"^5 is no solution: give its text, the path of its file, or a function$"):
            checking.check("ring_time", 5, course=course)

    def test_a_stub_is_nobodys_attempt(self, course: Course) -> None:
        assert checking.check("ring_time", course=course).unsolved
        assert course.state.history() == []

    def test_a_missing_file_is_a_stub_and_an_unreadable_one_is_said(self, course: Course) -> None:
        course.file(PUZZLE).unlink()
        assert checking.check("ring_time", course=course).unsolved
        course.file(PUZZLE).write_bytes(NO_TEXT)
        with pytest.raises(BadInput, match="can't be read: byte 0 is not UTF-8"):
            checking.check("ring_time", course=course)

    def test_a_byte_order_mark_is_no_part_of_a_solution(self, course: Course) -> None:
        course.file(PUZZLE).write_text(SOLUTION, encoding="utf-8-sig")
        assert checking.check("ring_time", course=course).passed
        assert checking.check("ring_time", course.file(PUZZLE), course=course).passed

    def test_a_verdict_that_cannot_be_kept_is_given(self, course: Course) -> None:
        course.state.path.mkdir(parents=True)
        verdict = checking.check("ring_time", SOLUTION, course=course)
        _, note = verdict.reason.splitlines()
        assert verdict.passed and note.startswith(f"not kept: the history {course.state.path} can't be used")

    def test_a_history_that_breaks_during_a_check_costs_no_verdict(
        self, course: Course, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def breaks(*row: object) -> None:
            raise BadInput("the disk is full")

        monkeypatch.setattr(course.state, "finish", breaks)
        assert checking.check("ring_time", SOLUTION, course=course).reason.endswith("\nnot kept: the disk is full")

    def test_a_killed_check_leaves_its_text(self, course: Course, monkeypatch: pytest.MonkeyPatch) -> None:
        class Killed(BaseException):
            pass

        def dies(*args: object, **options: object) -> None:
            raise Killed

        monkeypatch.setattr(checking.engine, "grade", dies)
        with pytest.raises(Killed):
            checking.check("ring_time", SOLUTION, course=course)
        (attempt,) = course.state.history()
        assert (attempt.source, attempt.stage) == (SOLUTION, "")


class TestNotebook:
    def cell(self, source: str) -> str:
        """A cell's text: what stands below the imports."""
        return source[source.index("def ring_time") :]

    def test_a_cell_becomes_the_file(self, shell: InteractiveShell, course: Course) -> None:
        shown = shell.run_cell_magic("puzzle", "networks.ring_time", self.cell(SOLUTION))
        assert shown.verdict.passed
        assert course.read(PUZZLE) == self.cell(SOLUTION)
        assert "✓" in repr(shown) and "networks.ring_time" in shown._repr_html_()

    def test_an_untouched_stub_replaces_nothing(self, shell: InteractiveShell, course: Course) -> None:
        course.write(PUZZLE, SOLUTION, "test")
        shown = shell.run_cell_magic("puzzle", "networks.ring_time", self.cell(STUB))
        assert shown.verdict.passed and "left as it is" in repr(shown)
        assert course.read(PUZZLE) == SOLUTION

    def test_what_a_cell_replaces_is_kept(self, shell: InteractiveShell, course: Course) -> None:
        course.write(PUZZLE, "# my own remark\n" + SOLUTION, "test")
        shell.run_cell_magic("puzzle", "networks.ring_time", self.cell(WRONG))
        assert "# my own remark\n" + SOLUTION in [attempt.source for attempt in course.state.history()]

    def test_missing_imports_are_added(self, shell: InteractiveShell, course: Course) -> None:
        source = text.solution(RANKS)
        shown = shell.run_cell_magic("puzzle", "ranks.ring_shift", source[source.index("def ring_shift") :])
        assert shown.verdict.passed, str(shown.verdict)

    @pytest.mark.parametrize(
        ("body", "says"),
        [("x = x\n    oops()", r"cell:4 "), ("return oops", r"cell:3 "), ("return (", r"line 3: ")],
    )
    def test_lines_are_counted_as_the_cell_counts_them(self, shell: InteractiveShell, body: str, says: str) -> None:
        """The magic is line 1, `def` line 2; imports are added without a line."""
        shown = shell.run_cell_magic("puzzle", "ranks.ring_shift", f"def ring_shift(x: Tensor, group):\n    {body}\n")
        assert not shown.verdict.passed
        assert re.search(says, shown.verdict.reason), shown.verdict.reason

    def test_what_is_not_allowed_has_its_line_in_the_cell(self, shell: InteractiveShell) -> None:
        solution = text.solution(RANKS)
        lines = solution[solution.index("def ring_shift") :].splitlines()
        lines.insert(-1, "    import os")
        shown = shell.run_cell_magic("puzzle", "ranks.ring_shift", "\n".join(lines))
        assert f"line {len(lines)} " in shown.verdict.reason

    @pytest.mark.parametrize("name", ["ranks.ring_shift", "collectives.ring_all_reduce"])
    def test_its_picture_counts_messages_and_names_no_link(
        self, shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        """What a message takes on some link is told in a later lesson."""
        seen = []
        draw = timeline.draw
        monkeypatch.setattr(timeline, "draw", lambda *of, **look: seen.append(draw(*of, **look)) or seen[-1])
        source = text.solution(catalog.find(name))
        shell.run_cell_magic("puzzle", name, source)._repr_html_()
        words = [each.get_text() for each in seen[0].findobj(Text)] + [seen[0].get_suptitle()]
        assert seen and "time (messages one after another)" in words
        assert not [word for word in words if re.search(r"NVLink|\d [µm]?s\b", word)], words

    def test_a_program_to_mend_is_counted_as_its_cell_too(self, shell: InteractiveShell) -> None:
        cell = text.cell(catalog.find("ranks.find_the_deadlock"))
        magic, _, source = cell.partition("\n")
        shown = shell.run_cell_magic("puzzle", magic.split()[1], source)
        number = int(re.search(r"cell:(\d+)", shown.verdict.reason)[1])
        assert "dist." in cell.splitlines()[number - 1]

    def test_a_wrong_name_is_said(self, shell: InteractiveShell, capsys: pytest.CaptureFixture) -> None:
        assert shell.run_cell_magic("puzzle", "ring_tim", "pass") is None
        assert "did you mean networks.ring_time" in capsys.readouterr().out

    def test_a_picture_that_fails_does_not_touch_the_verdict(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def breaks(verdict: object) -> None:
            raise RuntimeError("no ink")

        monkeypatch.setattr(verdict_report, "draw", breaks)
        verdict = checking.engine.grade(PUZZLE, SOLUTION)
        assert "no picture: RuntimeError: no ink" in notebook.VerdictReport(verdict)._repr_html_()

    def test_the_card_shows_the_run(self) -> None:
        verdict = checking.engine.grade(RANKS, text.solution(RANKS))
        shown = notebook.VerdictReport(verdict)._repr_html_()
        assert "data:image/png;base64," in shown and "<th" in shown and "optimum" in shown

    def test_what_a_learner_prints_is_not_html(self) -> None:
        printed = "<script>alert(1)</script>"
        source = SOLUTION.replace("    return", f"    print({printed!r})\n    return", 1)
        assert printed not in notebook.VerdictReport(checking.engine.grade(PUZZLE, source))._repr_html_()


class TestPredictions:
    def test_a_prediction_is_held_against_the_truth(self, course: Course, capsys: pytest.CaptureFixture) -> None:
        predictions.predict("how long?", seconds=0.5, course=course)
        assert "you say seconds 0.5" in capsys.readouterr().out
        predictions.reveal("how long?", seconds=1.0, course=course)
        assert "you said 0.5, it is 1 (off by a factor of 2)" in capsys.readouterr().out

    def test_nothing_is_well_predicted_where_nothing_is_the_truth(
        self, course: Course, capsys: pytest.CaptureFixture
    ) -> None:
        predictions.predict("how many?", steps=0, bytes=0, course=course)
        predictions.reveal("how many?", steps=0, bytes=5, course=course)
        shown = capsys.readouterr().out
        assert "steps: you said 0, it is 0 (well predicted)" in shown
        assert shown.endswith("bytes: you said 0, it is 5\n")

    @pytest.mark.parametrize("said", ["0.6 s", None])
    def test_a_prediction_is_a_number(self, said: object, course: Course) -> None:
        with pytest.raises(BadInput, match=rf"^seconds={said!r} is no number: write one without its unit"):
            predictions.predict("how long?", seconds=said, course=course)

    def test_dots_are_no_prediction(self, course: Course, capsys: pytest.CaptureFixture) -> None:
        predictions.predict("how long?", seconds=..., course=course)
        predictions.reveal("how long?", seconds=1.0, course=course)
        shown = capsys.readouterr().out
        assert "write your number" in shown and "seconds: 1" in shown

    def test_both_are_shown_wherever_they_stand_in_a_cell(self, course: Course) -> None:
        from IPython.core.interactiveshell import InteractiveShell
        from IPython.utils.capture import capture_output

        shell = InteractiveShell.instance()
        shell.user_ns |= {"predict": predictions.predict, "reveal": predictions.reveal, "course": course}
        cell = "predict('how?', seconds=2, course=course)\nreveal('how?', seconds=1, course=course)\nx = 0"
        with capture_output() as shown:
            shell.run_cell(cell)
        said, truth = (output.data for output in shown.outputs)
        assert said["text/plain"] == "how?: you say seconds 2" and "it is 1" in truth["text/html"]


class TestCommands:
    def test_exit_codes(self, course: Course, capsys: pytest.CaptureFixture) -> None:
        assert rankwise("check", "ring_time", course=course) == 1
        course.write(PUZZLE, WRONG, "test")
        assert rankwise("check", "ring_time", course=course) == 1
        assert rankwise("check", "ring_tim", course=course) == 2
        assert rankwise("check", "--file", "x.py", course=course) == 2
        course.write(PUZZLE, SOLUTION, "test")
        assert rankwise("check", "ring_time", course=course) == 0
        assert rankwise("check", course=course) == 0
        shown = capsys.readouterr()
        assert "did you mean networks.ring_time" in shown.err and "✓ networks.ring_time" in shown.out

    def test_nothing_begun_is_not_passed(self, course: Course, capsys: pytest.CaptureFixture) -> None:
        assert rankwise("check", course=course) == 1
        shown = capsys.readouterr()
        assert "no puzzle has been begun" in shown.err and not shown.out

    def test_a_file_that_cannot_be_read_does_not_stand_in_the_way_of_others(
        self, course: Course, capsys: pytest.CaptureFixture
    ) -> None:
        course.write(PUZZLE, SOLUTION, "test")
        unreadable = course.file(catalog.find("networks.alpha_beta"))
        unreadable.write_bytes(NO_TEXT)
        assert rankwise("check", course=course) == 2
        shown = capsys.readouterr()
        assert f"rankwise: {unreadable} can't be read" in shown.err and "✓ networks.ring_time" in shown.out

    @pytest.mark.parametrize(
        "arguments", ["check ring_time", "puzzles", "hint ring_time", "reset ring_time", "watch", "history"]
    )
    def test_a_course_is_a_folder_with_puzzles(
        self, tmp_path: Path, arguments: str, capsys: pytest.CaptureFixture
    ) -> None:
        (tmp_path / "a_file").touch()
        for name in ("missing", "a_file"):
            assert cli.run([*arguments.split(), "--course", str(tmp_path / name)]) == 2
            assert f"{name} is not a copy of the course: it has no folder `puzzles`" in capsys.readouterr().err
        assert [path.name for path in tmp_path.iterdir()] == ["a_file"]

    def test_json_and_a_picture(self, course: Course, capsys: pytest.CaptureFixture) -> None:
        file, picture = course.root / "shift.py", course.root / "out" / "run.png"
        file.write_text(text.solution(RANKS))
        assert (
            rankwise("check", "ring_shift", "--json", "--file", str(file), "--picture", str(picture), course=course)
            == 0
        )
        shown = capsys.readouterr()
        facts = json.loads(shown.out)
        assert f"the run is drawn in {picture}" in shown.err
        assert facts["passed"] and {row["measure"] for row in facts["table"]} == {"bytes sent by a rank", "steps"}
        assert picture.read_bytes().startswith(b"\x89PNG")

    def test_a_picture_that_cannot_be_written_is_said(self, course: Course, capsys: pytest.CaptureFixture) -> None:
        course.file(RANKS).parent.mkdir()
        course.file(RANKS).write_text(text.solution(RANKS))
        assert rankwise("check", "ring_shift", "--picture", str(course.root), course=course) == 2
        shown = capsys.readouterr()
        assert "✓ ranks.ring_shift" in shown.out and f"the picture {course.root} can't be written" in shown.err

    def test_a_picture_in_the_place_of_the_solution_is_refused(
        self, course: Course, capsys: pytest.CaptureFixture
    ) -> None:
        file = course.file(RANKS)
        file.parent.mkdir()
        file.write_text(text.solution(RANKS))
        assert rankwise("check", "ring_shift", "--picture", str(file), course=course) == 2
        assert "--picture would overwrite" in capsys.readouterr().err
        assert file.read_text() == text.solution(RANKS)

    def test_hints_come_in_order(self, course: Course, capsys: pytest.CaptureFixture) -> None:
        for _ in range(2):
            rankwise("hint", "ring_time", course=course)
        lines = capsys.readouterr().out.splitlines()
        assert [line[:6] for line in lines if line.startswith("hint")] == ["hint 1", "hint 2"]

    def test_a_check_that_was_killed_is_told_from_a_text_that_was_kept(
        self, course: Course, capsys: pytest.CaptureFixture
    ) -> None:
        course.state.begin(PUZZLE.name, SOLUTION, "rankwise")
        course.state.keep(PUZZLE.name, WRONG, "reset")
        rankwise("history", course=course)
        killed, kept = capsys.readouterr().out.splitlines()
        assert killed.endswith("the check did not finish") and kept.endswith("kept: reset")

    def test_reset_puts_the_stub_back_and_keeps_the_text(self, course: Course, capsys: pytest.CaptureFixture) -> None:
        course.write(PUZZLE, SOLUTION, "test")
        assert rankwise("reset", "ring_time", course=course) == 0
        assert course.read(PUZZLE) == STUB
        (kept,) = course.state.history()
        assert (kept.source, kept.face) == (SOLUTION, "reset")
        assert rankwise("reset", "ring_time", "--to", str(kept.number), course=course) == 0
        assert course.read(PUZZLE) == SOLUTION
        assert rankwise("reset", "ring_time", "--to", "99", course=course) == 2

    @pytest.mark.parametrize("spoil", ["bytes", "folder"])
    def test_reset_loses_nothing_that_the_history_cannot_keep(
        self, course: Course, spoil: str, capsys: pytest.CaptureFixture
    ) -> None:
        file = course.file(PUZZLE)
        file.unlink()
        file.mkdir() if spoil == "folder" else file.write_bytes(NO_TEXT)
        assert rankwise("reset", "ring_time", course=course) == 2
        assert f"{file} can't be read" in capsys.readouterr().err
        assert file.is_dir() or file.read_bytes() == NO_TEXT

    def test_the_solution_is_for_those_who_passed_or_give_up(
        self, course: Course, capsys: pytest.CaptureFixture
    ) -> None:
        assert rankwise("solution", "ring_time", course=course) == 2
        assert rankwise("solution", "ring_time", "--give-up", course=course) == 0
        checking.check("ring_time", SOLUTION, course=course)
        assert rankwise("solution", "ring_time", course=course) == 0
        assert capsys.readouterr().out == SOLUTION * 2

    def test_history_lists_attempts_and_shows_their_texts(self, course: Course, capsys: pytest.CaptureFixture) -> None:
        checking.check("ring_time", WRONG, course=course)
        checking.check("ring_time", SOLUTION, course=course)
        rankwise("history", "ring_time", course=course)
        listed = capsys.readouterr().out
        assert "wrong values: ring_time(ranks=2" in listed and "passed: right in" in listed
        rankwise("history", "--show", "1", course=course)
        assert capsys.readouterr().out == WRONG

    def test_the_list_shows_progress(self, course: Course, capsys: pytest.CaptureFixture) -> None:
        checking.check("ring_time", SOLUTION, course=course)
        rankwise("puzzles", "networks", course=course)
        listed = capsys.readouterr().out
        assert "✓ networks.ring_time" in " ".join(listed.split()) and "1 of" in listed

    def test_names_are_never_cut(
        self, course: Course, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
    ) -> None:
        monkeypatch.setenv("COLUMNS", "40")
        rankwise("puzzles", course=course)
        assert set(catalog.names()) <= set(capsys.readouterr().out.split())

    def test_watch_goes_on_after_what_it_cannot_check(
        self, course: Course, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
    ) -> None:
        file = course.file(PUZZLE)

        def saves(*folder: Path, **options: object) -> Iterator[set[tuple[int, str]]]:
            file.write_bytes(NO_TEXT)
            yield {(1, str(file))}
            file.unlink()
            file.mkdir()
            yield {(1, str(file))}
            file.rmdir()
            file.write_text(SOLUTION)
            course.state.path.mkdir(parents=True)
            yield {(1, str(file))}

        monkeypatch.setattr("watchfiles.watch", saves)
        monkeypatch.setattr("rankwise.commands.check.course_of", lambda root: course)
        assert cli.run(["watch"]) == 0
        shown = capsys.readouterr()
        assert shown.err.count(f"{file} can't be read") == 2
        assert "✓ networks.ring_time: passed" in shown.out and "not kept: " in shown.out

    def test_watch_checks_on_save(self, course: Course) -> None:
        command = [sys.executable, "-m", "rankwise", "watch", "--course", str(course.root)]
        watcher = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # tests in the background ignore it
        )
        try:
            assert "watching" in watcher.stdout.readline()
            checked = select.poll()
            checked.register(watcher.stdout, select.POLLIN)
            deadline = time.monotonic() + 60
            while not checked.poll(200) and time.monotonic() < deadline:  # the kernel may not watch yet
                write_whole(course.file(PUZZLE), SOLUTION)
            assert "✓ networks.ring_time: passed" in watcher.stdout.readline()
        finally:
            watcher.send_signal(signal.SIGINT)
            assert watcher.wait(10) == 0


class TestFrontDesk:
    COMMAND = (sys.executable, "-m", "rankwise")

    @pytest.mark.parametrize("command", ["puzzles", "lessons"])
    def test_a_terminal_of_ascii_is_enough(self, command: str) -> None:
        ascii_alone = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
        done = subprocess.run([*self.COMMAND, command], capture_output=True, env=os.environ | ascii_alone, cwd=ROOT)
        assert done.returncode == 0 and b"?" in done.stdout, done.stderr

    @pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")
    @pytest.mark.parametrize("argument", ["--help", "lessons"])
    def test_output_that_cannot_be_written_is_one_line(self, argument: str) -> None:
        with open("/dev/full", "w") as full:
            done = subprocess.run([*self.COMMAND, argument], stdout=full, stderr=subprocess.PIPE, text=True, cwd=ROOT)
        assert (done.returncode, done.stderr) == (2, "rankwise: stdout can't be written: No space left on device\n")

    @pytest.mark.parametrize("arguments", ["-h", "--help", "check -h"])
    def test_help_is_at_hand(self, arguments: str, capsys: pytest.CaptureFixture) -> None:
        assert cli.run(arguments.split()) == 0
        assert "Usage:" in capsys.readouterr().out

    def test_the_version_is_said(self, capsys: pytest.CaptureFixture) -> None:
        assert cli.run(["--version"]) == 0
        assert re.fullmatch(r"rankwise \d+\.\d+\.\d+\n", capsys.readouterr().out)


class TestPytest:
    def outcome(self, course: Course, *options: str) -> tuple[int, str]:
        command = [
            sys.executable,
            "-m",
            "pytest",
            "puzzles",
            "-k",
            "ring_time or bus_bandwidth",
            "-p",
            "no:cacheprovider",
        ]
        command += ["-rs", "--course", str(course.root), *options]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120)
        return done.returncode, done.stdout

    def test_solved_passes_and_unsolved_is_skipped(self, course: Course) -> None:
        course.write(PUZZLE, SOLUTION, "test")
        code, said = self.outcome(course)
        assert code == 0 and "1 passed, 1 skipped" in said and "not solved yet" in said

    def test_wrong_fails_with_the_reason_and_strict_fails_unsolved(self, course: Course) -> None:
        course.write(PUZZLE, WRONG, "test")
        code, said = self.outcome(course, "--strict")
        assert code == 1 and "2 failed" in said and "expected 0.040004, got" in said


class TestYours:
    def test_what_has_passed_is_yours_and_before_that_the_reference(self, course: Course) -> None:
        assert my_solution.yours("ring_time", course=course) is PUZZLE.function
        for solution in (SOLUTION, f"# shorter\n{SOLUTION}", WRONG):
            checking.check("ring_time", solution, course=course)
        yours = my_solution.yours("ring_time", course=course)
        assert yours.source == f"# shorter\n{SOLUTION}"
        assert yours(2, 8.0, 1.0, 4.0) == PUZZLE.function(2, 8.0, 1.0, 4.0)

    def test_what_is_yours_is_checked_and_not_what_the_file_holds_by_now(self, course: Course) -> None:
        for solution, passed in ((SOLUTION, True), (WRONG, False)):
            course.write(PUZZLE, solution, "test")
            assert checking.check("ring_time", course=course).passed is passed
        assert checking.check("ring_time", my_solution.yours("ring_time", course=course), course=course).passed


def test_writing_a_file_keeps_the_old_text_or_the_new_one(course: Course, monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(*args: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("puzzles.grading.files.os.replace", dies)
    with pytest.raises(BadInput, match=r"ring_time.py can't be written: disk full; it is as it was"):
        course.write(PUZZLE, SOLUTION, "test")
    assert course.read(PUZZLE) == STUB
    assert [path.name for path in course.file(PUZZLE).parent.iterdir()] == ["ring_time.py"]
