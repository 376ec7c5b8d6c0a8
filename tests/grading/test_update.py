"""`rankwise update` between two local repositories: the newer course comes, and nothing of the learner's goes."""

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from puzzles.grading.state import State
from rankwise import updating
from reference.errors import BadInput

STUB, SOLVED, NEWER = (
    "def pair():\n    ...\n",
    "def pair():\n    return 1\n",
    'def pair():\n    """Better."""\n    ...\n',
)
PUZZLE, NEXT, NOTEBOOK = "puzzles/ranks/pair.py", "puzzles/ranks/next.py", "lessons/01_ranks.ipynb"


def notebook(*cells: str, printed: str = "") -> str:
    outputs = [{"output_type": "stream", "name": "stdout", "text": printed}]
    return json.dumps({"cells": [{"cell_type": "code", "source": cell, "outputs": outputs} for cell in cells]})


def git(directory: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=author", "-c", "user.email=author@localhost"]
    done = subprocess.run(
        ["git", "-C", str(directory), *identity, *arguments], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def write(directory: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(content)


@pytest.fixture
def course(tmp_path: Path) -> Callable[..., None]:
    """The authors' repository; calling it commits files there."""
    home = tmp_path / "course"
    home.mkdir()
    git(home, "init", "--quiet", "--initial-branch=main")

    def publish(files: dict[str, str]) -> None:
        write(home, files)
        git(home, "add", "--all")
        git(home, "commit", "--quiet", "-m", "publish")

    publish({PUZZLE: STUB, NOTEBOOK: notebook("1 + 1"), "reference/ring.py": "old\n", ".gitignore": ".rankwise/\n"})
    return publish


@pytest.fixture
def mine(course: Callable[..., None], tmp_path: Path) -> Path:
    """A learner's clone."""
    git(tmp_path, "clone", "--quiet", str(tmp_path / "course"), "mine")
    return tmp_path / "mine"


def test_nothing_new(mine: Path) -> None:
    assert updating.update(mine).commits == 0


def test_a_solution_stays_and_the_course_comes(course: Callable[..., None], mine: Path) -> None:
    write(mine, {PUZZLE: SOLVED})
    course({PUZZLE: NEWER, "reference/ring.py": "new\n", NEXT: STUB})
    report = updating.update(mine)
    assert (report.commits, report.kept) == (1, (PUZZLE,))
    assert (mine / PUZZLE).read_text() == SOLVED
    assert (mine / "reference/ring.py").read_text() == "new\n"
    assert (mine / NEXT).read_text() == STUB
    assert [each.source for each in State(mine / ".rankwise/state.db").history("ranks.pair")] == [SOLVED]


def test_a_stub_becomes_the_newer_stub(course: Callable[..., None], mine: Path) -> None:
    course({PUZZLE: NEWER})
    updating.update(mine)
    assert (mine / PUZZLE).read_text() == NEWER


def test_a_committed_solution_wins_a_conflict(course: Callable[..., None], mine: Path) -> None:
    write(mine, {PUZZLE: SOLVED})
    git(mine, "commit", "--quiet", "--all", "-m", "solve")
    course({PUZZLE: NEWER, "reference/ring.py": "new\n"})
    updating.update(mine)
    assert (mine / PUZZLE).read_text() == SOLVED
    assert (mine / "reference/ring.py").read_text() == "new\n"
    assert git(mine, "status", "--porcelain") == ""


def test_an_edited_notebook_stays_where_the_course_has_not_changed_it(course: Callable[..., None], mine: Path) -> None:
    edited = notebook("1 + 1", "my own cell")
    write(mine, {NOTEBOOK: edited})
    course({"reference/ring.py": "new\n"})
    assert updating.update(mine).kept == (NOTEBOOK,)
    assert (mine / NOTEBOOK).read_text() == edited


def test_an_edited_notebook_goes_beside_a_changed_one(course: Callable[..., None], mine: Path) -> None:
    edited, newer = notebook("1 + 1", "my own cell"), notebook("1 + 2")
    write(mine, {NOTEBOOK: edited})
    course({NOTEBOOK: newer})
    ((path, beside),) = updating.update(mine).beside
    assert path == NOTEBOOK
    assert (mine / NOTEBOOK).read_text() == newer
    assert (mine / beside).read_text() == edited


def test_a_committed_notebook_goes_beside_a_changed_one(course: Callable[..., None], mine: Path) -> None:
    edited, newer = notebook("1 + 1", "my own cell"), notebook("1 + 2")
    write(mine, {NOTEBOOK: edited})
    git(mine, "commit", "--quiet", "--all", "-m", "play")
    course({NOTEBOOK: newer})
    ((_, beside),) = updating.update(mine).beside
    assert (mine / NOTEBOOK).read_text() == newer
    assert json.loads((mine / beside).read_text()) == json.loads(edited)


def test_a_notebook_that_was_only_run_again_is_replaced(course: Callable[..., None], mine: Path) -> None:
    write(mine, {NOTEBOOK: notebook("1 + 1", printed="2")})
    course({NOTEBOOK: notebook("1 + 2")})
    assert updating.update(mine).beside == ()
    assert (mine / NOTEBOOK).read_text() == notebook("1 + 2")


def test_an_untracked_solution_of_a_puzzle_that_comes_stays(course: Callable[..., None], mine: Path) -> None:
    write(mine, {NEXT: SOLVED})
    course({NEXT: STUB})
    updating.update(mine)
    assert (mine / NEXT).read_text() == SOLVED


def test_a_deleted_puzzle_file_comes_back(course: Callable[..., None], mine: Path) -> None:
    (mine / PUZZLE).unlink()
    course({PUZZLE: NEWER})
    updating.update(mine)
    assert (mine / PUZZLE).read_text() == NEWER


def test_a_change_to_the_course_itself_stops_before_anything_is_touched(
    course: Callable[..., None], mine: Path
) -> None:
    write(mine, {PUZZLE: SOLVED, "reference/ring.py": "my own\n"})
    course({"reference/ring.py": "new\n"})
    with pytest.raises(BadInput, match=r"reference/ring.py, and so has the course"):
        updating.update(mine)
    assert (mine / PUZZLE).read_text() == SOLVED
    assert (mine / "reference/ring.py").read_text() == "my own\n"


def test_commits_that_do_not_go_together_leave_everything_as_it_was(course: Callable[..., None], mine: Path) -> None:
    write(mine, {"reference/ring.py": "my own\n"})
    git(mine, "commit", "--quiet", "--all", "-m", "change the course")
    write(mine, {PUZZLE: SOLVED})
    course({"reference/ring.py": "new\n", PUZZLE: NEWER})
    with pytest.raises(BadInput, match=r"do not go together: reference/ring\.py"):
        updating.update(mine)
    assert (mine / PUZZLE).read_text() == SOLVED
    assert (mine / "reference/ring.py").read_text() == "my own\n"
    assert not (mine / ".git/MERGE_HEAD").exists()


def update_until(last: str, mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An update that is killed when it has done its step `last`."""

    class Killed(BaseException):
        pass

    step = getattr(updating, last)

    def dies(*args: object) -> None:
        step(*args)
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(updating, last, dies)
        updating.update(mine)


@pytest.mark.parametrize("last", ["save", "merge"])
def test_an_update_that_was_killed_is_finished_by_the_next(
    course: Callable[..., None], mine: Path, last: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(mine, {PUZZLE: SOLVED})
    course({PUZZLE: NEWER})
    update_until(last, mine, monkeypatch)
    assert (mine / PUZZLE).read_text() != SOLVED, "the update was to be stopped halfway"
    updating.update(mine)
    assert (mine / PUZZLE).read_text() == SOLVED
    assert git(mine, "show", f"HEAD:{PUZZLE}") + "\n" == NEWER


@pytest.mark.parametrize("path", [PUZZLE, NEXT], ids=["tracked", "of a puzzle to come"])
def test_what_is_written_after_an_update_was_killed_stays(
    path: str, course: Callable[..., None], mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(mine, {path: SOLVED})
    course({path: NEWER})
    update_until("save", mine, monkeypatch)
    write(mine, {path: "written since\n"})
    updating.update(mine)
    assert (mine / path).read_text() == "written since\n"


def test_every_notebook_that_goes_beside_has_a_name_of_its_own(course: Callable[..., None], mine: Path) -> None:
    mines = [notebook(f"my own {number}") for number in range(3)]
    places = []
    for number, edited in enumerate(mines):
        write(mine, {NOTEBOOK: edited})
        course({NOTEBOOK: notebook(f"1 + {number + 2}")})
        places += [place for _, place in updating.update(mine).beside]
    assert [(mine / place).read_text() for place in places] == mines


def test_new_requirements_are_said(course: Callable[..., None], mine: Path) -> None:
    course({"constraints.txt": "torch==9\n"})
    assert updating.update(mine).setup


def test_a_directory_without_git_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="not a git checkout"):
        updating.update(tmp_path)


@pytest.mark.parametrize(
    ("upstream", "said"),
    [
        ("nowhere/main", "git fetch: fatal: 'nowhere' does not appear to be a git repository"),
        ("origin/typo", "git rev-list: fatal: ambiguous argument 'HEAD..origin/typo'"),
        ("--upload-pack=touch taken", "'--upload-pack=touch taken' is no upstream: say which"),
        ("", "'' is no upstream: say which"),
    ],
)
def test_an_upstream_that_is_not_there_is_refused_with_what_git_says_first(
    upstream: str, said: str, mine: Path
) -> None:
    with pytest.raises(BadInput, match=f"^{re.escape(said)}"):
        updating.update(mine, upstream)


def test_a_course_that_has_moved_away_is_named(mine: Path, tmp_path: Path) -> None:
    (tmp_path / "course").rename(tmp_path / "moved")
    with pytest.raises(BadInput, match=r"^git fetch: fatal: .*course' does not appear to be a git repository"):
        updating.update(mine)


@pytest.mark.parametrize("edited", [{}, {PUZZLE: SOLVED}], ids=["nothing edited", "a solution"])
def test_a_git_that_another_one_keeps_waiting_is_not_a_conflict(
    edited: dict[str, str], course: Callable[..., None], mine: Path
) -> None:
    write(mine, edited)
    course({"reference/ring.py": "new\n"})
    (mine / ".git/index.lock").touch()
    with pytest.raises(BadInput, match=r"index\.lock': File exists") as refusal:
        updating.update(mine)
    assert "go together" not in str(refusal.value) and "\n" not in str(refusal.value)
    (mine / ".git/index.lock").unlink()
    assert updating.update(mine).commits == 1
    assert (mine / PUZZLE).read_text() == edited.get(PUZZLE, STUB)


def test_without_git_there_is_no_update(mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BadInput, match=r"^cannot run git, which brings the course: no such file or directory$"):
        updating.update(mine)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"backup": "x", "paths": null}'])
def test_a_damaged_note_of_an_update_is_refused(text: str, mine: Path) -> None:
    write(mine, {".rankwise/updates/pending.json": text})
    with pytest.raises(BadInput, match=r"pending\.json is damaged: copy back"):
        updating.update(mine)
