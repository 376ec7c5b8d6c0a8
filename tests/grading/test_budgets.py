"""What a verdict says of programs that are right and cost too much."""

import dataclasses
import re

import pytest
import torch.distributed as dist

from puzzles.grading import engine, runs, trial
from puzzles.grading.puzzle import Budget, Measure
from puzzles.grading.verdict import Stage

from .total import RIGHT, budget, check


@pytest.mark.parametrize(
    ("measure", "body", "yours", "reason"),
    [
        (Measure.BYTES_SENT, RIGHT, 32, r"right, but rank \d sent 32 B where 31 must do \(3 ranks, length=6\)\nspend"),
        (Measure.STEPS, RIGHT, 4, r"right, but it takes 4 steps where 3 must do"),
        (Measure.CALLS, "dist.barrier(group)\n" + RIGHT, 2, r"right, but a rank makes 2 calls where 1 must do"),
        (Measure.PEAK_BYTES, "z = x.repeat(10)\n" + RIGHT, 264, r"right, but it keeps alive 264 B where 263 must do"),
        (
            Measure.KEPT_BYTES,
            "global z\nz = x.repeat(10)\n" + RIGHT,
            264,
            r"right, but when it has returned it still holds 264 B where 263 must do",
        ),
        (
            Measure.LINES,
            "for _ in range(50):\n    pass\n" + RIGHT,
            104,
            r"right, but it runs 104 lines where 103 must do",
        ),
    ],
)
def test_a_budget_is_a_limit(measure: Measure, body: str, yours: int, reason: str) -> None:
    allowed = dict(calls=(dist.all_reduce, dist.barrier))
    assert check(body, budgets=budget(measure, yours), **allowed).passed
    verdict = check(body, budgets=budget(measure, yours - 1), **allowed)
    assert verdict.stage is Stage.BUDGETS
    assert re.search(reason, verdict.reason), verdict.reason
    (row,) = verdict.table
    assert (row.target, row.yours, row.holds) == (yours - 1, yours, False)
    assert verdict.trace.world_size == 3


def test_values_come_before_budgets_and_budgets_before_calls() -> None:
    barrier = "dist.barrier(group)\n"
    tight = budget(Measure.CALLS, 1)
    assert check(barrier + "return x", budgets=tight).stage is Stage.VALUES
    assert check(barrier + RIGHT, budgets=tight).stage is Stage.BUDGETS
    assert check(barrier + RIGHT, budgets=budget(Measure.CALLS, 2)).stage is Stage.STYLE


def test_memory_counts_what_lives_at_one_time() -> None:
    one_by_one = "for _ in range(5):\n    z = x.repeat(10)\n    del z\n" + RIGHT
    all_at_once = "z = [x.repeat(10) for _ in range(5)]\n" + RIGHT
    views = "z = [x.view(2, 3) for _ in range(5)]\n" + RIGHT
    limit = budget(Measure.PEAK_BYTES, 240)
    assert check(one_by_one, budgets=limit).passed
    assert check(views, budgets=limit).passed
    assert check(all_at_once, budgets=limit).table[0].yours == 5 * 240 + 24


@pytest.mark.parametrize(("disturbed", "passed"), [(0, True), (2, True), (3, False)])
def test_memory_that_a_thread_held_for_a_moment_is_measured_again(
    monkeypatch: pytest.MonkeyPatch, disturbed: int, passed: bool
) -> None:
    """gloo's threads let go of a tensor when they come to it. Three looks, and the least counts."""
    looks = []

    def busy(*arguments: object) -> list[runs.Run]:
        looks.append(arguments)
        held = 1000 if len(looks) <= disturbed else 0
        found = runs.run_cases(*arguments)
        return [dataclasses.replace(run, readings=({"kept": 24 + held},) * run.case.n) for run in found]

    monkeypatch.setattr(engine, "run_cases", busy)
    monkeypatch.setattr(trial, "run_cases", busy)
    budget = Budget(Measure.KEPT_BYTES, lambda case: 24)
    assert check(RIGHT, budgets=(budget,)).passed is passed
    assert len(looks) == min(disturbed + 1, 3)
