"""A step before it runs: when each gradient is known, when its bucket leaves, and what of that hides behind backward.

    computing        |forward            |layer 3 |layer 2 |layer 1 |layer 0 |
    communication                                 |  bucket  |  bucket  |      |bucket|
                                                                             |<- tail ->|

Backward goes from the last layer to the first. A bucket leaves when all of its gradients are known and the bucket
before it has arrived: an all-reduce has the network to itself. What has not arrived when backward ends is the tail, and
the tail is all that data parallelism costs. With one bucket for everything nothing hides; with a bucket for each
parameter all but the first layer's gradients could, but each pays a latency.

If Ψ parameters make gradients of b bytes each, backward takes 4ΨT/F seconds for T tokens on a GPU of F FLOP/s, and an
all-reduce sends 2bΨ bytes through links of β bytes/s. Both grow with Ψ: so what hides does not depend on the size of
the model, but on whether T is at least bF/(2β).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from reference.data_parallel.buckets import in_order_of_use
from reference.errors import BadInput
from reference.models import GPT, GPTConfig, require_gpt
from reference.trace.activity import Activity, Doing

AllReduceTime = Callable[[float], float]
"""Bytes of a tensor to the seconds that its all-reduce takes."""


@dataclass(frozen=True)
class LayerCost:
    """What is computed in one piece. The gradients of its parameters are known when its backward ends."""

    name: str
    forward: float  # seconds
    backward: float  # seconds
    parameters: tuple[nn.Parameter, ...]  # on any device, meta included; gradients are as large


def step(layers: Sequence[LayerCost], bucket_bytes: float, all_reduce: AllReduceTime) -> list[Activity]:
    """What every rank does in a step: forward, backward, and an all-reduce for each bucket.

    Args:
        layers: in the order of forward.
        bucket_bytes: as for `DistributedDataParallel`. 0: each gradient alone; infinite: all together, after backward.
        all_reduce: how long one takes.
    """
    done, now, known = [], 0.0, {}
    for layer in layers:
        done.append(Activity(Doing.FORWARD, layer.name, now, now + layer.forward))
        now = done[-1].end
    for layer in reversed(layers):
        done.append(Activity(Doing.BACKWARD, layer.name, now, now + layer.backward))
        now = done[-1].end
        known |= dict.fromkeys(layer.parameters, now)
    arrived = 0.0
    for bucket in in_order_of_use([p for layer in layers for p in layer.parameters], bucket_bytes):
        size = sum(parameter.nbytes for parameter in bucket)
        leaves = max(arrived, *(known[parameter] for parameter in bucket))
        arrived = leaves + all_reduce(size)
        done.append(Activity(Doing.COMMUNICATION, "all_reduce", leaves, arrived, size))
    return done


def seconds(step: Sequence[Activity]) -> float:
    """How long a step takes, up to the optimizer."""
    return max(activity.end for activity in step)


def tail(step: Sequence[Activity]) -> float:
    """Seconds that a step takes longer than computing alone."""
    return seconds(step) - max(activity.end for activity in step if activity.doing is not Doing.COMMUNICATION)


def gpt_layers(config: GPTConfig, tokens: int, flops: float) -> list[LayerCost]:
    """The layers of a GPT on one GPU, with gradients in bf16. Nothing is allocated.

    Args:
        config: of the model; not tied.
        tokens: T, of this GPU in a step.
        flops: F, what the GPU reaches, in FLOP/s.

    Raises:
        BadInput: for a tied config, whose table is in two layers.

    A matrix of m numbers takes 2mT FLOPs forward and 4mT backward. What has no matrix (looking up an embedding, norms)
    takes no time here, and attention scores are left out: in a model of 8 billion parameters 8 % more for sequences of
    4,096 tokens and 15 % for 8,192, where a kernel skips the masked half, else twice that.
    """
    require_gpt(config)
    if config.tied:
        raise BadInput("a tied table has its gradient from the first layer and from the last: forecast an untied model")
    with torch.device("meta"):
        model = GPT(config).to(torch.bfloat16)
    blocks = {f"block {number}": [block] for number, block in enumerate(model.blocks)}
    layers = []
    for name, modules in {"embedding": [model.embedding], **blocks, "head": [model.norm, model.head]}.items():
        parameters = tuple(parameter for module in modules for parameter in module.parameters())
        matrices = 0 if name == "embedding" else sum(p.numel() for p in parameters if p.dim() == 2)
        forward = 2 * matrices * tokens / flops
        layers.append(LayerCost(name, forward, 2 * forward, parameters))
    return layers
