"""Steps of data parallelism with layers that sleep, on a network that takes its time, and how long they should take."""

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType

import torch
import torch.distributed as dist
from torch import nn

from reference.data_parallel.gradient_sync import DataParallel
from reference.data_parallel.lab.sleeping_layers import sleeping_model
from reference.data_parallel.replicated import DistributedDataParallel, Replicated, flat, naive
from reference.zero import FullySharded, Sharded

from ..data_parallel.training import Make
from .clocks import Case, Clock

LAYERS, WEIGHTS = 4, 256
FORWARD, BACKWARD = 0.030, 0.060  # seconds of a layer
COMPUTE = LAYERS * (FORWARD + BACKWARD)
PASS = 0.020  # seconds that a rank takes to send all of a layer but an n-th: a gather, a reduction, half an all-reduce
SLOW = 0.075  # the same on a network that is slower than the layers


def second_step(make: Make, seconds_per_pass: float, clock: Clock) -> float:
    """Seconds of a step after a first one, in which things are made, and orders are learned. To be run on every rank.

    Args:
        make: the form.
        seconds_per_pass: that a rank takes to send all of a layer but an n-th.
        clock: by which layers sleep and messages travel.
    """
    from tests.overlap.slow_network import slow_group  # a class of torch's kind does not travel to a rank

    n = dist.get_world_size()
    model = sleeping_model(LAYERS, WEIGHTS, FORWARD, clock.sleep)
    form = make(model, slow_group(seconds_per_pass / (4 * WEIGHTS * (n - 1) / n), clock))
    one_step(form, model)
    dist.barrier()
    began = clock.monotonic()
    one_step(form, model)
    return clock.monotonic() - began


def one_step(form: DataParallel, model: nn.Module) -> None:
    """Without an optimizer."""
    with form.micro_batch(last=True):
        model(torch.zeros(())).backward()
    form.reduce_gradients()
    form.end_step()


def case(make: Make, seconds_per_pass: float, seconds: float) -> Case:
    """Two ranks that take such a step."""
    return Case(2, partial(second_step, make, seconds_per_pass), seconds)


ALL_REDUCES = LAYERS * 2 * PASS
DDP = partial(DistributedDataParallel, bucket_bytes=0)  # a bucket for each layer

CASES: Mapping[str, Case] = MappingProxyType(
    {
        "naive: the sum": case(partial(Replicated, reduce=naive), PASS, COMPUTE + ALL_REDUCES),
        "flat: the sum": case(partial(Replicated, reduce=flat), PASS, COMPUTE + ALL_REDUCES),
        "DDP in one bucket: the sum": case(DistributedDataParallel, PASS, COMPUTE + ALL_REDUCES),
        "DDP: all but the last bucket hides behind backward": case(DDP, PASS, COMPUTE + 2 * PASS),
        # the first bucket leaves when the last layer is done; from then on the network is never idle
        "DDP, slow network: all but one layer's backward hides behind it": case(
            DDP, SLOW, LAYERS * FORWARD + BACKWARD + LAYERS * 2 * SLOW
        ),
        # parameters can be gathered when they are updated, which is when there is nothing to compute
        "ZeRO-1: reductions hide, gathers do not": case(
            partial(Sharded, stage=1, bucket_bytes=0), PASS, COMPUTE + PASS + LAYERS * PASS
        ),
        "ZeRO-2: reductions hide, gathers do not": case(
            partial(Sharded, stage=2, bucket_bytes=0), PASS, COMPUTE + PASS + LAYERS * PASS
        ),
        "FSDP without prefetch: the sum": case(
            partial(FullySharded, prefetch=False), PASS, COMPUTE + LAYERS * 3 * PASS
        ),
        # the first gather of forward, the first one of backward, and the last reduction
        "FSDP: only the ends are waited for": case(FullySharded, PASS, COMPUTE + 3 * PASS),
        "FSDP, gathered once: one end less": case(
            partial(FullySharded, reshard_after_forward=False), PASS, COMPUTE + 2 * PASS
        ),
        # all three passes of each layer, and the last layer's forward, during which there is nothing to send
        "FSDP, slow network: compute hides behind it": case(FullySharded, SLOW, LAYERS * 3 * SLOW + FORWARD),
    }
)
