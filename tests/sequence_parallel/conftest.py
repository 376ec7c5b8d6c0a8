"""The same ranks as for the forms of data parallelism, and whose tokens are whose."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from reference.cluster import Cluster

from ..data_parallel.conftest import in_group, members, ranks

__all__ = ["ranks"]

EXACT = 1e-12  # in float64, of values near 1: another order of a few dozen additions costs about 1e-15


def on(ranks: Cluster, n: int, fn: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What `fn(group, *arguments)` returns on each of n ranks."""
    found = ranks.run(partial(in_group, n, fn, *arguments))
    return [found[rank] for rank in members(n)]


def normal(name: str, *shape: int) -> Tensor:
    """Random numbers in float64 that depend on nothing but their name and shape."""
    seed = int.from_bytes(name.encode(), "big") % 2**62
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def share_of(whole: Tensor, like: Tensor, rank: int, n: int) -> Tensor:
    """What rank `rank` of n has of a tensor, if what it has looks like `like`: all of it, or its part of one dim."""
    split = [dim for dim, (size, own) in enumerate(zip(whole.shape, like.shape, strict=True)) if size != own]
    return whole.tensor_split(n, split[0])[rank] if split else whole


def far(found: Tensor, expected: Tensor) -> float:
    """The largest difference, relative to the largest element."""
    assert found.shape == expected.shape
    return float((found - expected).abs().max() / expected.abs().max())


def farthest(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Of all of them."""
    return max(far(*pair) for pair in zip(found, expected, strict=True))
