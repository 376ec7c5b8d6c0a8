"""`pip install rankwise`: sdist and wheel are built, installed in a fresh environment, and enough for the course."""

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from puzzles import catalog
from puzzles.grading import text

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("reference", "puzzles", "visualizations", "rankwise", "lessons")
SDIST = "from setuptools import build_meta; print(build_meta.build_sdist('dist'))"
AT_HOME = "import puzzles; print(puzzles.__file__, puzzles.check('ranks.pair'))"

pytestmark = pytest.mark.long


def done(*command: str | Path, at: Path, **variables: str) -> str:
    """What a command prints; the test fails where it fails."""
    finished = run(*command, at=at, **variables)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


def run(*command: str | Path, at: Path, **variables: str) -> subprocess.CompletedProcess:
    """A command in a folder, without what this checkout puts on the path."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return subprocess.run(command, cwd=at, capture_output=True, text=True, env=kept | variables)


def files() -> list[str]:
    """What a commit of all that is here would have."""
    listed = ("git", "ls-files", "--cached", "--others", "--exclude-standard")
    return [path for path in done(*listed, at=ROOT).splitlines() if (ROOT / path).exists()]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built of the sdist, which is built of a copy of this checkout."""
    source = tmp_path_factory.mktemp("source")
    for path in files():
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        (source / path).write_bytes((ROOT / path).read_bytes())
    sdist = done(sys.executable, "-c", SDIST, at=source).splitlines()[-1]
    pip = (sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index")
    done(*pip, "--wheel-dir", "built", f"dist/{sdist}", at=source)
    (built,) = (source / "built").iterdir()
    return built


@pytest.fixture(scope="module")
def binaries(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The commands of a fresh environment that has the wheel, and finds torch and the others where we do."""
    home = tmp_path_factory.mktemp("environment")
    done(sys.executable, "-m", "venv", "--without-pip", home, at=home)
    (packages,) = home.glob("lib/python*/site-packages")
    (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = (sys.executable, "-m", "pip", "--python", home / "bin" / "python", "install", "--no-deps", "--no-index")
    done(*pip, "--ignore-installed", wheel, at=home)
    return home / "bin"


def test_the_wheel_has_every_file_of_the_rooms(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
        assert archive.read("rankwise/constraints.txt") == (ROOT / "constraints.txt").read_bytes()
    ours = {path for path in files() if path.split("/")[0] in ROOMS}
    assert len(ours) > 700
    assert not ours - held
    assert {path.split("/")[0] for path in held - ours} == {wheel.name.rpartition("-py3")[0] + ".dist-info"}


def test_a_course_without_a_clone(binaries: Path, tmp_path: Path) -> None:
    rankwise, python = binaries / "rankwise", binaries / "python"
    at_first = run(rankwise, "lessons", at=tmp_path)
    assert at_first.returncode == 2 and "`rankwise init my-course` makes one" in at_first.stderr

    assert "my-course is yours" in done(rankwise, "init", "my-course", at=tmp_path)
    course = tmp_path / "my-course"
    lessons = {path.name for path in (ROOT / "lessons").glob("[0-9]*.ipynb")}
    assert {path.name for path in (course / "lessons").iterdir()} == lessons
    assert run(rankwise, "init", "my-course", at=tmp_path).returncode == 2
    assert "Many processes, one program" in done(rankwise, "lessons", at=course)

    puzzle, file = catalog.find("ranks.pair"), course / "puzzles" / "ranks" / "pair.py"
    assert run(rankwise, "check", "ranks.pair", at=course / "lessons").returncode == 1
    file.write_text(text.solution(puzzle), encoding="utf-8")
    done(rankwise, "check", "ranks.pair", at=course / "lessons")
    checked = done(python, "-c", AT_HOME, at=course / "lessons")
    assert str(binaries.parent) in checked and "✓ ranks.pair" in checked
    assert "1 passed" in done(python, "-m", "pytest", "puzzles", "-k", "test_puzzle and ranks.pair", at=course)
    file.write_text(text.wrong(puzzle, puzzle.wrong[0]), encoding="utf-8")
    assert "✗ ranks.pair" in run(rankwise, "check", file, at=tmp_path / "my-course").stdout


def test_a_newer_wheel_renews_it(binaries: Path, tmp_path: Path) -> None:
    rankwise, course = binaries / "rankwise", tmp_path / "my-course"
    done(rankwise, "init", "my-course", at=tmp_path)
    assert "this is the course of rankwise" in done(rankwise, "update", at=course)
    solution = course / "puzzles" / "ranks" / "pair.py"
    solution.write_text("def pair(): return 1\n", encoding="utf-8")
    (lessons,) = binaries.parent.glob("lib/python*/site-packages/lessons")
    for installed in (lessons / "01_ranks.ipynb", lessons / "02_collectives.ipynb"):
        installed.write_text(installed.read_text(encoding="utf-8").replace("ranks", "newer ranks"), encoding="utf-8")
    edited = course / "lessons" / "02_collectives.ipynb"
    mine = edited.read_text(encoding="utf-8").replace("ranks", "my ranks")
    edited.write_text(mine, encoding="utf-8")

    said = done(rankwise, "update", "--course", course, at=tmp_path)
    assert "2 files are new" in said and "yours, as it was: puzzles/ranks/pair.py" in said
    assert solution.read_text(encoding="utf-8") == "def pair(): return 1\n"
    assert [path.read_text(encoding="utf-8") for path in (course / "lessons" / "mine").iterdir()] == [mine]
    for name in ("01_ranks.ipynb", "02_collectives.ipynb"):
        assert (course / "lessons" / name).read_bytes() == (lessons / name).read_bytes()


def test_what_needs_a_clone_says_so(binaries: Path, tmp_path: Path) -> None:
    for command in (["bench"], ["assignment", "ranks.pair", "--to", "week1"]):
        refused = run(binaries / "rankwise", *command, at=tmp_path)
        assert refused.returncode == 2 and "clone" in refused.stderr
