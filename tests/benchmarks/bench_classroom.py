"""How long it takes to grade 30 learners with 40 puzzles each, and how many verdicts differ from `rankwise check`."""

import contextlib
import io
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import rows
from rows import Row

HOUSE = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(HOUSE))

from puzzles import catalog  # noqa: E402
from puzzles.grading import checking, text  # noqa: E402
from puzzles.grading.course import Course  # noqa: E402
from rankwise import cli  # noqa: E402

LEARNERS, PUZZLES = 30, 40
CORES, SECONDS = 2, 600.0
SEED = 20_251_126
RIGHT, WRONG = 0.6, 0.3  # shares of the texts; the others are the stub


def measure(report: Callable[[Row], None], learners: int = LEARNERS, puzzles: int = PUZZLES) -> None:
    """Grade a class once, then each of its different texts by `check`."""
    names = [catalog.names()[index * len(catalog.names()) // puzzles] for index in range(puzzles)]
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        handed_in = hand_in(home / "class", names, learners)
        points = "".join(f'"{name}" = 1\n' for name in names)
        (home / "a.toml").write_text(f"seed = {SEED}\n[points]\n{points}")
        words = [
            "--assignment",
            str(home / "a.toml"),
            "--journal",
            str(home / "j.db"),
            "--json",
            str(home / "out.json"),
        ]
        cores = min(CORES, len(os.sched_getaffinity(0)))
        begin = time.monotonic()
        with contextlib.redirect_stdout(io.StringIO()):
            cli.run(["grade", str(home / "class"), "--cores", str(cores), *words])
        seconds = time.monotonic() - begin
        told = json.loads((home / "out.json").read_text())["learners"]
        differ = different(handed_in, told, home / "class")
    texts = sum(map(len, handed_in.values()))
    report(rows.below(f"{learners} learners x {puzzles} puzzles, {cores} cores", seconds, SECONDS, "s"))
    report(rows.plain("a text", seconds / texts, "s"))
    report(Row("verdicts that differ from check", differ, 0, "", None, None, differ == 0))


def hand_in(folder: Path, names: list[str], learners: int) -> dict[str, dict[str, str]]:
    """Write a class. Returns by learner and puzzle the texts that are not the stub, each with a line of its own."""
    chance, found = random.Random(SEED), {}
    for number in range(learners):
        learner = f"learner{number:02}"
        for name in names:
            puzzle, drawn = catalog.find(name), chance.random()
            if drawn < RIGHT:
                source = text.solution(puzzle)
            elif drawn < RIGHT + WRONG:
                source = text.wrong(puzzle, chance.choice(puzzle.wrong))
            else:
                continue
            if text.untouched(puzzle, source):  # of what is to be mended, one wrong text is the stub
                continue
            file = folder / learner / "puzzles" / f"{name.replace('.', '/')}.py"
            file.parent.mkdir(parents=True, exist_ok=True)
            found.setdefault(learner, {})[name] = source
            file.write_text(f"{source}\n# {learner}\n")
    return found


def different(handed_in: dict[str, dict[str, str]], told: list[dict], folder: Path) -> int:
    """How many verdicts are not those of `check` on the same text, with the same seed; which, it says on stderr."""
    known: dict[tuple[str, str], tuple[str, str]] = {}
    count = 0
    for one in told:
        own = handed_in.get(one["learner"], {})
        for each in one["puzzles"]:
            if (name := each["name"]) not in own:
                count += each["stage"] != "not solved yet"
                continue
            if (name, own[name]) not in known:
                verdict = checking.check(name, course=Course(folder / one["learner"], visited=True), seed=SEED)
                known[name, own[name]] = str(verdict.stage), verdict.reason
            if (found := (each["stage"], each["reason"])) != known[name, own[name]]:
                count += 1
                print(f"{one['learner']} {name}: grade {found}, check {known[name, own[name]]}", file=sys.stderr)
    return count


if __name__ == "__main__":
    rows.main("classroom", measure)
