"""How values are compared: the quick look at large tensors says nothing that the slow one does not."""

import math
from collections import deque
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from puzzles.grading import values
from puzzles.grading.drives import all_tensors, tensors_of
from puzzles.grading.puzzle import Case


class Pair(NamedTuple):
    one: int
    other: int


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("tolerance", [None, 1e-6, 1e-3])
@pytest.mark.parametrize("off", [0.0, 0.5, 0.9, 1.1, 2.0, -0.9, -1.1, math.inf, math.nan])
def test_the_quick_look_agrees_with_the_slow_one(dtype, tolerance, off):
    allowed = values._RELATIVE[dtype] if tolerance is None else tolerance
    expected = torch.linspace(-3, 4, 1000, dtype=torch.float64).to(dtype)
    got = expected.clone()
    got[500] += off * allowed * 4
    allowed = values.Near(tolerance)
    near = bool(values._close(expected, got, allowed).all())
    assert values._all_near(expected, got, allowed) == near == (abs(off) <= 1)


def test_what_is_not_finite_is_never_called_near_at_a_glance():
    for odd in (math.inf, -math.inf, math.nan):
        x = torch.tensor([1.0, odd])
        assert not values._all_near(x, x.clone(), values.Near(None))


def reported(**tensors: Tensor) -> dict:
    return {name: ("tensor", x) for name, x in tensors.items()}


def test_what_is_left_of_large_numbers_may_have_their_rounding():
    """A softmax that is nearly sure has a gradient of 5e-8, computed from numbers near 1: its error is theirs."""
    case = Case(2)
    x = torch.tensor([1.5, -3.0], dtype=torch.float64)
    small = torch.tensor([4.849220375e-08, 1e-9], dtype=torch.float64)
    expected = ({"x": x, "x.grad": small},) * 2

    def right(error: float, **others: Tensor) -> bool:
        told = [reported(**{"x": x, "x.grad": small + error, **others})] * 2
        return values.compare(case, told, expected, 1e-10).right

    assert right(5.7e-16) and right(5e-15) and not right(5e-14)  # 16 steps of float64 at 3 are 1.1e-14
    assert not right(0.0, x=x + 1e-9)
    lies = ({"x": 1e19 * x, "mean": x},) * 2  # nothing is left of these in what is right
    assert not values.compare(case, [reported(x=1e19 * x, mean=x + 1e-5)] * 2, lies, 1e-10).right
    assert not values.compare(case, [reported(**{"x": x, "x.grad": small + 1e-16})] * 2, expected, 0).right
    alone = ({"x.grad": small},) * 2  # nothing says that it is left of anything
    assert not values.compare(case, [reported(**{"x.grad": small + 5.7e-16})] * 2, alone, 1e-10).right


def test_an_oracle_gets_tensors_and_containers_of_its_own():
    x, pair = torch.arange(3.0), Pair(1, 2)
    given = [{"x": x, "list": [x, [1, 2]], "tuple": (x, "text"), "dict": {"inside": x}, "orders": [[pair], [pair]]}]
    own = values.copied(given)
    assert own[0]["orders"] == given[0]["orders"] and own[0]["orders"][0] is not given[0]["orders"][0]
    for tensor in (own[0]["x"], own[0]["list"][0], own[0]["tuple"][0], own[0]["dict"]["inside"]):
        assert torch.equal(tensor, x)
        tensor.fill_(7)
    own[0]["list"][1].append(3)
    assert x.tolist() == [0, 1, 2] and given[0]["list"][1] == [1, 2]


def test_tensors_are_found_where_they_are_and_numbers_are_passed_over():
    x, y, z = (torch.full((2,), float(k)) for k in range(3))
    found = tensors_of(
        {"x": x, "lists": [1, [None, y]], "dict": {"head.bias": z, "n": 3}, "orders": [[Pair(1, 2)]] * 9}
    )
    assert list(found) == ["x", "lists[1][1]", "dict[head.bias]"]
    assert all(
        isinstance(value, Tensor) and value is each for value, each in zip(found.values(), (x, y, z), strict=True)
    )


def test_all_tensors_are_found_whatever_they_are_in():
    x = [torch.full((1,), float(number)) for number in range(6)]

    class Pair(NamedTuple):
        left: Tensor
        right: list

    found = all_tensors({"a": x[0], "b": [(x[1],), 7], "c": Pair(x[2], [x[3]]), "d": deque([{"e": x[4]}]), "f": x[5]})
    assert sorted(map(float, found)) == [0, 1, 2, 3, 4, 5]
    assert all_tensors([1, "two", None]) == []


def test_a_list_that_is_in_itself_has_an_end():
    around: list = [torch.ones(1)]
    around.append(around)
    assert all(float(each) == 1 for each in all_tensors(around))
