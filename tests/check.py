"""The answer that one wants while working: `python -m tests.check`, which is `make check`, in less than three minutes.

First come the tests that are nearest to what has changed: a test that has itself changed, then those that import a
changed module, then those that import what imports it. The way is that of the imports, and a folder of tests belongs to
the chapter of its name. Where nothing has changed, every test is as near as any other. Of tests that are equally near
those that take long come last. Each file in turn has a few, so that what the time is too short for leaves no chapter
out; the last line says how many there were.
"""

import ast
import re
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from functools import cache
from math import inf
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("reference", "visualizations", "puzzles", "rankwise", "tests")
SECONDS = 135  # from the start, after which no test begins; what is up then has to end, too
LONG = 35  # seconds before that, after which none begins that is marked `long`
TURN = 2  # tests that a file has before the next one has its turn: what they share is then made once for both
FAR = 99  # imports away: no way leads here from what has changed


def git(*arguments: str) -> list[str]:
    """The lines of what git says; none where it fails, as without a branch `main`."""
    return subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True).stdout.splitlines()


def changed() -> set[str]:
    """Files that are not as where this branch left `main`; on `main` itself, not as committed."""
    base = git("merge-base", "HEAD", "main") or ["HEAD"]
    return {*git("diff", "--name-only", "--no-renames", base[0]), *git("ls-files", "--others", "--exclude-standard")}


def module_of(path: Path) -> str:
    """ "reference/zero/__init__.py" is "reference.zero"."""
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def imported(path: Path) -> Iterator[str]:
    """What a file of the course imports of it, by whole names: modules, and names in them that may be modules."""
    package = module_of(path.parent / "__init__.py").split(".")
    for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else []
            home = ".".join([*above, *filter(None, [node.module])])
            yield from (home, *(f"{home}.{alias.name}" for alias in node.names))


def users(paths: Iterable[Path]) -> dict[str, set[str]]:
    """By file, the files that import it; a `conftest.py` serves the tests of its folder without."""
    files = {module_of(path): str(path) for path in sorted(paths)}
    found: dict[str, set[str]] = {file: set() for file in files.values()}
    for user in files.values():
        for name in imported(Path(user)):
            if file := files.get(name):
                found[file].add(user)
    for file in found:
        if Path(file).name == "conftest.py":
            found[file] |= {user for user in found if Path(user).is_relative_to(Path(file).parent)} - {file}
    return found


@cache
def users_in_course() -> dict[str, set[str]]:
    """The same for all files of the course."""
    return users(path.relative_to(ROOT) for room in ROOMS for path in (ROOT / room).rglob("*.py"))


@cache
def text_of(path: Path) -> str:
    """What a file of tests says."""
    return path.read_text(encoding="utf-8")


def distances(touched: set[str], used_by: dict[str, set[str]]) -> dict[str, int]:
    """How many imports each file is away from the nearest that was touched."""
    found, todo = dict.fromkeys(touched, 0), deque(touched)
    while todo:
        file = todo.popleft()
        for user in used_by.get(file, ()):
            if user not in found:
                found[user] = found[file] + 1
                todo.append(user)
    return found


def chapter_of(file: str) -> str:
    """What a file is about: "zero" for tests/zero/test_cost.py, puzzles/catalog/zero/x.py and lessons/06_zero.ipynb."""
    room, *rest = Path(file).parts
    if room == "lessons":
        return Path(rest[-1]).stem.partition("_")[2]
    rest = [part for part in rest if part != "catalog"]
    return Path(rest[0]).stem if room in ROOMS and rest else ""


def first_parameters_first(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """Each test function with its first parameters, then each with its second ones, and so on."""
    nth: Counter[tuple[Path, str]] = Counter()
    rounds = {}
    for item in items:
        function = item.path, item.name.partition("[")[0]
        rounds[item] = nth[function]
        nth[function] += 1
    return sorted(rounds, key=rounds.__getitem__)


class Nearest:
    """A plugin that puts the tests first that are nearest to what was touched, and stops when the time is up.

    Args:
        touched: files that have changed.
        end: on the clock `time.monotonic`, when no test begins any more; never by default.
    """

    def __init__(self, touched: set[str], end: float = inf) -> None:
        self.touched, self.away = touched, distances(touched, users_in_course())
        self.chapters = {chapter_of(file) for file in touched} - {""}
        self.texts = {Path(file).name for file in touched if not file.endswith(".py")}
        self.end = end
        self.near = self.done = 0

    def distance(self, item: pytest.Item) -> int:
        """How far a test is from what was touched: by imports, by its chapter, by a text that its file speaks of."""
        file = str(item.path.relative_to(ROOT))
        if not self.touched:
            return 0
        about = {chapter_of(file), *re.split(r"[\[\].]", re.sub(r"\d+_", "", item.name))}
        spoken_of = any(name in text_of(item.path) for name in self.texts)
        near = bool(about & self.chapters) or spoken_of
        return min(self.away.get(file, FAR), 1 if near else FAR)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        away = {item: self.distance(item) for item in items}
        near = sorted(first_parameters_first(items), key=away.__getitem__)
        turns: Counter[Path] = Counter()
        order = {}
        for item in near:
            order[item] = (away[item], item.get_closest_marker("long") is not None, turns[item.path] // TURN)
            turns[item.path] += 1
        self.near = sum(distance < FAR for distance in away.values())
        items[:] = [item for item in sorted(near, key=order.__getitem__) if away[item] < FAR]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        """Pass over a test where the time is up."""
        if time.monotonic() > self.end - LONG * (item.get_closest_marker("long") is not None):
            return True
        self.done += 1
        return None


def main(options: list[str]) -> int:
    """Run what is near, as far as the time goes. Returns pytest's exit code; no success where no test ran."""
    end = time.monotonic() + SECONDS
    touched = changed()
    nearest = Nearest(touched, end)
    code = int(pytest.main(options, plugins=[nearest]))
    near = f"that {len(touched)} changed files touch" if touched else "of all chapters: nothing has changed"
    print(f"{nearest.done:,} of {nearest.near:,} tests {near}")
    if nearest.near and not nearest.done:
        print("the time was up before any test began: this proves nothing. Close other programs, or run single files")
        return code or int(pytest.ExitCode.NO_TESTS_COLLECTED)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
