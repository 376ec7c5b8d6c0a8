"""Data that tell: each of these programs was right once, for whole numbers, known sizes, or few steps."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from puzzles import catalog
from puzzles.grading import exact, narrow, text, witness
from puzzles.grading.cases import Case, cases, dealt, drawn
from puzzles.grading.engine import grade
from reference.trace import Event, Op

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32)
NARROWER = {
    torch.float64: (torch.float32, torch.int64),
    torch.float32: (torch.bfloat16, torch.float16, torch.int16, torch.int32),
    torch.int64: (torch.int32, torch.float64),
    torch.int32: (torch.int16, torch.float32),
}
SEEDS = range(5)


def _quick(name: str) -> Callable | None:
    """The oracle of a puzzle's large cases, where it has one."""
    scale = catalog.find(name).scale
    return scale and scale.oracle


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sums_over_sixteen_ranks_are_exact_in_any_order(dtype: torch.dtype) -> None:
    ranks = [Case(16, seed=3).tensor(rank, 64, dtype=dtype) for rank in range(16)]
    forward, backward = torch.zeros(64, dtype=dtype), torch.zeros(64, dtype=dtype)
    for one, other in zip(ranks, reversed(ranks), strict=True):
        forward += one
        backward += other
    whole = sum(each.to(torch.int64) if not dtype.is_floating_point else each.double() for each in ranks)
    assert torch.equal(forward, backward)
    assert torch.equal(forward.to(whole.dtype), whole)


@pytest.mark.parametrize(("dtype", "narrow"), [(d, n) for d, every in NARROWER.items() for n in every], ids=str)
@pytest.mark.parametrize("seed", SEEDS)
def test_no_narrower_dtype_holds_them(dtype: torch.dtype, narrow: torch.dtype, seed: int) -> None:
    x = Case(2, seed).tensor(0, 6, dtype=dtype)
    assert not torch.equal(x.to(narrow).to(dtype), x)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_sum_is_negative_somewhere_and_zero_somewhere(seed: int) -> None:
    total = sum(Case(3, seed).tensor(rank, 4) for rank in range(3))
    assert (total < 0).any()
    assert (total == 0).any()


@pytest.mark.parametrize("seed", SEEDS)
def test_products_of_three_factors_are_exact_in_float64_and_not_in_float32(seed: int) -> None:
    a, b, c = (Case(2, seed).factors(0, 8, 8, name=name) for name in "abc")
    assert torch.equal((a @ b) @ c, a @ (b @ c))
    assert not torch.equal((a @ b).float().double(), a @ b)


def test_a_dtype_that_is_not_known_has_numbers_that_fit() -> None:
    assert exact.summands((5,), torch.uint8, 1, 2).max() < 16
    assert exact.summands((5,), torch.int8, 1, 2).dtype is torch.int8


def test_a_seed_gives_the_same_cases_and_another_one_gives_others() -> None:
    named, fresh = cases(worlds=(2, 3), length=(4,)), (drawn(worlds=(9, 12), length=range(1000)),)
    assert dealt(named, fresh, 7) == dealt(named, fresh, 7)
    assert dealt(named, fresh, 7)[-1] != dealt(named, fresh, 8)[-1]
    one, other = (dealt(named, fresh, seed)[0] for seed in (7, 8))
    assert (one.world_size, one.length) == (other.world_size, other.length)
    assert not torch.equal(one.tensor(0, 4), other.tensor(0, 4))


def test_what_is_drawn_may_depend_on_what_was_drawn_before() -> None:
    one = drawn(worlds=(6,), part=lambda so_far: [so_far.n // 2], rank=lambda so_far: range(so_far.part))
    assert {dealt((), (one,), seed)[0].rank for seed in range(40)} == {0, 1, 2}


@pytest.mark.parametrize("size", (6, 7, 9, 10))
def test_each_of_the_larger_worlds_is_met(size: int) -> None:
    tried = {case.world_size for name in catalog.names() for case in catalog.find(name).dealt(0).cases}
    assert size in tried


@pytest.mark.turns(4)
@pytest.mark.parametrize("name", [each for each in catalog.names() if _quick(each)])
def test_a_large_oracle_says_what_the_slow_one_says(name: str) -> None:
    puzzle, quick = catalog.find(name), _quick(name)
    for case in (case for seed in range(20) for case in puzzle.dealt(seed).cases):
        inputs = [dict(puzzle.inputs(case, rank)) for rank in range(case.n)]
        try:
            found = _numbers(quick(case, inputs))
        except ZeroDivisionError:  # lines that never cross, which only the slow one tells
            continue
        expected = _numbers(puzzle.oracle(case, inputs))
        if expected != [None]:
            assert found == (expected if puzzle.tolerance is None else pytest.approx(expected, rel=puzzle.tolerance))


def _numbers(answers: Sequence[Any]) -> list[Any]:
    """Of each rank, as what can be compared: numbers of a pair one by one."""
    each = [value for answer in answers for value in (answer if isinstance(answer, tuple) else (answer,))]
    return [value.tolist() if isinstance(value, torch.Tensor) else value for value in each]


CHEATS = {  # puzzle, what replaces its solution's body or a line of it, and what must be said
    "half the bits": (
        "collectives.gather",
        """
        rank, n = dist.get_rank(group), dist.get_world_size(group)
        if rank != root:
            dist.send(x.half(), group=group, group_dst=root)
            return
        out[rank] = x
        for other in range(n):
            if other != root:
                row = torch.empty_like(x, dtype=torch.float16)
                dist.recv(row, group=group, group_src=other)
                out[other] = row
        """,
        r"expected -?[\d.]+, got -?[\d.]+\n(.*\n)*line \d+ sends float16 where the numbers are float32",
    ),
    "a count in sixteen bits": (
        "data_parallel.token_weighted_loss",
        """
        count = torch.tensor(float(len(losses)), dtype=torch.float16)
        dist.all_reduce(count, group=group)
        return losses.sum() / count.item()
        """,
        r"lengths=many: rank 0, result: expected",
    ),
    "right up to eight ranks": (
        "collectives.barrier",
        ("while distance < n:", "while distance < min(n, 8):"),
        r"(9|10) ranks: rank \d+ may continue before rank \d+ has come",
    ),
    "nothing new for one rank": (
        "collectives.differentiable_all_gather",
        ("return AllGather.apply(x)", "return x if n == 1 else AllGather.apply(x)"),
        r"right, but a result shares its memory with x \(1 rank.*`\.clone\(\)`",
    ),
    "one part is its own sum": (
        "memory.bf16_sum",
        ("    accumulator =", "    if len(parts) == 1:\n        return parts[0]\n    accumulator ="),
        r"right, but a result shares its memory with parts",
    ),
    "one tensor for two results": (
        "ranks.find_the_deadlock",
        ("    batch = []", "    right = left if dist.get_world_size(group) == 1 else right\n    batch = []"),
        r"right, but a result shares its memory with another result",
    ),
    "a loop in C": (
        "networks.bus_bandwidth",
        """
        import math
        from itertools import repeat
        return math.fsum(repeat(size / ranks / seconds, 2 * (ranks - 1)))
        """,
        r"takes more than 2 s of processor time for ranks=1000000000000, .*must not grow with the number of ranks",
    ),
    "an array with an element for each rank": (
        "zero.communication_volume",
        """
        import numpy as np
        passes = {0: 2, 1: 2, 2: 1 + micro_batches, 3: 3 * micro_batches}[stage]
        return passes * int(np.full(ranks - 1, -(-numel // ranks), dtype=np.int64).sum())
        """,
        r"right where numbers are small, but for stage=0, .*\n(.*\n)*.*must not grow with .*, nor may memory",
    ),
    "a look at all ranks for each group": (
        "composition.groups_along",
        """
        import itertools
        places = itertools.product(*map(range, sizes))
        keys = [tuple(place[a] for a in range(len(sizes)) if a not in axes) for place in places]
        return [tuple(i for i, other in enumerate(keys) if other == key) for key in dict.fromkeys(keys)]
        """,
        r"takes more than 2 s of processor time for axes=\(2,\)",
    ),
}


@pytest.mark.parametrize("cheat", CHEATS)
def test_a_cheat_is_refused_and_told_why(cheat: str) -> None:
    name, change, said = CHEATS[cheat]
    puzzle = catalog.find(name)
    if isinstance(change, str):
        source = text.with_body(puzzle, change)
    else:
        source = text.solution(puzzle)
        assert change[0] in source
        source = source.replace(*change)
    verdict = grade(puzzle, source, seed=1)
    assert not verdict.passed
    assert re.search(said, verdict.reason), verdict.reason


def message(dtype: str, *shape: int, line: int = 7) -> Event:
    return Event(0, Op.SEND, (0, 1), 1, 0, shape, dtype, 0, (), "", "solution.py", line, 0, 1, 0.0, 1.0)


def test_the_first_message_in_fewer_bits_is_named() -> None:
    inputs = [{"x": torch.ones(6, dtype=torch.float64)}, {"tokens": torch.ones(3, dtype=torch.int64)}]
    found = narrow.narrowed(inputs, [message("float64", 6), message("float32", 6, line=9)])
    assert found
    said = narrow.sentence(Case(2), inputs, found)
    assert said == "line 9 sends float32 where the numbers are float64 (2 ranks): send them in their own dtype"


@pytest.mark.parametrize("sent", [("float64", 6), ("float32", 1), ("int64", 6), ("uint8", 48), ("bool", 6)], ids=str)
def test_flags_counts_and_bytes_are_no_message_in_fewer_bits(sent: tuple) -> None:
    assert narrow.narrowed([{"x": torch.ones(6, dtype=torch.float64)}], [message(*sent)]) is None


def test_a_puzzle_about_few_bits_may_send_few() -> None:
    inputs = [{"x": torch.ones(6), "half": torch.ones(6, dtype=torch.bfloat16)}]
    assert narrow.narrowed(inputs, [message("bfloat16", 6)]) is None


def test_the_kernel_tells_computing_from_waiting() -> None:
    programs = "while True: pass", "import time; time.sleep(60)"
    busy, idle = (subprocess.Popen([sys.executable, "-c", program]) for program in programs)
    try:
        with witness.limited(lambda: [busy.pid, idle.pid], 0.3) as limit:
            assert busy.wait(60) < 0
        assert limit.exceeded
        assert idle.poll() is None
        assert witness.used(idle.pid) < 0.3
    finally:
        busy.kill()
        idle.kill()


def test_processor_time_counts_from_when_it_was_asked() -> None:
    time = witness.ProcessorTime(lambda: [os.getpid()])
    assert time.seconds <= witness.used(os.getpid())
    assert witness.used(2**30) == 0


def test_a_verdict_names_the_seed_that_repeats_it() -> None:
    puzzle = catalog.find("networks.ring_time")
    verdict = grade(puzzle, text.solution(puzzle), seed=4711)
    assert verdict.seed == 4711
    assert "--seed 4711" in str(verdict)
