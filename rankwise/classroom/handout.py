"""What learners get for an assignment: the stubs of its puzzles, and a course that checks these and holds no answer.

Beside the folder stays the assignment's file, with the seed by which the instructor will grade.
"""

import ast
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from puzzles import catalog
from puzzles.grading import text
from puzzles.grading.pool import PRELOAD
from puzzles.grading.puzzle import Puzzle
from reference.errors import BadInput

from .stripped import HOUSE, LEFT_OUT, Stripped

_WITHOUT = ("wrong", "answer", "large")  # of a puzzle's description: answers, and what is weighed against one
_COMMANDS = ("puzzles", "check", "hint")
_WHOLE = ("puzzles/__init__.py", "puzzles/conftest.py", "puzzles/test_puzzles.py", "puzzles/catalog/__init__.py")
_WHOLE += ("rankwise/__init__.py", "rankwise/naming.py", "rankwise/commands/__init__.py")
_WHOLE += tuple(f"rankwise/commands/{name}.py" for name in _COMMANDS)
_MACHINERY = ("puzzles/grading", "reference/cluster", "reference/trace")  # some of it is imported by its name
_SEEDS = 1 << 62  # so many that none is found by trying


def write(names: Sequence[str], folder: Path, title: str) -> Path:
    """Write a handout for these puzzles. Returns the assignment's file, beside the folder.

    Raises:
        BadInput: this is no clone, a file is in the way, one puzzle gives away another's answer, or a check needs an
            answer.
    """
    if not (HOUSE / "pyproject.toml").exists():
        raise BadInput("a handout is made of a clone of the course, not of the package: clone it, then `make setup`")
    if not folder.name:
        raise BadInput(f"{folder} is no name for a new folder: give one, such as --to week3")
    puzzles = [catalog.find(name) for name in names]
    file = folder.with_name(f"{folder.name}.toml")
    for path in (folder, file):
        if path.exists():
            raise BadInput(f"{path} is there already: choose another place with --to, or move it away")
    _require_apart(puzzles)
    with tempfile.TemporaryDirectory() as above:
        made = _made(puzzles, Path(above))
        _write_rest(puzzles, made, title)
        try:
            shutil.copytree(made, folder)
            file.write_text(_assignment(names, title), encoding="utf-8")
        except OSError as error:
            raise BadInput(f"{folder} can't be written: {(error.strerror or str(error)).lower()}") from None
    return file


def _require_apart(puzzles: Sequence[Puzzle]) -> None:
    """Raises BadInput where a puzzle gives its learners what another asks for."""
    asked = {puzzle.function: puzzle.name for puzzle in puzzles}
    for puzzle in puzzles:
        for given in puzzle.helpers:
            if given.function in asked:
                raise BadInput(
                    f"{puzzle.name} gives its learners the answer of {asked[given.function]}: hand out one first"
                )


def _made(puzzles: Sequence[Puzzle], above: Path) -> Path:
    """The part of the course that checks these puzzles, in a folder. It has no answer of any puzzle, but for those of
    other puzzles that its checks turn out to use. Raises BadInput where these use one of its own."""
    given = {_place(each.function) for puzzle in puzzles for each in puzzle.helpers}
    answers = {_place(catalog.find(name).function) for name in catalog.names()} - given
    own = {_place(puzzle.function) for puzzle in puzzles}
    while True:
        folder = above / str(len(answers))
        _write_course(puzzles, folder, answers)
        said = _tried(puzzles, folder)
        if not said:
            return folder
        missing = set(re.findall(rf"{LEFT_OUT}: ([\w.]+):(\w+)", said)) & answers - own
        if not missing:
            raise BadInput(f"a handout of these puzzles does not check them: {said.strip().splitlines()[-1]}")
        answers -= missing


def _place(function: Callable) -> tuple[str, str]:
    return function.__module__, function.__qualname__


def _write_course(puzzles: Sequence[Puzzle], folder: Path, answers: set[tuple[str, str]]) -> None:
    """Write what checks these puzzles, without the bodies of answers."""
    stripped = Stripped(answers, _WITHOUT)
    whole = [
        *map(Path, _WHOLE),
        *(
            path.relative_to(HOUSE)
            for path in sorted(path for room in _MACHINERY for path in (HOUSE / room).rglob("*.py"))
        ),
    ]
    for path in (*whole, Path("rankwise/cli.py")):
        stripped.need(".".join(path.with_suffix("").parts).removesuffix(".__init__"), "*")
    for module in PRELOAD:
        stripped.need(module)
    for puzzle in puzzles:
        stripped.need(f"puzzles.catalog.{puzzle.name}", "PUZZLE")
        for module in puzzle.preload:
            stripped.need(module, "*")
    texts = stripped.texts() | {path: (HOUSE / path).read_text(encoding="utf-8") for path in whole}
    for chapter in dict.fromkeys(puzzle.chapter for puzzle in puzzles):
        order = tuple(puzzle.name.partition(".")[2] for puzzle in puzzles if puzzle.chapter == chapter)
        texts[Path("puzzles/catalog", chapter, "__init__.py")] = (
            f'"""The puzzles of this handout."""\n\nORDER = {order!r}\n'
        )
    texts[Path("rankwise/cli.py")] = _cli()
    for path, content in texts.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(content, encoding="utf-8")
    for data in (HOUSE / "reference").glob("*/data"):
        if (folder / data.parent.relative_to(HOUSE)).exists():
            shutil.copytree(data, folder / data.relative_to(HOUSE))
    shutil.copy(HOUSE / "pyproject.toml", folder)
    shutil.copy(HOUSE / "LICENSE", folder)
    for puzzle in puzzles:
        path = folder / "puzzles" / puzzle.chapter / f"{puzzle.name.partition('.')[2]}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.stub(puzzle), encoding="utf-8")


def _cli() -> str:
    """The front desk, with the commands of a handout."""
    source = (HOUSE / "rankwise/cli.py").read_text(encoding="utf-8")
    (node,) = (
        each
        for each in ast.parse(source).body
        if getattr(each, "targets", [None])[0] is not None and getattr(each.targets[0], "id", "") == "MODULES"
    )
    lines = source.splitlines(keepends=True)
    return "".join([*lines[: node.lineno - 1], f"MODULES = {_COMMANDS!r}\n", *lines[node.end_lineno :]])


_TRY = """
import json, sys
from puzzles import catalog
from puzzles.grading import engine, text
for name, stub, solution in json.load(sys.stdin):
    puzzle = catalog.find(name)
    if text.stub(puzzle) != stub or not engine.grade(puzzle, stub, seed=1).stage != "passed":
        sys.exit(f"{name}: its stub is another one there")
    verdict = engine.grade(puzzle, solution, seed=1)
    if not verdict.passed:
        sys.exit(f"{name}: {verdict.reason}")
"""


def _tried(puzzles: Sequence[Puzzle], folder: Path) -> str:
    """Grade the stub and the right solution of each puzzle in a handout. Returns what fails; "" where nothing does."""
    tried = [(puzzle.name, text.stub(puzzle), text.solution(puzzle)) for puzzle in puzzles]
    command = [sys.executable, "-c", _TRY]
    environment = os.environ | {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, input=json.dumps(tried), capture_output=True, text=True, cwd=folder, env=environment)
    return (done.stderr or done.stdout or f"exit code {done.returncode}") if done.returncode else ""


def _write_rest(puzzles: Sequence[Puzzle], folder: Path, title: str) -> None:
    """What a learner reads, and what GitHub Classroom runs."""
    rows = "\n".join(f"| `{each.name}` | {each.title} | puzzles/{each.name.replace('.', '/')}.py |" for each in puzzles)
    (folder / "README.md").write_text(_README.format(title=title, rows=rows, first=puzzles[0].name), encoding="utf-8")
    workflow = folder / ".github" / "workflows" / "classroom.yml"
    workflow.parent.mkdir(parents=True)
    workflow.write_text(_workflow([puzzle.name for puzzle in puzzles]), encoding="utf-8")


_README = """# {title}

| puzzle | asks for | your file |
|---|---|---|
{rows}

```
python3 -m venv .venv
.venv/bin/python -m pip install --editable .
. .venv/bin/activate
rankwise check                # what you have changed
rankwise hint {first}
```

Write into these files and no others; hand in the folder `puzzles`. Your checks draw values and sizes anew each time; so
will the one that grades, and it also weighs the memory that your ranks take for large tensors.
"""


def _workflow(names: Sequence[str]) -> str:
    """GitHub Classroom's workflow: a step for each puzzle, and the reporter that adds up."""
    steps = "".join(
        f"      - id: {_step(name)}\n"
        "        uses: classroom-resources/autograding-command-grader@v1\n"
        f"        with:\n          test-name: {name}\n          command: rankwise check {name}\n"
        "          timeout: 10\n          max-score: 1\n"
        for name in names
    )
    results = "".join(
        f"          {_step(name).upper()}_RESULTS: ${{{{steps.{_step(name)}.outputs.result}}}}\n" for name in names
    )
    return _WORKFLOW.format(steps=steps, results=results, runners=",".join(map(_step, names)))


def _step(name: str) -> str:
    return name.replace(".", "-").replace("_", "-")


_WORKFLOW = """name: Autograding Tests
on: [push, workflow_dispatch]
permissions:
  checks: write
  actions: read
  contents: read
jobs:
  autograding:
    runs-on: ubuntu-latest
    if: github.actor != 'github-classroom[bot]'
    steps:
      - uses: actions/checkout@v4
      - uses: actions/setup-python@v5
        with:
          python-version: "3.12"
      - run: pip install --extra-index-url https://download.pytorch.org/whl/cpu --editable .
{steps}      - uses: classroom-resources/autograding-grading-reporter@v1
        env:
{results}        with:
          runners: {runners}
"""


def _assignment(names: Sequence[str], title: str) -> str:
    """The file that stays with the instructor."""
    points = "\n".join(f'"{name}" = 1' for name in names)
    seed = random.SystemRandom().randrange(1_000_000, _SEEDS)
    head = "# For the instructor: `rankwise grade FOLDER --assignment FILE`. The seed is not to be told.\n"
    return f"{head}title = {json.dumps(title, ensure_ascii=False)}\nseed = {seed}\n\n[points]\n{points}\n"
