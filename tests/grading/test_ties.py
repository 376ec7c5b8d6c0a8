"""Puzzles that ask for the best: whatever is as good as the best passes, and what is worse does not."""

import itertools
import math
import random
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from puzzles import catalog
from puzzles.catalog.composition import axes_from_bytes
from puzzles.catalog.networks import best_algorithm
from puzzles.catalog.pipeline_parallel import micro_batch_size
from puzzles.grading import text
from puzzles.grading.engine import grade
from puzzles.grading.puzzle import Case, Puzzle
from reference.mesh import Mesh

ROUNDING = 1e-9


def case_of(**parameters: Any) -> Case:
    return Case(1, parameters=tuple(parameters.items()))


def accepted(puzzle: Puzzle, case: Case, answer: Any) -> bool:
    """Whether the judge is content with an answer to a case."""
    inputs = [dict(puzzle.inputs(case, 0))]
    return all(claim.holds for claim in puzzle.judge(case, inputs, [{"returns": answer}], None))


def splits(n: int) -> Iterator[tuple[int, int, int]]:
    """All (p, d, t) whose product is n."""
    for p, d in itertools.product(range(1, n + 1), repeat=2):
        if n % (p * d) == 0:
            yield p, d, n // (p * d)


def seconds_of_split(case: Case, p: int, d: int, t: int) -> float | None:
    """As the statement says it; None where the split is not allowed or has no room."""
    m = case.batch / d
    if case.layers % p or case.batch % d or (case.state + min(p, m) * case.activations) / (p * t) > case.memory:
        return None
    tensor, data = (case.intra if reach <= case.node else case.inter for reach in (t, t * d))
    window = case.seconds / (p * t) + 2 * (t - 1) / t * case.stream / p / tensor
    return (m + p - 1) * window + 2 * (d - 1) / d * case.state / 8 / (p * t) / data


def jobs() -> Iterator[Case]:
    """Jobs over a wide range; half of them with round numbers, which tie now and then."""
    draw = random.Random(29)
    for number in range(400):
        numbers = (1.0, 2.0, 4.0, 8.0, 16.0) if number % 2 else [draw.uniform(0.1, 20) for _ in range(5)]
        seconds, stream, state, activations, inter = (draw.choice(numbers) for _ in range(5))
        yield case_of(
            ranks=draw.choice((2, 4, 6, 8, 12, 16, 24)), node=draw.choice((1, 2, 4, 8)),
            batch=draw.choice((4, 16, 48, 64)), layers=draw.choice((8, 12, 24)), seconds=seconds, stream=stream * 1e9,
            state=state * 1e9, activations=activations * 1e8, memory=draw.choice((1e9, 4e9, 1e12)),
            intra=draw.choice((1, 4, 10)) * inter * 1e9, inter=inter * 1e9,
        )  # fmt: skip


def test_of_splits_those_as_good_as_the_best_pass_and_no_others() -> None:
    puzzle, tied = catalog.find("composition.best_split"), 0
    for case in (*puzzle.cases, *jobs()):
        times = {split: seconds_of_split(case, *split) for split in splits(case.ranks)}
        best = min((seconds for seconds in times.values() if seconds is not None), default=None)
        if best is None:
            continue
        good = {split for split, seconds in times.items() if seconds is not None and seconds <= best * (1 + ROUNDING)}
        assert good == {split for split in times if accepted(puzzle, case, split)}, case
        tied += len(good) > 1
    assert tied >= 10  # or this has tried nothing


def steps_and_bytes(n: int) -> dict[str, tuple[float, float]]:
    """Of each algorithm, how many messages follow each other, and how many times the tensor's size is in them."""
    rounds = n.bit_length() - 1
    power = 2**rounds
    fold = 2 * (n > power)
    return {
        "ring": (2 * (n - 1), 2 * (n - 1) / n),
        "recursive doubling": (fold + rounds, fold + rounds),
        "halving-doubling": (fold + 2 * rounds, fold + 2 * (power - 1) / power),
    }


def sizes_that_tie(n: int) -> Iterator[float]:
    """Where two of the algorithms cross, with α = β = 1."""
    for (steps, moved), (other_steps, other_moved) in itertools.combinations(steps_and_bytes(n).values(), 2):
        if (steps - other_steps) * (other_moved - moved) > 0:
            yield (steps - other_steps) / (other_moved - moved)


def test_of_algorithms_those_as_fast_as_the_best_pass_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    puzzle, tied = catalog.find("networks.best_algorithm"), 0
    once = cache(best_algorithm.one_message_after_another)  # for all answers to a case
    monkeypatch.setattr(best_algorithm, "one_message_after_another", once)
    draw = random.Random(29)
    cases = [case_of(ranks=n, size=size, alpha=1.0, beta=1.0) for n in range(2, 300) for size in sizes_that_tie(n)]
    for _ in range(400):
        size, alpha = 10 ** draw.uniform(0, 10), 10 ** draw.uniform(-7, 0)
        cases.append(case_of(ranks=draw.randint(2, 10_000), size=size, alpha=alpha, beta=1e9))
    for case in (*puzzle.cases, *cases):
        each = steps_and_bytes(case.ranks).items()
        times = {name: steps * case.alpha + moved * case.size / case.beta for name, (steps, moved) in each}
        good = {name for name, seconds in times.items() if seconds <= min(times.values()) * (1 + ROUNDING)}
        assert good == {name for name in times if accepted(puzzle, case, name)}, case
        tied += len(good) > 1
    assert tied >= 100


def test_of_micro_batches_those_as_good_as_the_best_pass_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    puzzle, tied = catalog.find("pipeline_parallel.micro_batch_size"), 0
    sizes = (1, 2, 3, 4, 6, 8)
    monkeypatch.setitem(  # milliseconds: with one stage, all sizes take equally long; with more, small ones are better
        micro_batch_size.TIMES, "no overhead", ({b: b for b in sizes}, {b: 2 * b for b in sizes})
    )
    monkeypatch.setitem(micro_batch_size.TIMES, "ties at p = 5", ({1: 4, 2: 6}, {1: 8, 2: 12}))
    draws = itertools.product(micro_batch_size.TIMES, (1, 2, 5, 8), (1, 4, 8, 9, 24), (20_000, 21_000, 30_000, 10**9))
    for times, p, samples, memory in draws:
        case = case_of(samples=samples, p=p, memory=memory, times=times, state=20_000, activation=1_000)
        forward, backward = micro_batch_size.TIMES[times]
        steps = {
            b: (samples // b + p - 1) * (forward[b] + backward[b])
            for b in forward
            if samples % b == 0 and 20_000 + min(p, samples // b) * b * 1_000 <= memory
        }
        good = {b for b, ms in steps.items() if ms <= min(steps.values()) * (1 + ROUNDING)} or {None}
        assert good == {b for b in (None, *sizes, 16) if accepted(puzzle, case, b)}, case
        tied += len(good) > 1
    assert tied >= 10


def seconds_of_order(case: Case, order: tuple[str, ...]) -> float:
    """Rank by rank: an axis is slow if two ranks that stand apart along it alone are on different nodes."""
    names = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
    mesh = Mesh({axis: case.sizes[names.index(axis)] for axis in order})
    total = 0.0
    for axis in order:
        slow = any(len({rank // case.node for rank in group}) > 1 for group in mesh.groups(axis))
        total += (mesh.size(axis) > 1) * case.each[names.index(axis)] / (case.inter if slow else case.intra)
    return total


def test_of_orders_those_as_quick_as_the_best_pass_and_no_others() -> None:
    puzzle, tied = catalog.find("composition.order_of_five_axes"), 0
    for case in [case for case in puzzle.cases if math.prod(case.sizes) <= 64]:
        names = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
        times = {order: seconds_of_order(case, order) for order in itertools.permutations(names)}
        good = {order for order, seconds in times.items() if seconds <= min(times.values()) * (1 + ROUNDING)}
        assert good == {order for order in times if accepted(puzzle, case, order)}, case
        tied += 1 < len(good) < len(times)
    assert tied >= 8


def test_of_axes_read_from_bytes_those_that_make_the_same_pass_and_no_others() -> None:
    """An axis of one rank may stand anywhere; all others have one place."""
    puzzle = catalog.find("composition.axes_from_bytes")
    for case in puzzle.cases:
        axes = axes_from_bytes.MESHES[case.mesh]
        true = [axis for axis, size in axes if size > 1]
        for order in itertools.permutations(axis for axis, _ in axes):
            assert accepted(puzzle, case, order) == ([axis for axis in order if axis in true] == true), (case, order)


LAST_ON_A_TIE = {
    "composition.order_of_five_axes": ("min(permutations(sizes)", "min(reversed(list(permutations(sizes)))"),
    "composition.best_split": ("return min(found, key", "return min(reversed(found), key"),
    "networks.best_algorithm": ("return min(times, key", "return min(reversed(times), key"),
    "pipeline_parallel.micro_batch_size": ("return min(possible, key", "return min(reversed(possible), key"),
    "planning.does_it_fit": ("return min(possible, key", "return min(reversed(possible), key"),
    "planning.best_micro_batch": ("min(filter(fits, sizes), key", "min(reversed(list(filter(fits, sizes))), key"),
    "planning.best_plan": (
        "int(torch.where(possible, step, torch.inf).argmin())",
        "len(tp) - 1 - int(torch.where(possible, step, torch.inf).flip(0).argmin())",
    ),
}


@pytest.mark.parametrize("name", LAST_ON_A_TIE)
def test_who_takes_the_last_of_several_equally_good_ones_passes_too(name: str) -> None:
    puzzle = catalog.find(name)
    first, last = LAST_ON_A_TIE[name]
    solution = text.solution(puzzle)
    assert solution.count(first) == 1
    verdict = grade(puzzle, solution.replace(first, last))
    assert verdict.passed, str(verdict)
    assert "equally" in puzzle.statement


@pytest.mark.parametrize("answer", [None, "ring", 3, (1, 2), (1, 2, 4.0), [0, 1, 8], (8, True, 1), {"p": 1}])
def test_what_is_no_answer_at_all_is_told_so(answer: object) -> None:
    for name in (*LAST_ON_A_TIE, "composition.axes_from_bytes", "composition.find_the_missing_sum"):
        puzzle = catalog.find(name)
        if (name, answer) != ("networks.best_algorithm", "ring"):
            assert not accepted(puzzle, puzzle.cases[0], answer)
