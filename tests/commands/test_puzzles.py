"""What a person types about puzzles: names and paths, lists and attempts; and that a short answer comes at once."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from puzzles import catalog
from puzzles.grading import course as courses
from puzzles.grading import hints, text
from puzzles.grading.course import Course, here
from rankwise import cli

from .at_once import Answer, answers

ROOT = Path(__file__).resolve().parents[2]
PAIR = catalog.find("ranks.pair")
TIME = catalog.find("networks.ring_time")  # the quickest to check
SHORT_ANSWERS = [
    ("hint pair", 0, "hint 1 of"),
    ("hint pairr", 2, "did you mean ranks.pair"),
    ("hint", 2, "Missing argument"),
    ("history", 0, "no attempts yet"),
    ("history pair", 0, "no attempts at ranks.pair yet"),
    ("history pairr", 2, "did you mean"),
    ("history pair --show 7", 2, "no attempt 7 at ranks.pair"),
    ("history --show x", 2, "--show"),
    ("puzzles", 0, "0 of 233 passed"),
    ("puzzles rank", 2, "did you mean ranks,"),
    ("check collective", 2, "did you mean collectives,"),
    ("check 01_ranks", 2, "did you mean ranks,"),
    ("check RANKS.PAIR", 2, "did you mean ranks.pair"),
    ("check ring-shift", 2, "did you mean ranks.ring_shift"),
    ("check lessons/01_ranks.ipynb", 2, "lessons/01_ranks.ipynb is no puzzle's file"),
    ("check pairr", 2, "did you mean ranks.pair"),
    ("check puzzles/ranks/pari.py", 2, "did you mean puzzles/ranks/pair.py"),
    ("check pair --file no/such/file.py", 2, "there is no file no/such/file.py"),
    ("check --jsn", 2, "--json"),
    ("watch pairr", 2, "did you mean ranks.pair"),
    ("reset pairr", 2, "did you mean ranks.pair"),
    ("reset pair --to 7", 2, "no attempt 7 at ranks.pair"),
    ("solution pairr", 2, "did you mean ranks.pair"),
]


def a_copy(folder: Path) -> Course:
    """A copy of the course, in this folder, with the stubs of two puzzles."""
    course = Course(folder / "course")
    for puzzle in (PAIR, TIME):
        course.write(puzzle, text.stub(puzzle), "test")
    return course


@pytest.fixture
def course(tmp_path: Path) -> Course:
    """One of one's own."""
    return a_copy(tmp_path)


def rankwise(*arguments: str, course: Course) -> int:
    return cli.run([*arguments, "--course", str(course.root)])


@pytest.fixture(scope="module")
def answered(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Answer]:
    """What each of these commands answers in a copy of the course."""
    copy = a_copy(tmp_path_factory.mktemp("answers"))
    return answers((arguments for arguments, _, _ in SHORT_ANSWERS), "--course", str(copy.root))


@pytest.mark.parametrize(("arguments", "code", "said"), SHORT_ANSWERS)
def test_a_short_answer_does_not_wait_for_torch(
    arguments: str, code: int, said: str, answered: dict[str, Answer]
) -> None:
    answer = answered[arguments]
    assert (answer.code, said in answer.said, answer.torch) == (code, True, False), answer.said


@pytest.mark.parametrize("name", catalog.names())
def test_facts_are_what_the_description_says(name: str) -> None:
    puzzle = catalog.find(name)
    assert catalog.facts(name) == catalog.Facts(puzzle.title, puzzle.hints)


class TestPaths:
    @pytest.fixture(autouse=True)
    def inside(self, course: Course, monkeypatch: pytest.MonkeyPatch) -> None:
        """The copy is the course that the command belongs to."""
        monkeypatch.setattr("rankwise.naming.here", lambda: course)

    @pytest.mark.parametrize(
        ("folder", "path"),
        [
            (".", "puzzles/networks/ring_time.py"),
            (".", "./puzzles/networks/ring_time.py"),
            ("puzzles", "networks/ring_time.py"),
            ("puzzles/networks", "ring_time.py"),
            ("..", "course/puzzles/networks/ring_time.py"),
            ("/", "puzzles/networks/ring_time.py"),
            ("/", "{root}/puzzles/networks/ring_time.py"),
            (".", "puzzles/networks"),
        ],
    )
    def test_the_path_of_a_puzzle_is_its_name(
        self, folder: str, path: str, course: Course, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
    ) -> None:
        monkeypatch.chdir(course.root / folder)
        path = path.format(root=course.root)
        assert cli.run(["hint", path]) == (2 if path.endswith("networks") else 0)  # a chapter has no hint
        course.write(TIME, text.solution(TIME), "test")
        assert cli.run(["check", path]) == (1 if path.endswith("networks") else 0)  # and other puzzles
        assert "✓ networks.ring_time: passed" in capsys.readouterr().out
        assert [attempt.puzzle for attempt in course.state.history()] == ["networks.ring_time"]

    def test_a_file_of_another_copy_is_checked_as_it_is(
        self, course: Course, tmp_path: Path, capsys: pytest.CaptureFixture
    ) -> None:
        other = tmp_path / "other" / "networks" / "ring_time.py"
        other.parent.mkdir(parents=True)
        other.write_text(text.solution(TIME))
        assert cli.run(["check", "ring_time"]) == 1
        assert cli.run(["check", str(other)]) == 0
        for command in ("hint", "reset", "solution", "history"):
            assert cli.run([command, str(other)]) == 2
            assert f"{other} is not in {course.root}" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("word", "said"),
        [
            ("puzzles/networks/ring_tme.py", "there is no file {word}: did you mean puzzles/networks/ring_time.py?"),
            ("nowhere/networks/ring_time.py", "there is no file {word}: did you mean networks.ring_time?"),
            ("made_up.py", "there is no file made_up.py: `rankwise puzzles` lists the names"),
            ("~nobody-here/pair.py", "there is no file {word}: ~nobody-here is no user's home"),
            ("notes/ring_time.py", "`rankwise check networks.ring_time --file {word}` checks it as networks.ring_time"),
            ("notes", "there is no puzzle 'notes'"),
            ("./notes", "./notes is no puzzle's file: `rankwise puzzles` lists the names"),
        ],
    )
    def test_a_path_that_is_no_puzzle_is_told_once(
        self, word: str, said: str, course: Course, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
    ) -> None:
        monkeypatch.chdir(course.root)
        Path("notes").mkdir()
        Path("notes/ring_time.py").write_text(text.solution(TIME))
        assert cli.run(["check", word]) == 2
        shown = capsys.readouterr()
        assert shown.out == "" and shown.err.count("\n") == 1 and said.format(word=word) in shown.err


class TestList:
    @pytest.mark.parametrize("chapter", [[], *([each] for each in catalog.CHAPTERS)])
    def test_each_puzzle_has_one_line_of_80_columns(
        self, chapter: list[str], course: Course, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
    ) -> None:
        monkeypatch.setenv("COLUMNS", "80")
        for _ in range(3):
            course.state.finish(course.state.begin(PAIR.name, "text", "test"), "wrong values", "", 0.1)
        assert rankwise("puzzles", *chapter, course=course) == 0
        lines = capsys.readouterr().out.splitlines()
        names = catalog.select(chapter[0]) if chapter else catalog.names()
        assert [line.split()[1] for line in lines[1:-2]] == list(names)
        assert max(map(len, lines)) <= 80
        if PAIR.name in names:
            (pair,) = (line for line in lines if PAIR.name in line.split())
            assert pair.startswith("✗") and pair.endswith(" 3")

    def test_a_wide_terminal_shows_whole_titles(
        self, course: Course, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
    ) -> None:
        monkeypatch.setenv("COLUMNS", "140")
        rankwise("puzzles", course=course)
        shown = capsys.readouterr().out
        assert all(catalog.facts(name).title in shown for name in catalog.names())


class TestAttempts:
    def tried(self, course: Course) -> None:
        """Two attempts at one puzzle, and one at another between them."""
        for puzzle, source in ((TIME, "first\n"), (PAIR, "other\n"), (TIME, "second\n")):
            course.state.finish(course.state.begin(puzzle.name, source, "test"), "wrong values", "why", 0.1)

    def test_each_puzzle_counts_its_own(self, course: Course, capsys: pytest.CaptureFixture) -> None:
        self.tried(course)
        rankwise("history", course=course)
        listed = [line.split("  ")[1] for line in capsys.readouterr().out.splitlines()]
        assert listed == ["networks.ring_time 1", "ranks.pair 1", "networks.ring_time 2"]
        rankwise("history", "ring_time", "--show", "2", course=course)
        assert capsys.readouterr().out == "second\n"
        rankwise("reset", "ring_time", "--to", "1", course=course)
        assert course.read(TIME) == "first\n"

    def test_a_number_alone_is_not_enough_where_several_puzzles_have_it(
        self, course: Course, capsys: pytest.CaptureFixture
    ) -> None:
        self.tried(course)
        assert rankwise("history", "--show", "1", course=course) == 2
        assert "`rankwise history NAME --show 1`" in capsys.readouterr().err


def contents(folder: Path) -> dict[str, tuple]:
    """Everything in a folder: names, modes, times of change, and bytes."""
    found = {}
    for path in (folder, *sorted(folder.rglob("*"))):
        at = path.lstat()
        found[str(path)] = (at.st_mode, at.st_mtime_ns, at.st_size, path.read_bytes() if path.is_file() else b"")
    return found


class TestGraded:
    """A folder that is graded stays as it is, to the byte and the nanosecond."""

    @pytest.fixture
    def learner(self, tmp_path: Path) -> Course:
        """A learner's copy, with a history, a solution that runs on ranks, and one that tries to write."""
        learner = Course(tmp_path / "learner")
        learner.write(PAIR, text.solution(PAIR), "test")
        writes = 'open("left_behind", "w").write("x")\nimport tempfile\n' + text.solution(TIME)
        learner.write(TIME, writes, "test")
        learner.state.finish(learner.state.begin(PAIR.name, "text", "test"), "passed", "", 0.1)
        return learner

    @pytest.mark.parametrize(
        "command",
        [
            "check --course {folder}",
            "check pair --json --course {folder}",
            "check pair ring_time --course {folder}",
            "check {folder}/puzzles/ranks/pair.py",
            "check {folder}/puzzles/ranks",
            "check pair --file {folder}/puzzles/ranks/pair.py",
            "puzzles --course {folder}",
            "history --course {folder}",
            "history pair --show 1 --course {folder}",
        ],
    )
    def test_by_the_command_line(
        self, command: str, learner: Course, course: Course, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("rankwise.naming.here", lambda: course)
        monkeypatch.chdir(learner.root)
        before = contents(learner.root)
        cli.run(command.format(folder=learner.root).split())
        assert contents(learner.root) == before

    def test_by_pytest(self, learner: Course) -> None:
        before = contents(learner.root)
        command = [sys.executable, "-m", "pytest", "puzzles", "-k", "test_puzzle[ranks.pair]", "-p", "no:cacheprovider"]
        done = subprocess.run(
            [*command, "--course", str(learner.root)], capture_output=True, text=True, cwd=ROOT, timeout=120
        )
        assert "1 passed" in done.stdout, done.stdout
        assert contents(learner.root) == before

    def test_the_verdict_is_the_same(self, learner: Course, capsys: pytest.CaptureFixture) -> None:
        assert rankwise("check", "pair", "--json", course=learner) == 0
        assert json.loads(capsys.readouterr().out)["passed"]

    def test_the_course_itself_is_nobody_elses(self) -> None:
        assert not courses.at(here().root).visited and not here().visited

    def test_who_asks_for_a_hint_there_gets_one_after_the_other(self, learner: Course) -> None:
        copy = courses.at(learner.root)
        assert copy.visited
        assert [hints.hint("pair", course=copy)[:6] for _ in range(2)] == ["hint 1", "hint 2"]
