"""A loss in chunks has the loss and the gradients of whole logits, and keeps no more than it says."""

import pytest
import torch
import torch.nn.functional as F

from reference.memory import Gauge
from reference.memory.chunked_loss import IGNORED, chunked_loss
from reference.models import objective

T, V, D = 50, 400, 8


def head(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(size, D, generator=generator, dtype=dtype) for size in (T, V))
    targets = torch.randint(V, (T,), generator=generator)
    targets[::7] = IGNORED
    return hidden, weight, targets


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
@pytest.mark.parametrize("chunk", [1, 7, 50, 64])
def test_it_is_the_loss_of_whole_logits(chunk: int, dtype: torch.dtype, bound: float) -> None:
    hidden, weight, targets = head(dtype)
    found = chunked_loss(hidden, weight, targets, 60, chunk)
    hidden.requires_grad_(), weight.requires_grad_()
    loss = F.cross_entropy(hidden @ weight.T, targets, reduction="sum") / 60
    loss.backward()
    for got, expected in zip(found, (loss.detach(), hidden.grad, weight.grad), strict=True):
        torch.testing.assert_close(got, expected, rtol=bound, atol=bound)


@pytest.mark.parametrize("chunk", [2, 10, 50])
def test_it_keeps_a_chunk_of_logits_beside_the_gradients(chunk: int) -> None:
    """As tensors: what logsumexp takes inside itself, a gauge does not see."""
    hidden, weight, targets = head(torch.float64)
    with Gauge({}) as gauge:
        chunked_loss(hidden, weight, targets, 60, chunk)
    beside = gauge.history.peak - 8 * D * (T + V)
    assert 8 * chunk * V <= beside < 8 * chunk * V + 100 * chunk + 1000


def test_padding_is_what_models_call_so() -> None:
    assert IGNORED == objective.IGNORED
