"""Draw very many cases of each puzzle, and see that its solution is right in all: `python -m tests.grading.many_draws`.

What a check draws in one of a thousand is not met in 24 seeds. So each puzzle's solution runs on what many checks would
draw, many cases in a call. The exit code is 1 if one is refused.
"""

import argparse
import multiprocessing
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import closing
from dataclasses import replace

from puzzles import catalog
from puzzles.grading import text
from puzzles.grading.cases import Case
from puzzles.grading.engine import grade
from puzzles.grading.pool import Pool
from puzzles.grading.puzzle import Puzzle
from puzzles.grading.verdict import Verdict

TOGETHER = 8  # checks whose draws are looked at in one verdict


def main() -> None:
    """Check, and tell."""
    parser = argparse.ArgumentParser(prog="python -m tests.grading.many_draws", description=__doc__.splitlines()[0])
    parser.add_argument("alone", type=int, nargs="?", default=1000, help="checks of a puzzle that runs on one rank")
    parser.add_argument("together", type=int, nargs="?", default=100, help="checks of a puzzle that runs on several")
    parser.add_argument("--begin", type=int, default=0, help="seed of the first")
    parser.add_argument("--only", default="", help="puzzles whose names begin so")
    options = parser.parse_args()
    names = [name for name in catalog.names() if name.startswith(options.only) and catalog.find(name).drawn]
    if min(options.alone, options.together) < 1 or not names:
        parser.error("1 check or more, of puzzles that draw cases")
    refused = 0
    with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn")) as pool:
        asked = (options.alone, options.together, options.begin)
        for number, each in enumerate(as_completed([pool.submit(said_of, name, *asked) for name in names]), 1):
            for said in each.result():
                refused += 1
                print(f"\n{said}")
            print(f"\r{number} of {len(names)} puzzles, {refused} verdicts that refuse", end="", flush=True)
    print()
    sys.exit(refused > 0)


def said_of(name: str, alone: int, together: int, begin: int) -> list[str]:
    """The verdicts that refuse a puzzle's own solution."""
    puzzle = catalog.find(name)
    checks = together if in_groups(puzzle) else alone
    with closing(Pool(forgets=False)) as pool:
        found = verdicts(puzzle, range(begin, begin + checks), pool)
        return [str(verdict) for verdict in found if not verdict.passed]


def verdicts(puzzle: Puzzle, seeds: range, pool: Pool) -> Iterator[Verdict]:
    """On a puzzle's solution, with the cases that checks of these seeds would draw, those of some of them in each.

    Where one refuses, there is one for each seed that does, so that `rankwise check --seed` has the same case.
    """
    together = TOGETHER if in_groups(puzzle) else 10 * TOGETHER
    for first in range(0, len(seeds), together):
        some = seeds[first : first + together]
        verdict = on_what_is_drawn(puzzle, some, pool)
        each = () if verdict.passed else [on_what_is_drawn(puzzle, range(seed, seed + 1), pool) for seed in some]
        yield from [one for one in each if not one.passed] or [verdict]


def on_what_is_drawn(puzzle: Puzzle, seeds: range, pool: Pool) -> Verdict:
    """The verdict on a puzzle's solution with these draws alone. It names the first seed."""
    drawn = replace(puzzle, cases=drawn_in(puzzle, seeds), drawn=(), large=None, scale=None)
    verdict = grade(drawn, text.solution(puzzle), pool=pool, seed=0)  # with which cases stay as they are
    return replace(verdict, seed=seeds[0])


def in_groups(puzzle: Puzzle) -> bool:
    """Whether what is drawn runs on more than one rank."""
    return any(max(each.worlds) > 1 for each in puzzle.drawn)


def drawn_in(puzzle: Puzzle, seeds: range) -> tuple[Case, ...]:
    """The cases that checks of these seeds would draw."""
    return tuple(case for seed in seeds for case in puzzle.dealt(seed).cases[len(puzzle.cases) :])


if __name__ == "__main__":
    main()
