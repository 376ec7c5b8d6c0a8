"""A product that adds gives what a product and a sum give, and what waits for the gradient is told."""

import gc

import pytest
import torch
from torch import Tensor, nn

from reference.data_parallel.buckets import Bucket, Buckets
from reference.memory.fast.fused import add_product


def factors(seed: int) -> tuple[Tensor, Tensor]:
    """dy [2, 3, 5] and x [2, 3, 4]."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(2, 3, features, dtype=torch.float64, generator=generator) for features in (5, 4))


def product(seed: int) -> Tensor:
    """dyᵀ x, over all tokens."""
    gradient, x = factors(seed)
    return torch.einsum("bto,bti->oi", gradient, x)


def weight(dtype: torch.dtype = torch.float64) -> nn.Parameter:
    """[5, 4]."""
    return nn.Parameter(torch.zeros(5, 4, dtype=dtype))


def equal(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-15)


def test_products_add_up_where_the_gradient_is() -> None:
    w = weight()
    add_product(w, *factors(0))
    place = w.grad.data_ptr()
    for seed in (1, 2):
        add_product(w, *factors(seed))
    equal(w.grad, product(0) + product(1) + product(2))
    assert w.grad.data_ptr() == place


def test_every_hook_hears_of_every_product() -> None:
    w, heard = weight(), []
    w.register_post_accumulate_grad_hook(lambda parameter: heard.append(parameter.grad.clone()))
    handle = w.register_hook(lambda gradient: 2 * gradient)
    add_product(w, *factors(0))
    handle.remove()
    add_product(w, *factors(1))
    equal(heard[0], 2 * product(0))
    equal(heard[1], 2 * product(0) + product(1))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["the same dtype", "another dtype"])
def test_a_bucket_takes_the_factors(dtype: torch.dtype) -> None:
    launched, w, other = [], weight(), weight()
    buckets = Buckets([Bucket([other, w], dtype)], launched.append)
    add_product(w, *factors(0))
    buckets.expect()
    add_product(other, *factors(1))
    assert launched == []
    add_product(w, *factors(2))
    assert launched == [buckets.buckets[0]] and w.grad is None
    sums = [buckets.buckets[0].gradient(index) for index in (0, 1)]
    torch.testing.assert_close(sums, [product(1).to(dtype), (product(0) + product(2)).to(dtype)], rtol=1e-6, atol=1e-6)
    with pytest.raises(RuntimeError, match="already been sent off"):
        add_product(w, *factors(3))


def test_a_bucket_forgets_what_was_there_before() -> None:
    w = weight()
    buckets = Buckets([Bucket([w], torch.float64)], lambda bucket: None)
    add_product(w, *factors(0))
    buckets.buckets[0].complete().fill_(torch.nan)
    buckets.forget()
    add_product(w, *factors(1))
    equal(buckets.buckets[0].gradient(0), product(1))


def test_a_hook_beside_the_bucket_hears_of_it() -> None:
    w, heard = weight(), []
    w.register_hook(lambda gradient: heard.append(gradient.clone()))
    buckets = Buckets([Bucket([w], torch.float64)], lambda bucket: None)
    for seed in (0, 1):
        add_product(w, *factors(seed))
    equal(heard[1], product(1))
    equal(buckets.buckets[0].gradient(0), product(0) + product(1))


def test_where_buckets_are_gone_the_weight_has_its_gradient() -> None:
    w = weight()
    buckets = Buckets([Bucket([w], torch.float64)], lambda bucket: None)
    del buckets
    gc.collect()
    for seed in (0, 1):
        add_product(w, *factors(seed))
    equal(w.grad, product(0) + product(1))
