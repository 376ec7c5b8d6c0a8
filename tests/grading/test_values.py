"""How values are compared: the quick look at large tensors says nothing that the slow one does not."""

import math
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from puzzles.grading import values
from puzzles.grading.drives import tensors_of


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
    near = bool(values._close(expected, got, tolerance).all())
    assert values._all_near(expected, got, tolerance) == near == (abs(off) <= 1)


def test_what_is_not_finite_is_never_called_near_at_a_glance():
    for odd in (math.inf, -math.inf, math.nan):
        x = torch.tensor([1.0, odd])
        assert not values._all_near(x, x.clone(), None)


def test_an_oracle_gets_tensors_and_containers_of_its_own():
    x, pair = torch.arange(3.0), Pair(1, 2)
    given = [{"x": x, "list": [x, [1, 2]], "tuple": (x, "text"), "dict": {"inside": x}, "orders": [[pair], [pair]]}]
    own = values.copied(given)
    assert own[0]["orders"] == given[0]["orders"] and own[0]["orders"][0] is not given[0]["orders"][0]
    assert own[0]["orders"][1][0] is pair
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
