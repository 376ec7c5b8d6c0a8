"""`rankwise grade`: verdicts are those of `rankwise check`, nothing is lost or done twice, each text fails alone."""

import base64
import csv
import hashlib
import json
import math
import os
import re
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from puzzles import catalog
from puzzles.grading import checking
from puzzles.grading.course import at
from rankwise import cli
from rankwise.classroom import crew, exports, marks
from rankwise.classroom.assignment import Assignment, load
from rankwise.classroom.journal import Graded, Journal, key
from rankwise.classroom.submissions import Submission
from reference.errors import BadInput
from tests.processes import wait_until

from .conftest import QUICK, Put, right, wrong

TIME, ALPHA = QUICK
ASSIGNMENT = """
title = "Week 3"
seed = 7777777
[points]
"networks.ring_time" = 2
"networks.alpha_beta" = 1
"ranks.ring_shift" = 3
"""
HOSTILE = "import torch\ntorch.distributed.send = None\n"
EVIL = 'x"><script>'


@pytest.fixture(scope="module")
def graded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A class, graded once with all that can be written."""
    home = tmp_path_factory.mktemp("graded")
    texts = {
        "alice": {name: right(name) for name in (TIME, ALPHA, "ranks.ring_shift")},
        "bob": {TIME: wrong(TIME), "ranks.ring_shift": wrong("ranks.ring_shift")},
        "carl": {TIME: right(TIME), "ranks.ring_shift": HOSTILE + right("ranks.ring_shift"), ALPHA: "def (:\n"},
        EVIL: {TIME: wrong(TIME) + "# <script>\n"},
    }
    for learner, own in texts.items():
        for name, source in own.items():
            file = home / "class" / learner / "puzzles" / f"{name.replace('.', '/')}.py"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(source)
    (home / "dana.toml").write_text(ASSIGNMENT)
    (home / "class" / "dana").mkdir()
    before = contents(home / "class")
    files = {name: str(home / f"out.{name}") for name in ("csv", "json", "junit", "html", "gradescope", "github")}
    options = [word for name, file in files.items() for word in (f"--{name}", file)]
    journal = ["--journal", str(home / "journal.db"), "--assignment", str(home / "dana.toml")]
    assert cli.run(["grade", str(home / "class"), *options, *journal]) == 0
    assert contents(home / "class") == before, "the folder was written to"
    return home


def contents(folder: Path) -> dict[str, str]:
    """All that is below a folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def facts(graded: Path) -> dict[str, dict[str, dict]]:
    """By learner and puzzle, what the JSON says."""
    learners = json.loads((graded / "out.json").read_text())["learners"]
    return {one["learner"]: {each["name"]: each for each in one["puzzles"]} for one in learners}


def test_each_verdict_is_that_of_check(graded: Path) -> None:
    for learner, own in facts(graded).items():
        course = at(graded / "class" / learner) if learner != "dana" else None
        for name, told in own.items():
            if course and course.file_of(name).exists():
                verdict = checking.check(name, course=course, seed=7777777)
                assert (told["stage"], told["reason"]) == (verdict.stage, verdict.reason)
                assert [row["yours"] for row in told["table"]] == [row.yours for row in verdict.table]
            else:
                assert (told["stage"], told["reason"]) == ("not solved yet", "nothing was handed in")


def test_a_learner_who_reaches_around_fails_alone(graded: Path) -> None:
    found = facts(graded)
    assert found["carl"]["ranks.ring_shift"]["stage"] == "calls not allowed"
    assert found["carl"][ALPHA]["stage"] == "not a program"
    assert all(each["passed"] for each in found["alice"].values()) and found["carl"][TIME]["passed"]


def test_the_csv_has_a_line_for_each_learner(graded: Path) -> None:
    rows = {row["learner"]: row for row in csv.DictReader((graded / "out.csv").open())}
    assert {learner: (row["points"], row["of"]) for learner, row in rows.items()} == {
        "alice": ("6", "6"), "bob": ("0", "6"), "carl": ("2", "6"), "dana": ("0", "6"), EVIL: ("0", "6"),
    }  # fmt: skip
    assert rows["alice"]["ranks.ring_shift"] == "3" and rows["dana"]["remarks"] == "no puzzle file is in it"


def test_junit_counts_failures_and_skips(graded: Path) -> None:
    suites = {suite.get("name"): suite for suite in ElementTree.parse(graded / "out.junit").getroot()}
    assert [suites["bob"].get(count) for count in ("tests", "failures", "skipped")] == ["3", "2", "1"]
    assert TIME in suites["bob"].find("testcase/failure").text


def test_gradescope_and_github_get_what_their_formats_ask_for(graded: Path) -> None:
    result = json.loads((graded / "out.gradescope/alice/results.json").read_text())
    assert result["score"] == 6 and [test["max_score"] for test in result["tests"]] == [2, 1, 3]
    assert {test["status"] for test in result["tests"]} == {"passed"}
    told = json.loads(base64.b64decode((graded / "out.github/carl/results.base64").read_text()))
    assert (told["version"], told["status"], told["max_score"]) == (1, "fail", 6)
    assert [(test["status"], test["score"]) for test in told["tests"]] == [("pass", 2), ("fail", 0), ("fail", 0)]


def test_pages_show_the_cards_and_run_nothing(graded: Path) -> None:
    pages = {path.name: path.read_text() for path in (graded / "out.html").iterdir()}
    assert len(pages) == 6 and "data:image/png;base64," in pages["alice.html"]
    assert "border-left:4px solid" in pages["bob.html"] and "most frequent wrong solution" in pages["index.html"]
    assert not any("<script>" in page for page in pages.values())
    assert re.search(r"networks.ring_time</td><td>2</td><td>2</td><td>1</td><td>[\w -]+ \(2\)", pages["index.html"])


def test_a_hidden_seed_is_in_no_file(graded: Path) -> None:
    files = [path for path in graded.glob("out.*/**/*") if path.is_file()]
    files += [path for path in graded.glob("out.*") if path.is_file()]
    assert len(files) > 15
    told = [path.read_text() for path in files]
    told += [base64.b64decode(path.read_text()).decode() for path in graded.glob("out.github/*/*")]
    assert not [text for text in told if "7777777" in text]


def test_what_was_graded_is_not_graded_again(graded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = []
    monkeypatch.setattr(crew, "grade", lambda found, limits, done: batches.extend(found))
    options = ["--assignment", str(graded / "dana.toml"), "--html", str(graded / "again")]
    assert cli.run(["grade", str(graded / "class"), "--journal", str(graded / "journal.db"), *options]) == 0
    assert batches == []
    pages = graded / "again" / "alice.html", graded / "out.html" / "alice.html"
    assert pages[0].read_text() == pages[1].read_text()


def test_what_the_machine_is_to_blame_for_is_told_and_not_kept(
    folder: Path, put: Put, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put("alice/networks/ring_time.py", right(TIME))
    put("alice/networks/alpha_beta.py", right(ALPHA))
    busy = Graded(TIME, "error", "this machine is busy with other programs", False, of_machine=True)
    said = {TIME: busy, ALPHA: Graded(ALPHA, "passed", "", True)}
    told: list[list[str]] = []

    def answered(batches: list[list[crew.Task]], limits: crew.Limits, done: crew.Done) -> None:
        told.append([task.name for batch in batches for task in batch])
        for name in told[-1]:
            done(next(task for batch in batches for task in batch if task.name == name), said[name], None)

    monkeypatch.setattr(crew, "grade", answered)
    command = ["grade", str(folder), "--journal", str(tmp_path / "j.db"), "--json", str(tmp_path / "j.json")]
    assert cli.run(command) == cli.run(command) == 0
    assert [sorted(names) for names in told] == [[ALPHA, TIME], [TIME]]
    assert busy.reason in (tmp_path / "j.json").read_text()


def test_the_worker_is_the_course_s_own_wherever_one_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rankwise").mkdir()
    (tmp_path / "rankwise/__init__.py").write_text(f"open({str(tmp_path / 'was here')!r}, 'w')\nraise SystemExit\n")
    monkeypatch.chdir(tmp_path)
    found: list[Graded] = []
    task = crew.Task(TIME, TIME, right(TIME), 0)
    crew.grade([[task]], crew.Limits(1, 1 << 40), lambda task, graded, card: found.append(graded))
    assert [graded.passed for graded in found] == [True], found
    assert not (tmp_path / "was here").exists()


@pytest.mark.long
def test_a_run_that_was_killed_continues(folder: Path, put: Put, tmp_path: Path) -> None:
    for number in range(12):
        put(f"learner{number}/networks/ring_time.py", right(TIME) + f"# {number}\n")
    journal = tmp_path / "journal.db"
    command = [sys.executable, "-m", "rankwise", "grade", str(folder)]
    command += ["--journal", str(journal), "--cores", "1"]
    first = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
    wait_until(lambda: journal.exists() and len(kept(journal)) > 1, seconds=120)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    before = kept(journal)
    assert 1 < len(before) < 12
    done = subprocess.run(command, capture_output=True, text=True)
    after = kept(journal)
    assert done.returncode == 0 and len(after) == 12, done.stderr
    assert {name: after[name] for name in before} == before, "a verdict was lost or made twice"


def kept(journal: Path) -> dict[str, str]:
    """All verdicts in a journal, with the seconds that they took."""
    try:
        return dict(sqlite3.connect(journal).execute("SELECT key, facts FROM verdicts").fetchall())
    except sqlite3.OperationalError:
        return {}


@pytest.mark.alone
@pytest.mark.long
def test_a_text_that_takes_the_memory_of_all_fails_alone(tmp_path: Path) -> None:
    greedy = "import torch\n\nx = torch.ones(250_000_000)\n" + right("ranks.pair")
    texts = {"ranks.pair": greedy, TIME: right(TIME)}
    tasks = [crew.Task(name, name, source, 0) for name, source in texts.items()]
    found: dict[str, Graded] = {}
    crew.grade([tasks], crew.Limits(1, 1_500_000_000), lambda task, graded, card: found.update({task.name: graded}))
    assert found[TIME].passed
    assert "GB of memory, and its share is 1.5 GB" in found["ranks.pair"].reason, found["ranks.pair"]


def test_points_follow_the_assignment(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(
        "late = 0.5\nbest = 2\ndue = 2026-11-30T23:59:00+00:00\n"
        '[points]\n"ranks.pair" = 1\nring_time = 2\nalpha_beta = 4\n'
        '[weights]\nnetworks = 1.5\n[counts]\n"over budget" = 0.5\n'
    )
    asked = load(tmp_path / "a.toml")
    due = asked.due.timestamp()
    texts = {name: name for name in asked.points}
    stages = dict(zip(texts, ("passed", "passed", "over budget"), strict=True))
    verdicts = {key(name, name, 3): Graded(name, stage, "", stage == "passed") for name, stage in stages.items()}
    classmates = [Submission("in time", texts, [], due - 1), Submission("late", texts, [], due + 1)]
    found = marks.reports(classmates, asked, verdicts, 3)
    assert [[mark.points for mark in one.marks] for one in found] == [[1, 3, 3], [0.5, 1.5, 1.5]]
    assert [(one.points, one.of, one.late) for one in found] == [(6, 9, False), (3, 9, True)]
    assert [[mark.counts for mark in one.marks] for one in found] == [[False, True, True]] * 2
    for one in found:  # GitHub Classroom adds up what the tests have
        told = json.loads(base64.b64decode(exports.as_github(one)))
        assert (sum(test["score"] for test in told["tests"]), told["max_score"]) == (one.points, one.of)


REFUSED = {
    "x = 1": "there is no entry 'x': choose from title, due,",
    "[points]": "it names no puzzle",
    '[points]\n"ranks.pear" = 1': "did you mean ranks.pair",
    "[points]\nranks.pair = 1": "puzzles are written in quotes",
    '[points]\n"ranks.pair" = -1': "points.ranks.pair is a number from 0 or more, not -1",
    '[points]\npair = 1\n[counts]\n"on budget" = 1': "there is no stage 'on budget': choose from not a program, error",
    "[points]\npair = 1\n[weights]\nrank = 1": "there is no chapter 'rank'",
    "due = 2026-11-30\n[points]\npair = 1": "due is a date with a time",
    "seed = 1.5\n[points]\npair = 1": "seed is a whole number from 0",
    "late = 2\n[points]\npair = 1": "late is a number from 0 to 1, not 2",
    "late": "is no TOML",
}


@pytest.mark.parametrize("text", REFUSED)
def test_an_assignment_that_can_not_be_meant_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.toml").write_text(text)
    with pytest.raises(BadInput, match=re.escape(REFUSED[text])):
        load(tmp_path / "a.toml")


def test_what_is_written_overwrites_nothing_that_is_read(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture):
    file = tmp_path / "a.toml"
    file.write_text(ASSIGNMENT)
    command = ["grade", str(folder), "--assignment", str(file)]
    for option in ("--csv", "--json", "--junit", "--journal"):
        assert cli.run([*command, option, str(file)]) == cli.BAD_INPUT
        assert f"{option} would overwrite {file}" in capsys.readouterr().err
    assert cli.run([*command, "--journal", str(tmp_path / "j"), "--csv", str(tmp_path / "j")]) == cli.BAD_INPUT
    assert file.read_text() == ASSIGNMENT


def test_what_is_written_by_a_link_or_into_a_pipe_leaves_both_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "link.csv").symlink_to("real.csv")
    exports.write(tmp_path / "link.csv", "first\n")
    exports.write(tmp_path / "link.csv", "second\n")
    assert (tmp_path / "link.csv").is_symlink() and (tmp_path / "real.csv").read_text() == "second\n"
    end, begin = os.pipe()
    exports.write(Path(f"/dev/fd/{begin}"), "a line\n")
    os.close(begin)
    with open(end) as pipe:
        assert pipe.read() == "a line\n"
    with pytest.raises(BadInput, match="can't be written: is a directory"):
        exports.write(tmp_path, "")


@pytest.mark.parametrize("memory", [0, -1, math.nan, math.inf])
def test_a_memory_that_can_not_be_is_refused(memory: float) -> None:
    with pytest.raises(BadInput, match=f"--memory is a number of GB above 0, not {memory:g}"):
        crew.usual_limits(None, memory)


def test_a_spreadsheet_runs_no_learner_s_name() -> None:
    report = marks.Report("=cmd|' /C calc'!A0", (), 0, 0, False, ("-1+1",))
    assert exports.as_csv([report]).splitlines()[1] == "'=cmd|' /C calc'!A0,0,0,,'-1+1"


def test_files_of_learners_have_names_of_their_own() -> None:
    names = exports.file_names(["a/b", "a?b", "A_B", "..", "index", "Ünal"])
    assert list(names.values()) == ["a_b", "a_b-2", "A_B-3", "learner", "index-2", "Ünal"]


def test_a_class_keeps_its_seed(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j.db")
    assert (journal.seed(5), journal.seed(6)) == (5, 5)


def test_by_default_every_puzzle_is_worth_a_point() -> None:
    assert Assignment().total == len(catalog.names())


def test_a_text_that_takes_too_long_is_graded_again_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last time counts, whatever it says."""
    asked: list[tuple[str, int]] = []

    def answered(worker: crew._Worker, batch: list[crew.Task], heard: crew.Done) -> list[crew.Task]:
        for task in batch:
            asked.append((task.name, len(worker.crew.workers)))
            slow = task.name == "slow"
            heard(task, Graded(task.name, "error" if slow else "passed", "", not slow, of_machine=slow), None)
        return []

    monkeypatch.setattr(crew._Worker, "grade", answered)
    tasks = [crew.Task(name, name, "", 0) for name in ("quick", "slow", "last")]
    found: list[str] = []
    crew.grade([[task] for task in tasks], crew.Limits(2, 1 << 40), lambda task, graded, card: found.append(task.name))
    assert sorted(found) == ["last", "quick", "slow"] and found[-1] == "slow"
    assert asked[-1] == ("slow", 1) and sorted(asked[:-1]) == [("last", 2), ("quick", 2), ("slow", 2)]


def test_a_text_whose_worker_is_lost_twice_costs_no_other_its_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    batches: list[list[str]] = []

    def answered(worker: crew._Worker, batch: list[crew.Task], heard: crew.Done) -> list[crew.Task]:
        batches.append([task.name for task in batch])
        for index, task in enumerate(batch):
            if task.name == "bad":
                worker.why = "exit code -11"
                return batch[index:]
            heard(task, Graded(task.name, "passed", "", True), None)
        return []

    monkeypatch.setattr(crew._Worker, "grade", answered)
    found: dict[str, Graded] = {}
    tasks = [crew.Task(name, name, "", 0) for name in ("before", "bad", "after")]
    crew.grade([tasks], crew.Limits(1, 1 << 40), lambda task, graded, card: found.update({task.name: graded}))
    assert found["before"].passed and found["after"].passed and found["bad"].stage == "error"
    assert found["bad"].reason == "the process that graded it was lost twice: exit code -11"
    assert found["bad"].of_machine and not found["before"].of_machine
    assert batches == [["before", "bad", "after"], ["bad"], ["after"]]
