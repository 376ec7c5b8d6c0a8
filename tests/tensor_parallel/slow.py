"""Products that take their time, on a network that does, and how long two layers of them take in a region.

Into the region by columns, out of it by rows, and backward: six products, each of which sleeps as long as its size
demands. As sleeps are much longer than the work, neither the speed of this machine nor that of gloo matters: only what
is done while something else is waited for.
"""

import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from reference.cluster import Cluster
from reference.tensor_parallel import Region

from ..data_parallel.slow import Measured, quickest

BATCH, SEQUENCE, WIDTH, HIDDEN = 2, 12, 4, 6  # features inside: of one rank
PRODUCT = 0.160  # seconds, of all tokens
PRODUCTS = 6 * PRODUCT  # forward: one of each layer; backward: two of each
ENOUGH = 0.15

MakeRegion = Callable[..., Region]
"""(group, multiply=...) -> a region."""


def sleeping_product(a: Tensor, b: Tensor) -> Tensor:
    """The product of two matrices, after as many seconds as its multiplications take."""
    time.sleep(PRODUCT * a.numel() * b.shape[-1] / (BATCH * SEQUENCE * WIDTH * HIDDEN))
    return a @ b


def seconds_of_step(make: MakeRegion, seconds_per_slice: float) -> float:
    """Seconds from the tokens to the gradients. To be run on every rank.

    Args:
        make: the region.
        seconds_per_slice: that a rank takes to send a t-th of the tokens.
    """
    from tests.slow_network import slow_group  # a class of torch's kind does not travel to a rank

    t = dist.get_world_size()
    region = make(slow_group(seconds_per_slice / (4 * BATCH * SEQUENCE * WIDTH / t)), multiply=sleeping_product)
    x = region.own(torch.ones(BATCH, SEQUENCE, WIDTH)).clone().requires_grad_()
    into, out = (torch.ones(shape, requires_grad=True) for shape in ((HIDDEN, WIDTH), (WIDTH, HIDDEN)))
    dist.barrier()
    began = time.monotonic()
    (inside,) = region.columns(x, into)
    region.rows(inside, out).sum().backward()
    return time.monotonic() - began


def measure(cluster: Cluster, make: MakeRegion, seconds_per_slice: float, expected: float) -> Measured:
    """How long a step in such a region takes on the slowest rank, beside what is expected."""
    return quickest(lambda: max(cluster.run(seconds_of_step, make, seconds_per_slice)), expected, ENOUGH)
