"""One process has one loop: what it does is held to arithmetic by hand, and no test has a loop of its own instead."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from reference.oracle import Record, alone, largest_difference, record

TESTS = Path(__file__).parents[1]
OTHER_ALGORITHMS = {
    "zero_bubble/delayed.py",  # late weights, which no step of one process has
    "decentralized/one_process.py",  # several models, which meet
}


class Line(nn.Module):
    """w · x, with a bias that is used in step 0 alone, and a frozen scale."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.bias = (nn.Parameter(torch.tensor(value, dtype=torch.float64)) for value in (3.0, 1.0))
        self.scale = nn.Parameter(torch.tensor(2.0, dtype=torch.float64), requires_grad=False)

    def loss(self, step: int) -> Tensor:
        """Of x = 1, then of x = 2."""
        return self.scale * self.w * (step + 1) + (self.bias if step == 0 else 0)


def test_a_step_is_the_arithmetic_of_gradient_descent() -> None:
    line = Line()
    learning = [line.w, line.bias]
    first, second = alone(line, torch.optim.SGD(learning), line.loss, 2, rate=lambda step: (0.5, 0.25)[step])
    assert (first.loss, first.gradients, first.gradient_norm) == (7, {"w": 2, "bias": 1}, pytest.approx(5**0.5))
    assert (second.loss, second.gradients, second.gradient_norm) == (2 * 2 * (3 - 0.5 * 2), {"w": 4}, 4)
    assert (line.w, line.bias, line.scale) == (3 - 0.5 * 2 - 0.25 * 4, 1 - 0.5, 2)


def test_a_norm_is_clipped_after_it_is_written_down() -> None:
    line = Line()
    found = record(line, alone(line, torch.optim.SGD([line.w, line.bias], lr=1.0), line.loss, 2, clip=0.5))
    assert found.gradient_norms == [pytest.approx(5**0.5), 4]
    assert found.gradients == {"w": 4}
    assert found.parameters["bias"] == pytest.approx(1 - 0.5 / 5**0.5, rel=1e-5)
    assert found.parameters["w"] == pytest.approx(3 - 0.5 * 2 / 5**0.5 - 0.5, rel=1e-5)


def test_what_was_not_used_stays_or_has_a_gradient_of_zero() -> None:
    """Adam moves what has a gradient of zero by what it remembers."""
    after_one, after_two, with_zeros = Line(), Line(), Line()
    for line, steps, zeros in ((after_one, 1, False), (after_two, 2, False), (with_zeros, 2, True)):
        found = record(line, alone(line, torch.optim.Adam([line.w, line.bias]), line.loss, steps, zeros=zeros))
    assert after_two.bias == after_one.bias
    assert with_zeros.bias < after_two.bias
    assert found.gradients == {"w": 4, "bias": 0}


def test_without_an_optimizer_nothing_moves() -> None:
    line = Line()
    assert [step.loss for step in alone(line, None, line.loss, 2)] == [7, 12]
    assert (line.w, line.bias) == (3, 1)


def loops_of_their_own(source: str) -> Iterator[str]:
    """Functions that say that they are one process, and call `backward` and an optimizer's `step` themselves."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and ("one_process" in node.name or node.name in ("oracle", "alone")):
            calls = {call.func.attr for call in ast.walk(node) if isinstance(call, ast.Call) and is_method(call)}
            if not node.name.startswith("test_") and {"backward", "step"} <= calls:
                yield node.name


def is_method(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute)


def test_no_test_plays_one_process_by_itself() -> None:
    files = {str(path.relative_to(TESTS)): path.read_text() for path in TESTS.rglob("*.py")}
    found = {name: list(loops_of_their_own(source)) for name, source in files.items() if name not in OTHER_ALGORITHMS}
    assert {name: loops for name, loops in found.items() if loops} == {}


def test_a_loop_of_its_own_is_seen() -> None:
    source = "def one_process():\n    for step in range(3):\n        loss.backward()\n        optimizer.step()\n"
    assert list(loops_of_their_own(source)) == ["one_process"]


def test_what_rounding_leaves_of_a_zero_is_no_difference_and_a_forgotten_tensor_is() -> None:
    """Found by `long_run`: a window of one byte, whose queries learn nothing."""

    def record_of(query: float, value: float) -> Record:
        tensors = {"query": torch.tensor([query]).double(), "value": torch.tensor([value]).double()}
        return Record([1.0], [1.0], tensors, tensors)

    assert largest_difference(record_of(3e-19, 0.5), record_of(-2e-19, 0.5))["gradients"] < 1e-10
    assert largest_difference(record_of(1e-9, 0.5), record_of(2e-9, 0.5))["gradients"] > 1e-4
    assert largest_difference(record_of(0.0, 0.5), record_of(1e-3, 0.5))["parameters"] == 1.0
