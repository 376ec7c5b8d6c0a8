"""A linear layer whose backward has two halves: both together are autograd's, and the second has time."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from reference.zero_bubble.plain import split_linear

TOLERANCE = 1e-12  # float64, sums of a dozen products


def layer(tokens: int, width: int, features: int) -> tuple[Tensor, Tensor, Tensor]:
    """x, weight and the gradient of y."""
    generator = torch.Generator().manual_seed(tokens)
    shapes = ((tokens, width), (features, width), (tokens, features))
    return tuple(torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)


@pytest.mark.parametrize("shape", [(6, 5, 3), (1, 1, 4)])
def test_both_halves_together_are_autograds(shape: tuple[int, int, int]) -> None:
    x, weight, upstream = layer(*shape)
    put_off: list[Callable[[], None]] = []
    leaves = x.requires_grad_(), weight.requires_grad_()
    expected = torch.autograd.grad((x @ weight.T * upstream).sum(), leaves)
    y = split_linear(x, weight, put_off.append)
    (y * upstream).sum().backward()
    for finish in put_off:
        finish()
    torch.testing.assert_close((x.grad, weight.grad), expected, rtol=0, atol=TOLERANCE)


def test_the_weight_has_no_gradient_before_the_second_half() -> None:
    x, weight, upstream = layer(4, 3, 2)
    put_off: list[Callable[[], None]] = []
    (split_linear(x.requires_grad_(), weight.requires_grad_(), put_off.append) * upstream).sum().backward()
    assert x.grad is not None
    assert weight.grad is None
    assert len(put_off) == 1


def test_micro_batches_add_up_in_any_order() -> None:
    x, weight, upstream = layer(4, 3, 2)
    put_off: list[Callable[[], None]] = []
    weight.requires_grad_()
    for rows, gradient in zip(x.split(1), upstream.split(1), strict=True):
        (split_linear(rows, weight, put_off.append) * gradient).sum().backward()
    for finish in reversed(put_off):
        finish()
    torch.testing.assert_close(weight.grad, upstream.T @ x, rtol=0, atol=TOLERANCE)


def test_data_gets_no_gradient() -> None:
    x, weight, upstream = layer(4, 3, 2)
    put_off: list[Callable[[], None]] = []
    (split_linear(x, weight.requires_grad_(), put_off.append) * upstream).sum().backward()
    assert x.grad is None
    assert len(put_off) == 1


def test_the_gradient_of_the_weight_remembers_nothing() -> None:
    x, weight, upstream = layer(4, 3, 2)
    put_off: list[Callable[[], None]] = []
    (split_linear(x.requires_grad_(), weight.requires_grad_(), put_off.append) * upstream).sum().backward()
    put_off.pop()()
    assert weight.grad is not None
    assert weight.grad.grad_fn is None
