"""Less at a time, and later: a fragment of the layers, a message under way, a few elements and no word of which."""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from reference.decentralized.parabola import inner_step


def stream_a_fragment(
    layers: list[Tensor],
    anchors: list[Tensor],
    fragment: int,
    fragments: int,
    rate: float,
    keep_own: float,
    group: ProcessGroup,
) -> None:
    """An outer step of SGD for each `fragments`-th layer, from layer `fragment` on, in one message.

    Updates these layers and their anchors in place: a layer keeps `keep_own` of itself, and takes the rest from its
    anchor.
    """
    mine = range(fragment, len(layers), fragments)
    if not mine:
        return
    gradient = torch.cat([(anchors[i] - layers[i]).flatten() for i in mine])
    dist.all_reduce(gradient, group=group)
    gradient /= dist.get_world_size(group)
    for i, change in zip(mine, gradient.split([layers[i].numel() for i in mine]), strict=True):
        anchors[i] -= rate * change.view_as(anchors[i])
        layers[i].mul_(keep_own).add_((1 - keep_own) * anchors[i])


def overlap_with_a_delay(
    weight: Tensor,
    curvature: Tensor,
    target: Tensor,
    rate: float,
    steps: int,
    inner_steps: int,
    delay: int,
    outer_rate: float,
    group: ProcessGroup,
) -> None:
    """DiLoCo with plain SGD outside, whose message has `delay` steps to arrive. Updates `weight` in place."""
    anchor, work = weight.clone(), None
    for taken in range(1, steps + 1):
        inner_step(weight, curvature, target, rate)
        if taken % inner_steps == 0:
            gradient = anchor - weight
            work = dist.all_reduce(gradient, group=group, async_op=True)
        if work is not None and taken % inner_steps == delay:
            work.wait()
            anchor -= outer_rate * gradient / dist.get_world_size(group)
            weight.copy_(anchor)
            work = None
    if work is not None:
        work.wait()


def average_a_few(weight: Tensor, step: int, share: float, group: ProcessGroup) -> None:
    """Average the elements of `weight` that are drawn for this step, in place, and send nothing else."""
    generator = torch.Generator().manual_seed(step)
    chosen = torch.rand(weight.numel(), generator=generator) < share
    values = weight[chosen]
    dist.all_reduce(values, group=group)
    weight[chosen] = values / dist.get_world_size(group)
