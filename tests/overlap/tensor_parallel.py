"""Two layers of tensor or sequence parallelism with products that sleep, on a network that takes its time.

Into the region by columns, out of it by rows, and backward: six products, each of which takes as long as its size
demands.
"""

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

import torch
import torch.distributed as dist
from torch import Tensor

from reference.sequence_parallel import RingRegion, SequenceRegion
from reference.tensor_parallel import Region

from .clocks import Case, Clock

BATCH, SEQUENCE, WIDTH, HIDDEN = 2, 12, 4, 6  # features inside: of one rank
PRODUCT = 0.160  # seconds, of all tokens
PRODUCTS = 6 * PRODUCT  # forward: one of each layer; backward: two of each

MakeRegion = Callable[..., Region]
"""(group, multiply=...) -> a region."""


def sleeping_product(a: Tensor, b: Tensor, clock: Clock) -> Tensor:
    """The product of two matrices, after as many seconds as its multiplications take."""
    clock.sleep(PRODUCT * a.numel() * b.shape[-1] / (BATCH * SEQUENCE * WIDTH * HIDDEN))
    return a @ b


def step(make: MakeRegion, seconds_per_slice: float, clock: Clock) -> float:
    """Seconds from the tokens to the gradients. To be run on every rank.

    Args:
        make: the region.
        seconds_per_slice: that a rank takes to send a t-th of the tokens.
        clock: by which products sleep and messages travel.
    """
    from tests.overlap.slow_network import slow_group  # a class of torch's kind does not travel to a rank

    t = dist.get_world_size()
    group = slow_group(seconds_per_slice / (4 * BATCH * SEQUENCE * WIDTH / t), clock)
    region = make(group, multiply=partial(sleeping_product, clock=clock))
    x = region.local_tokens(torch.ones(BATCH, SEQUENCE, WIDTH)).clone().requires_grad_()
    into, out = (torch.ones(shape, requires_grad=True) for shape in ((HIDDEN, WIDTH), (WIDTH, HIDDEN)))
    dist.barrier()
    began = clock.monotonic()
    (inside,) = region.column_linear(x, into)
    region.row_linear(inside, out).sum().backward()
    return clock.monotonic() - began


def case(ranks: int, make: MakeRegion, seconds_per_slice: float, seconds: float) -> Case:
    """Ranks that take such a step."""
    return Case(ranks, partial(step, make, seconds_per_slice), seconds)


QUICK, SLOW = 0.050, 0.125  # seconds of a slice on 2 ranks, of which an all-reduce sends two

RING = 4  # ranks
PART = PRODUCT / RING  # seconds, of the product with one slice
ROUNDS = 5  # of the slices: two gathers and two sums of two layers, and the columns' second gather
PASSES = ROUNDS * (RING - 1)  # of a slice to the next rank
QUICK_RING, SLOW_RING = 0.75 * PART, 2 * PART  # seconds of a pass

CASES: Mapping[str, Case] = MappingProxyType(
    {
        "tensor parallel: the sum": case(2, Region, SLOW, PRODUCTS + 2 * 2 * SLOW),
        # what is left is forward's all-reduce: everything after it waits for the sum
        "tensor parallel: the gradients' sum hides behind the weights' gradient": case(
            2, partial(Region, overlap=True), QUICK, PRODUCTS + 2 * QUICK
        ),
        "tensor parallel, slow network: the weights' gradient hides behind the sum": case(
            2, partial(Region, overlap=True), SLOW, PRODUCTS - PRODUCT + 2 * 2 * SLOW
        ),
        "sequence parallel: the sum": case(RING, SequenceRegion, SLOW_RING, PRODUCTS + PASSES * SLOW_RING),
        # in the columns' backward: the gather behind the inputs' gradient, the sum behind the weights'
        "sequence parallel, begun early: two of five rounds hide": case(
            RING, partial(SequenceRegion, overlap=True), QUICK_RING, PRODUCTS + 3 * (RING - 1) * QUICK_RING
        ),
        "ring: messages hide behind products": case(RING, RingRegion, QUICK_RING, PRODUCTS),
        # one product of a slice in each round has nothing to hide behind: two products in rows' backward
        "ring, slow network: products hide behind messages": case(
            RING, RingRegion, SLOW_RING, PASSES * SLOW_RING + (ROUNDS + 1) * PART
        ),
    }
)
