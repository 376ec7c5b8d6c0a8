"""How values are compared: the quick look at large tensors says nothing that the slow one does not."""

import math

import pytest
import torch

from puzzles.grading import values


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
