"""Compare what ranks report with what the oracle says, value by value, in the owner's process.

A report is plain data (see `driver.described`); nothing of it is trusted to compare itself.
"""

import math
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from .drives import holds_tensors, plain, tensors_of
from .puzzle import RETURNS, Case, Inputs, Puzzle

_RELATIVE = {torch.float64: 1e-12, torch.float32: 1e-6, torch.bfloat16: 2e-2, torch.float16: 2e-3}
_STEPS = 16  # of float64: by so many, of the largest number there is, what is left of it may differ,
_MOST = 1e-6  # but by no more of itself than this


@dataclass(frozen=True)
class Difference:
    """The first place where a rank's value is not what it should be.

    Attributes:
        rank: global rank; group_rank is its place in the group.
        place: such as "x[3, 0]", "result" or "x.grad".
    """

    rank: int
    group_rank: int
    place: str
    expected: str
    got: str

    def __str__(self) -> str:
        return f"rank {self.rank}, {self.place}: expected {self.expected}, got {self.got}"


@dataclass(frozen=True)
class Near:
    """How far a value may be from what is expected.

    Attributes:
        relative: to the largest value of its tensor; None for what the dtype allows.
        rounding: or so much, in float64. What is left of large numbers that cancel has their error, and not its own.
    """

    relative: float | None
    rounding: float = 0.0

    def of_one(self, dtype: torch.dtype) -> float:
        """The relative error of a number of its own."""
        return _RELATIVE[dtype] if self.relative is None else self.relative

    def absolute(self, dtype: torch.dtype, largest: float) -> float:
        """The error in a tensor with such a largest value."""
        rounding = min(self.rounding, _MOST * largest) if dtype is torch.float64 else 0.0
        return max(self.of_one(dtype) * largest, rounding)


@dataclass(frozen=True)
class Comparison:
    """One case, compared.

    Attributes:
        compared: how many single values were looked at.
        differences: the first difference of each rank that has one.
        expected, got: by group rank, the values by name, for a diagnosis to look for patterns.
        near: the error allowed.
    """

    case: Case
    compared: int
    differences: tuple[Difference, ...]
    expected: tuple[dict[str, Any], ...]
    got: tuple[dict[str, Any], ...]
    near: Near = Near(None)

    def same(self, one: Any, other: Any) -> bool:
        """Whether two values, of any rank and name, are the same for this puzzle."""
        return _compare("", one, other, self.near)[1] is None

    def wrong(self, expected: Tensor, got: Tensor) -> Tensor:
        """Elementwise, of one shape and dtype: which are not the same."""
        return ~_close(expected, got, self.near)

    @cached_property
    def leaves(self) -> tuple[tuple[int, str, Tensor, Tensor], ...]:
        """(group rank, place, expected, got) of the tensors that differ, where both are of one shape."""
        ranks = sorted({difference.group_rank for difference in self.differences})
        pairs = ((r, name, value, self.got[r].get(name)) for r in ranks for name, value in self.expected[r].items())
        found = ((rank, *leaf) for rank, *pair in pairs for leaf in _tensors(*pair))
        return tuple(leaf for leaf in found if not self.same(*leaf[2:]))

    @property
    def right(self) -> bool:
        """True where values were compared and all of them are right."""
        return self.compared > 0 and not self.differences

    @property
    def empty(self) -> bool:
        """True where all tensors that are asked for are empty: then any program is right."""
        tensors = [value for each in self.expected for value in each.values() if isinstance(value, Tensor)]
        return bool(tensors) and not any(value.numel() for value in tensors)


@dataclass(frozen=True)
class Other:
    """A value of a kind that no puzzle asks for."""

    description: str


def decoded(report: Any) -> Any:
    """A value from its description; an `Other` for whatever is not exactly one."""
    match report:
        case ("tensor", Tensor() as value) if type(value) is Tensor:
            return value
        case ("value", None | bool() | int() | float() | str() as value):
            return value
        case ("list" | "tuple" as kind, [*items]):
            return (list if kind == "list" else tuple)(decoded(item) for item in items)
        case ("other", str() as text):
            return Other(text[:200])
    return Other("something that is no value")


def expectations(puzzle: Puzzle, case: Case, inputs: Inputs) -> tuple[dict[str, Any], ...]:
    """By group rank, what must be under which name: what the oracle says, and inputs that must stay as they are.

    Drives of their own report what they choose, so of them only what the oracle names is asked for.
    """
    assert puzzle.oracle is not None
    said = puzzle.oracle(case, copied(inputs))
    if len(said) != case.n:
        raise ValueError(f"{puzzle.name}: the oracle gives values for {len(said)} of {case.n} ranks")
    named = [dict(each) if isinstance(each, Mapping) else {RETURNS: each} for each in said]
    if puzzle.drive is not plain:
        return tuple(named)
    return tuple({**_kept(puzzle, arguments, each), **each} for arguments, each in zip(inputs, named, strict=True))


def copied(value: Any) -> Any:
    """The same with containers and tensors of its own. Of what holds no tensor, `pickle` is the quickest copier."""
    if isinstance(value, Tensor):
        return value.clone()
    if not holds_tensors(value):
        return pickle.loads(pickle.dumps(value)) if isinstance(value, list | tuple | dict) else value
    if isinstance(value, dict):
        return {key: copied(each) for key, each in value.items()}
    return type(value)(map(copied, value))


def _kept(puzzle: Puzzle, arguments: Mapping[str, Any], named: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors that a solution may not change: those in arguments of which neither puzzle nor oracle says more."""
    return tensors_of({name: x for name, x in arguments.items() if name not in puzzle.scratch and name not in named})


def compare(
    case: Case, reports: Sequence[Mapping[str, Any]], expected: tuple[dict[str, Any], ...], tolerance: float | None
) -> Comparison:
    """Hold the reports of one case, by group rank, against what is expected. What a report leaves out is wrong."""
    got = tuple({name: decoded(value) for name, value in report.items()} for report in reports)
    near = Near(tolerance)
    compared, differences = _compare_all(case, expected, got, near)
    if differences and tolerance != 0:
        near = Near(tolerance, _STEPS * torch.finfo(torch.float64).eps * _largest(expected))
        compared, differences = _compare_all(case, expected, got, near)
    return Comparison(case, compared, differences, expected, got, near)


def _compare_all(
    case: Case, expected: Sequence[dict[str, Any]], got: Sequence[dict[str, Any]], near: Near
) -> tuple[int, tuple[Difference, ...]]:
    """How many values of all ranks were compared, and the first difference of each rank that has one."""
    compared, differences = 0, []
    for rank, wanted, values in zip(case.global_ranks, expected, got, strict=True):
        found = [_compare(name, value, values.get(name), near) for name, value in wanted.items()]
        compared += sum(count for count, _ in found)
        if first := next((difference for _, difference in found if difference), None):
            differences.append(Difference(rank, case.global_ranks.index(rank), *first))
    return compared, tuple(differences)


def _largest(expected: Sequence[dict[str, Any]]) -> float:
    """The largest number in the float64 tensors of all ranks."""
    tensors = [x for each in expected for x in tensors_of(each).values() if x.dtype is torch.float64]
    return max((x.abs().max().item() for x in (x[x.isfinite()] for x in tensors) if x.numel()), default=0.0)


def _compare(name: str, expected: Any, got: Any, near: Near) -> tuple[int, tuple[str, str, str] | None]:
    """How many values were compared, and (place, expected, got) of the first that differs."""
    place = "result" if name == RETURNS else name
    if isinstance(expected, list | tuple):
        return _compare_sequence(name, expected, got, near)
    if isinstance(expected, Tensor):
        if not isinstance(got, Tensor):
            return 1, (place, _kind(expected), _kind(got))
        if (expected.shape, expected.dtype) != (got.shape, got.dtype):
            return 1, (place, _kind(expected), _kind(got))
        return _compare_tensors(name, expected, got, near)
    if type(expected) in (int, float) and type(got) in (int, float):
        if type(expected) is int:
            close = type(got) is int and expected == got
        else:
            close = math.isclose(expected, got, rel_tol=near.of_one(torch.float64))
        return 1, None if close else (place, *_numbers(expected, got))
    if type(expected) in (int, float) and isinstance(got, Tensor) and got.numel() == 1:
        return 1, (place, _kind(expected), f"{_kind(got)} (a number is asked for: .item())")
    same = type(expected) is type(got) and expected == got
    return 1, None if same else (place, _kind(expected), _kind(got))


def _compare_sequence(name: str, expected: Sequence, got: Any, near: Near) -> tuple[int, tuple | None]:
    place = "result" if name == RETURNS else name
    if type(got) not in (list, tuple) or len(got) != len(expected):
        return 1, (place, f"{len(expected)} values", _kind(got))
    found = [_compare(f"{place}[{i}]", *pair, near) for i, pair in enumerate(zip(expected, got, strict=True))]
    return max(1, sum(count for count, _ in found)), next((difference for _, difference in found if difference), None)


def _tensors(name: str, expected: Any, got: Any) -> Iterator[tuple[str, Tensor, Tensor]]:
    """(place, expected, got) of the tensors, of one shape, in two values; numbers as tensors, lists as "name[0]"."""
    if isinstance(expected, list | tuple) and isinstance(got, list | tuple) and len(expected) == len(got):
        for index, pair in enumerate(zip(expected, got, strict=True)):
            yield from _tensors(f"{name}[{index}]", *pair)
        return
    if type(expected) in (int, float) and type(got) in (int, float):
        expected, got = (torch.tensor([each], dtype=torch.float64) for each in (expected, got))
    tensors = isinstance(expected, Tensor) and isinstance(got, Tensor)
    if tensors and (expected.shape, expected.dtype) == (got.shape, got.dtype):
        yield name, expected, got


def _compare_tensors(name: str, expected: Tensor, got: Tensor, near: Near) -> tuple[int, tuple | None]:
    if near.relative != 0 and (torch.equal(expected, got) or _all_near(expected, got, near)):
        return max(1, expected.numel()), None
    wrong = ~_close(expected, got, near)
    if not wrong.any():
        return max(1, expected.numel()), None
    index = tuple(wrong.nonzero()[0].tolist())
    base = "result" if name == RETURNS else name
    place = f"{base}[{', '.join(map(str, index))}]" if index else base
    return expected.numel(), (place, *_numbers(expected[index].item(), got[index].item()))


def _close(expected: Tensor, got: Tensor, near: Near) -> Tensor:
    """Elementwise: equal, or near. NaN equals only NaN.

    Where nothing is computed, no error is allowed, and a zero has the sign that it had.
    """
    if near.relative == 0:
        nothing = expected.isnan() & got.isnan()
        return ((expected == got) & (expected.signbit() == got.signbit())) | nothing
    if not expected.is_floating_point():
        return expected == got
    finite = expected[expected.isfinite()]
    scale = finite.abs().max().item() if finite.numel() else 0.0
    if expected.dim() == 0:
        scale = abs(expected.item()) if expected.isfinite() else 0.0
    error = near.absolute(expected.dtype, scale)
    return torch.isclose(got.double(), expected.double(), rtol=0.0, atol=error, equal_nan=True)


def _all_near(expected: Tensor, got: Tensor, near: Near) -> bool:
    """True only where `_close` holds everywhere: one look at the largest difference, quick for large tensors."""
    if expected.dtype not in (torch.float32, torch.float64) or not expected.dim() or not expected.numel():
        return False
    largest = max(map(abs, torch.stack(expected.aminmax()).tolist()))
    difference = torch.linalg.vector_norm(got - expected, math.inf).item()
    return math.isfinite(largest) and difference <= near.absolute(expected.dtype, largest)  # NaN is near nothing


def _kind(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a {str(value.dtype).removeprefix('torch.')} tensor of shape {tuple(value.shape)}"
    if isinstance(value, Other):
        return value.description
    if isinstance(value, list | tuple):
        return f"{len(value)} values"
    return repr(value) if value is not None else "None"


def _numbers(expected: float | int | bool, got: float | int | bool) -> tuple[str, str]:
    """Both as short as they still differ: 3528 and 3528.0000000000005."""
    short = _number(expected), _number(got)
    if short[0] != short[1]:
        return short
    return repr(expected), f"{got!r} (an int is asked for)" if type(expected) is int else repr(got)


def _number(value: float | int | bool | complex) -> str:
    return f"{value:.10g}" if isinstance(value, float) else str(value)
