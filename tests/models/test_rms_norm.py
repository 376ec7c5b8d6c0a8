"""The norm by hand is torch's norm, forward and backward."""

import pytest
import torch
import torch.nn.functional as F

from reference.models.rms_norm import rms_norm

EPSILON = 1e-3  # large enough to be seen
SHAPES = ((6,), (5, 6), (2, 5, 6), (0, 6))


def tensors(shape: tuple[int, ...], dtype: torch.dtype) -> list[torch.Tensor]:
    """x and weight, both with a gradient to come, and the gradient of what follows."""
    draw = torch.Generator().manual_seed(0)
    x, weight, after = (torch.randn(s, generator=draw, dtype=torch.float64) for s in (shape, shape[-1:], shape))
    return [x.to(dtype).requires_grad_(), weight.to(dtype).requires_grad_(), after.to(dtype)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_its_gradients_are_those_of_its_values(shape: tuple[int, ...]) -> None:
    x, weight, _ = tensors(shape, torch.float64)
    assert torch.autograd.gradcheck(lambda x, weight: rms_norm(x, weight, EPSILON), (x, weight))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(
    ("dtype", "bound"),
    [(torch.float64, 1e-14), (torch.float32, 2e-6), (torch.bfloat16, 2**-6), (torch.float16, 2**-9)],
    ids=str,
)
def test_values_and_gradients_are_torchs(shape: tuple[int, ...], dtype: torch.dtype, bound: float) -> None:
    """To a few roundings, in any precision, and in that precision they come."""
    found, expected = [], []
    for norm, results in ((rms_norm, found), (lambda x, w, e: F.rms_norm(x, w.shape, w, e), expected)):
        x, weight, after = tensors(shape, dtype)
        y = norm(x, weight, EPSILON)
        y.backward(after)
        results += [y.detach(), x.grad, weight.grad]
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == dtype
        torch.testing.assert_close(
            ours, theirs, rtol=0, atol=bound * max(1.0, float(theirs.abs().amax() if theirs.numel() else 0))
        )
