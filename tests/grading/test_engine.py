"""What a verdict says of programs that are right, wrong or broken."""

import dataclasses
import re

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from puzzles import catalog
from puzzles.grading import text, values
from puzzles.grading.diagnosis import between_cases
from puzzles.grading.drives import there_and_back
from puzzles.grading.engine import grade, passes
from puzzles.grading.pool import Pool
from puzzles.grading.puzzle import Case, Claim, Inputs, Measure, cases
from puzzles.grading.verdict import Stage
from reference.cluster import Cluster, Interrupted

from .total import RIGHT, budget, check, puzzle

SHIFT = catalog.find("ranks.ring_shift")
LOSES_THE_REST = "y[len(y) - len(y) % dist.get_world_size(group) :] = 0\nreturn"


def test_a_right_program_passes_with_every_value_compared() -> None:
    verdict = check(RIGHT, cases=cases(worlds=(2, 3), length=(6,)))
    assert verdict.passed
    assert verdict.compared == (2 + 3) * (6 + 6)  # the result, and `x` that must stay as it is
    assert "right in 2 cases at 2, 3 ranks" in verdict.reason


def test_what_a_solution_swallows_before_a_hang_is_told() -> None:
    swallows = """
        try:
            scale = {0: 1.0}[dist.get_rank(group)]
            dist.all_reduce(x, group=group)
        except KeyError:
            pass
        return x
        """
    reason = check(swallows).reason
    assert re.search("rank ([12]) caught KeyError: \\1", reason), reason  # whichever has finished first


def test_the_first_difference_is_named() -> None:
    verdict = check(RIGHT + "[[1, 0, 2, 3, 4, 5]]")
    assert verdict.stage is Stage.VALUES
    assert re.match(r"3 ranks, length=6: rank 0, result\[0\]: expected -?[\d.]+, got -?[\d.]+", verdict.reason)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("pass", r"result: expected a float32 tensor of shape \(6,\), got None"),
        ("return x[:3]", r"expected a float32 tensor of shape \(6,\), got a float32 tensor of shape \(3,\)"),
        ("return x.double()", r"expected a float32 tensor .*, got a float64 tensor"),
        ("return [x]", r"expected a float32 tensor .*, got 1 values"),
        ("return {'x': x}", r"got a dict"),
        ("return total", r"got a function"),
        ("return x.to_sparse()", r"got a tensor of shape \(6,\), torch.float32, torch.sparse"),
        ("return torch.empty(6, device='meta')", r"on meta"),
        ("return torch.nn.Parameter(x)", r"got a Parameter"),
        ("return torch.full_like(x, float('nan'))", r"got nan\n.*memory that was never written"),
        ("return torch.zeros(1).expand(1 << 28)", r"expected a float32 tensor of shape \(6,\), got a tensor of shape"),
    ],
)
def test_what_is_not_the_value_asked_for(body: str, reason: str) -> None:
    verdict = check(body)
    assert verdict.stage is Stage.VALUES
    assert re.search(reason, verdict.reason), verdict.reason


def test_a_tensor_that_lies_about_being_equal() -> None:
    liar = """
        class Liar(torch.Tensor):
            def __eq__(self, other):
                return torch.ones(self.shape, dtype=torch.bool)
        return x.as_subclass(Liar)
        """
    assert "got a Liar" in check(liar).reason


def test_nan_is_right_only_where_nan_is_expected() -> None:
    def oracle(case: Case, inputs: list[dict]) -> list[Tensor]:
        return [torch.tensor([1.0, float("nan")])] * case.n

    right, wrong = "return torch.tensor([1.0, float('nan')])", "return torch.tensor([float('nan'), float('nan')])"
    assert check(right, oracle=oracle).passed
    assert "result[0]: expected 1, got nan" in check(wrong, oracle=oracle).reason
    assert "result[1]: expected nan, got 1" in check("return torch.ones(2)", oracle=oracle).reason


def test_nothing_compared_is_not_passed() -> None:
    assert not check("pass", inputs=lambda case, rank: {}, oracle=lambda case, inputs: [{}] * case.n).passed
    assert not check("pass", oracle=None, judge=lambda case, inputs, outputs, trace: []).passed


def test_arguments_must_stay_as_they_are_unless_they_are_scratch() -> None:
    spoils = "dist.all_reduce(x, group=group)\nreturn x"
    assert re.search(r"x\[0\]: expected -?[\d.]+, got -?[\d.]+", check(spoils).reason)
    assert check(spoils, scratch=("x",)).passed


@pytest.mark.parametrize("spoils", ["x['pair'][1].zero_()", "x['pair'][1] = 0", "x['one'] = x['pair'].pop().zero_()"])
def test_tensors_inside_of_arguments_must_stay_as_they_are(spoils: str) -> None:
    def inputs(case: Case, rank: int) -> dict:
        return {"x": {"one": case.tensor(rank, 1), "pair": [case.tensor(rank, 2), case.tensor(rank, 3)]}}

    def oracle(case: Case, inputs: Inputs) -> list[int]:
        return [7] * case.n

    assert check("return 7", inputs=inputs, oracle=oracle).passed
    verdict = check(spoils + "\nreturn 7", inputs=inputs, oracle=oracle)
    assert verdict.stage is Stage.VALUES
    assert re.search(r"rank 0, x\[(one|pair)\]\S*: expected", verdict.reason), verdict.reason


@pytest.mark.parametrize(
    ("body", "diagnosis"),
    [
        (RIGHT + " / dist.get_world_size(group)", "off by exactly the world size, too little: averaged"),
        (RIGHT + " * dist.get_world_size(group)", "off by exactly the world size, too much: summed"),
        (RIGHT + " * 2", "off by a factor of 2 everywhere"),
        (RIGHT + ".flip(0)", "the right values in the wrong order"),
        ("return x.clone()", "result on ranks 0, 1 still holds its own input"),
        ("dist.all_reduce(x, group=group)\nreturn x", "the values of x must stay as they are"),
        ("total = x.clone()\nx *= 2\ndist.all_reduce(total, group=group)\nreturn total", "x must stay as they are"),
        (RIGHT + " if dist.get_rank(group) == 0 else x * 3", "right on rank 0, wrong on rank 1"),
        (RIGHT + " + (0 if dist.get_world_size(group) == 4 else 1)", "right at 4 ranks, wrong at 2, 3: is the world"),
        (RIGHT + " + (dist.get_world_size(group) % 2)", "right at 2, 4 ranks, wrong at 3: it works for powers of two"),
        (RIGHT + " + (len(x) % dist.get_world_size(group) > 0)", "right where n divides length"),
        (RIGHT + " + dist.get_rank(group)", "right on rank 0, wrong on rank 1"),
        (RIGHT + " + 1 + dist.get_rank(group)", "result must be the same on every rank: rank 0 and rank 1 differ"),
        (RIGHT.replace("return", LOSES_THE_REST), "only the last 1 of 7 elements are wrong: the remainder chunk"),
        ("if len(x) == 7:\n    return x * 7\n" + RIGHT, "right with length=6, wrong with length=7"),
    ],
)
def test_a_pattern_in_the_values_is_named(body: str, diagnosis: str) -> None:
    verdict = check(body, cases=cases(worlds=(2, 3, 4), length=(6, 7)))
    assert verdict.stage is Stage.VALUES
    assert diagnosis in verdict.reason


def test_a_rank_that_nothing_is_asked_of_is_not_called_right() -> None:
    def oracle(case: Case, inputs: Inputs) -> list[dict]:
        return [{"x": inputs[0]["x"] + 1, "returns": None}] + [{"returns": None}] * (case.n - 1)

    verdict = check("x += 5", oracle=oracle, scratch=("x",))
    assert verdict.stage is Stage.VALUES
    assert "right on" not in verdict.reason


@pytest.mark.parametrize("wrong", [".flip(0)", " * 1.5", " + dist.get_rank(group) + 1"])
def test_rounding_hides_no_pattern(wrong: str) -> None:
    def double(case: Case, rank: int) -> dict[str, Tensor]:
        return {"x": case.normal(rank, case.length)}

    exact, rounded = (
        check(f"{RIGHT}{wrong}{rounding}", inputs=double, cases=cases(worlds=(3,), length=(5,)))
        for rounding in ("", " * (1 + 2**-50)")
    )
    assert not exact.passed
    assert rounded.reason.splitlines()[1:] == exact.reason.splitlines()[1:] != []


def test_a_factor_is_found_in_lists_of_tensors_of_several_lengths() -> None:
    def sums(x: Tensor, group: ProcessGroup) -> list[Tensor]:
        pass

    def in_two_parts(case: Case, inputs: Inputs) -> list:
        return [{"returns": sum(each["x"] for each in inputs).split(4)}] * case.n

    asked = puzzle(
        function=sums,
        cases=cases(worlds=(2, 3)),
        inputs=lambda case, rank: {"x": case.tensor(rank, 7)},
        oracle=in_two_parts,
    )
    averaged = (
        "total = x.clone()\ndist.all_reduce(total, group=group)\nreturn (total / dist.get_world_size(group)).split(4)"
    )
    verdict = grade(asked, text.with_body(asked, averaged))
    assert verdict.stage is Stage.VALUES
    assert "off by exactly the world size, too little: averaged" in verdict.reason


@pytest.mark.parametrize(
    ("parameter", "sentence"),
    [
        ("length", "wrong only where length is 0: an empty tensor is a tensor, too"),
        ("root", "right with root=1, wrong with root=0"),
    ],
)
def test_only_a_length_makes_a_tensor_empty(parameter: str, sentence: str) -> None:
    judged = [(case, getattr(case, parameter) > 0) for case in cases(worlds=(3,), **{parameter: (0, 1)})]
    assert between_cases(judged) == sentence


def test_one_number_has_no_factor_of_its_own() -> None:
    best = catalog.find("pipeline_parallel.micro_batch_size")
    verdict = grade(best, text.solution(best).replace("min(p, samples // b)", "p"))
    assert "with micro-batches of 2 a step takes" in verdict.reason
    assert "factor" not in verdict.reason


def test_an_empty_list_is_a_value_to_compare() -> None:
    (case,) = cases(worlds=(1,))
    for reported, right in (([], True), ([("value", 1)], False)):
        comparison = values.compare(case, [{"returns": ("list", reported)}], ({"returns": []},), tolerance=None)
        assert (comparison.compared, comparison.right) == (1, right)


@pytest.mark.parametrize(
    ("expected", "got", "texts"),
    [
        (3528, 3528.0000000000005, ("3528", "3528.0000000000005 (an int is asked for)")),
        (0.1, 0.100000000001, ("0.1", "0.100000000001")),
        (3528, 3529.0, ("3528", "3529")),
        (3528, 3528.0, ("3528", "3528.0 (an int is asked for)")),
        (0.5, torch.tensor(0.5), ("0.5", "a float32 tensor of shape () (a number is asked for: .item())")),
    ],
)
def test_numbers_that_differ_are_written_as_two(expected: float, got: float | Tensor, texts: tuple[str, str]) -> None:
    (case,) = cases(worlds=(1,))
    comparison = values.compare(
        case,
        [{"returns": ("tensor" if isinstance(got, Tensor) else "value", got)}],
        ({"returns": expected},),
        tolerance=1e-12,
    )
    (difference,) = comparison.differences
    assert (difference.expected, difference.got) == texts


def test_the_same_calls_on_swapped_tensors_are_named() -> None:
    def two(a: Tensor, b: Tensor, group: ProcessGroup) -> None:
        pass

    swapped = """
        if dist.get_rank(group) == 1:
            dist.all_reduce(b, group=group)
            dist.all_reduce(a, group=group)
        else:
            dist.all_reduce(a, group=group)
            dist.all_reduce(b, group=group)
        """
    asked = puzzle(
        function=two,
        cases=cases(worlds=(2,)),
        inputs=lambda case, rank: {name: case.tensor(rank, 4, name=name) for name in "ab"},
        oracle=lambda case, inputs: [{name: sum(each[name] for each in inputs) for name in "ab"}] * case.n,
    )
    verdict = grade(asked, text.with_body(asked, swapped))
    assert verdict.stage is Stage.VALUES
    assert "a and b are mixed up, their sum is right: the same calls in another order" in verdict.reason


def test_an_interrupt_is_not_a_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: Cluster, *args: object) -> None:
        raise Interrupted("interrupted", rank=0)

    monkeypatch.setattr(Cluster, "trace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        check(RIGHT)


def test_a_group_that_is_not_the_world() -> None:
    asked = cases(worlds=(2, 4), length=(6,)) + cases(worlds=(4,), members=(1, 3), length=(6,))
    broadcast = "y = x.clone()\nfor src in range(dist.get_world_size(group)):\n    z = x.clone()\n"
    verdict = check(
        broadcast + "    dist.broadcast(z, src, group)\n    y += z\nreturn y - x", cases=asked, calls=(dist.broadcast,)
    )
    assert "a rank of the group is not a global rank" in verdict.reason, verdict.reason


def test_a_program_that_remembers_the_call_before() -> None:
    verdict = check("calls = total.__dict__\nreturn x", cases=cases(worlds=(2,), length=(6, 7)))
    assert not verdict.passed
    remembers = "SEEN.append(1)\ny = x.clone()\ndist.all_reduce(y, group=group)\nreturn y * len(SEEN)"
    asked = puzzle(cases=cases(worlds=(2,), length=(6, 7)))
    verdict = grade(asked, "SEEN = []\n" + text.with_body(asked, remembers))
    assert verdict.stage is Stage.VALUES


@pytest.mark.parametrize(
    ("body", "stage", "reason"),
    [
        (
            "return 1 / 0",
            Stage.ERROR,  # one of the others may not have come so far when the first one failed
            r"total.py:\d+ .*\n.*ZeroDivisionError.*\n( +not finished: .*\n)? +\d+ \| return 1 / 0\n\(3 ranks",
        ),
        ("raise SystemExit(0)", Stage.ERROR, r"left before finishing"),
        ("raise KeyboardInterrupt", Stage.ERROR, r"KeyboardInterrupt"),
        ("return total(x, group)", Stage.ERROR, r"RecursionError"),
        (
            "y = x.clone()\nif dist.get_rank(group):\n    dist.all_reduce(y, group=group)\nreturn y",
            Stage.ERROR,
            r"rank 0",
        ),
        ("raise NotImplementedError", Stage.UNSOLVED, r"not solved yet"),
    ],
)
def test_what_ends_a_call(body: str, stage: Stage, reason: str) -> None:
    verdict = check(body)
    assert verdict.stage is stage
    assert re.search(reason, verdict.reason), verdict.reason
    assert check(RIGHT).passed, "the next check works"


def test_what_torch_has_not_implemented_is_an_error() -> None:
    """Only the stub's own line says that nothing is written yet."""
    verdict = check("return torch.nn.Module()(x)")
    assert verdict.stage is Stage.ERROR
    assert 'is missing the required "forward" function' in verdict.reason


def test_a_loop_without_end_is_ended(quick_pool: Pool) -> None:
    asked = puzzle(cases=cases(worlds=(2,), length=(6,)))
    for source in (
        text.with_body(asked, "while True:\n    pass"),
        "while True:\n    pass\n" + text.with_body(asked, RIGHT),
    ):
        verdict = grade(asked, source, pool=quick_pool)
        assert verdict.stage is Stage.ERROR
        assert re.search(r"still running after 3 s at .*line \d+", verdict.reason), verdict.reason


def test_prints_are_kept_for_the_case_that_is_shown(capsys: pytest.CaptureFixture) -> None:
    verdict = check("print('here', dist.get_rank(group))\n" + RIGHT)
    assert "[rank 2] here 2" in verdict.output
    assert "here" in str(verdict)
    assert capsys.readouterr().out == ""


def test_a_flood_of_prints_ends_the_call() -> None:
    verdict = check("while True:\n    print('x' * 10_000)")
    assert "printed more than" in verdict.reason
    assert len(verdict.output) < 1 << 20


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("def total(x, group)\n    return x", "line 1: expected ':'"),
        ("def sum(x, group):\n    return x", "defines no `total`"),
        ("", "defines no `total`"),
        ("def total(x):\n    return x", r"must take \(x, group\); yours takes \(x\)"),
        ("x = '" + "a" * 300_000 + "'", "a solution has fewer"),
        ("def total(x, group): return " + "(" * 300, "too many nested parentheses"),
        ("def total(x, group): return " + "-" * 50_000 + "1", "can't be read as Python"),
        ("def total(x, group): return '\0'", "null bytes"),
        ("return 3", "'return' outside function"),
    ],
)
def test_a_text_that_is_no_program(source: str, reason: str) -> None:
    verdict = grade(puzzle(), source)
    assert verdict.stage in (Stage.TEXT, Stage.UNSOLVED) and not verdict.passed
    assert re.search(reason, verdict.reason) or not source, verdict.reason


def test_the_judge_decides_what_no_oracle_knows() -> None:
    def judge(case: Case, inputs: list[dict], outputs: list[dict], trace: object) -> list[Claim]:
        seconds = [each["returns"] for each in outputs]
        return [Claim(all(s > 0 for s in seconds), "a time is positive"), Claim(trace.steps > 0, "nothing was sent")]

    timed = "begin = time.perf_counter()\ndist.all_reduce(x, group=group)\nreturn time.perf_counter() - begin"
    asked = puzzle(oracle=None, judge=judge, cases=cases(worlds=(2,), length=(4,)))
    source = "import time\n" + text.with_body(asked, timed)
    assert grade(asked, source).passed
    verdict = grade(asked, source.replace("return time", "return -time"))
    assert verdict.stage is Stage.VALUES and "2 ranks, length=4: a time is positive" in verdict.reason
    assert "nothing was sent" in grade(asked, text.with_body(asked, "return 1.0")).reason


def test_operators_may_come_in_a_list_and_slices_be_gathered_into_one() -> None:
    asked = catalog.find("sequence_parallel.scatter_gather")
    found = text.solution(asked).replace("return Gather.apply, Scatter.apply", "return [Gather.apply, Scatter.apply]")
    begin, end = found.index("        slices = x.new_empty(n, *x.shape)"), found.index("    def my_sum")
    lists = """\
        slices = [torch.empty_like(x) for _ in range(n)]
        dist.all_gather(slices, x.contiguous(), group=group)
        return torch.cat(slices, dim=1)

"""
    verdict = grade(asked, found[:begin] + lists + found[end:])
    assert verdict.passed, verdict.reason


def test_gradients_are_compared() -> None:
    def double(x: Tensor, group: ProcessGroup) -> Tensor:
        return x

    def inputs(case: Case, rank: int) -> dict[str, Tensor]:
        return {"x": case.normal(rank, 3), "upstream": case.normal(rank, 3, name="upstream")}

    asked = puzzle(
        drive=there_and_back,
        inputs=inputs,
        oracle=lambda case, given: [{"returns": 2 * each["x"], "x.grad": 2 * each["upstream"]} for each in given],
        cases=cases(worlds=(2,)),
    )
    assert grade(asked, text.with_body(asked, "return 2 * x")).passed
    detached = grade(asked, text.with_body(asked, "return 2 * x.detach()"))
    assert "x.grad: expected a float64 tensor of shape (3,), got None" in detached.reason
    scaled = grade(asked, text.with_body(asked, "return 2 * x.detach() + 3 * (x - x.detach())"))
    assert "x.grad[0]" in scaled.reason


def test_an_output_of_another_shape_is_a_wrong_value_where_the_drive_goes_backward() -> None:
    asked = catalog.find("memory.recompute_block")
    cut = f"\n\ndef {asked.entry}(function, *inputs):\n    return whole(function, *inputs)[:-1]\n"
    verdict = grade(asked, text.solution(asked).replace(f"def {asked.entry}(", "def whole(") + cut)
    assert verdict.stage is Stage.VALUES
    assert "expected a float64 tensor of shape (6, 5), got a float64 tensor of shape (4, 5)" in verdict.reason


def test_failures_carry_the_trace_of_their_case() -> None:
    verdict = check(RIGHT + " + 1", cases=cases(worlds=(2, 4), length=(6,)))
    assert verdict.case.world_size == 2
    assert [len(events) for events in verdict.trace.events] == [1, 1]


def test_the_quick_answer_is_the_same_as_the_verdict() -> None:
    asked = puzzle(budgets=budget(Measure.CALLS, 1))
    for body in (
        RIGHT,
        "return x",
        "return 1 / 0",
        RIGHT + "; dist.barrier(group)",
        "dist.barrier(group)\n" + RIGHT,
        "(",
    ):
        source = text.with_body(asked, body)
        assert passes(asked, source) == grade(asked, source).passed


def test_the_description_is_checked() -> None:
    with pytest.raises(ValueError, match="a name is"):
        puzzle(name="total")
    with pytest.raises(ValueError, match="it needs an oracle, a judge or a pipe"):
        puzzle(oracle=None)
    with pytest.raises(ValueError, match="must be in order"):
        cases(worlds=(3,), members=(2, 0))
    with pytest.raises(ValueError, match="of its own"):
        cases(worlds=(3,), seed=(1, 2))
    with pytest.raises(dataclasses.FrozenInstanceError):
        SHIFT.name = "other"
