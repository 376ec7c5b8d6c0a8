"""Seconds of a step: counted work and messages over a GPU's rates, each stretched by a factor that was fitted.

A layer's seconds on a rank are a sum, since kernels follow each other:

    products:   FLOPs / peak · a  +  bytes that they write / bandwidth · b
    attention:  FLOPs / peak · c
    between:    bytes / bandwidth · d
    kernels:    so many microseconds for each, whatever it does

Communication is what the rings' rates allow, stretched, with a latency for each doubling of ranks. Of it, what has
something to hide behind is hidden: FSDP's gathers behind the layer that is computed, gradients behind the backward.
A pipeline adds its bubble, by schedule. A step is then

    m micro-batches of the slowest stage  +  bubble  +  gradients' sum that is not hidden  +  optimizer.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from . import memory, stages, traffic, work
from .bubbles import bubble
from .job import Job, Numbers
from .layouts import Column, Layouts, Sharding
from .traffic import Group, Volume
from .work import Work


@dataclass(frozen=True)
class Constants:
    """How far a kind of GPU stays behind its data sheet: one set for each kind, fitted in `fit.py`.

    What stands here is where the fit begins: round numbers that an engineer would guess.

    Attributes:
        products, products_fp8: stretch FLOPs, on top of what the best of many large products reached.
        written, moved: stretch bytes, that products write and that move between them.
        eager: stretches the latter once more in layers under FSDP, which run kernel by kernel as PyTorch has them.
        attention: stretches FLOPs of flash attention, over the data sheet's.
        kernel: seconds of each kernel, whatever it does.
        experts: stretches what a layer's experts and their rows take.
        intra, inter: stretch bytes on links, within nodes and between them.
        latency: seconds of each doubling of ranks in a collective.
        shared: how groups inside a node slow each other: k of them take k ** shared times as long as one alone. At 0
            each has rates of its own, at 1 they share those of one.
        tensor, pipe: the part of messages along these axes that is waited for.
        gathers: how much computing FSDP's messages hide behind, as a part of a layer's.
        sums: how much computing sums of gradients hide behind, as a part of one micro-batch's.
        seen: the part of hidden messages that slows computing all the same, since they take processors and bandwidth.
        step: seconds of each step, whatever it does.
    """

    products: float = 1.08
    products_fp8: float = 1.3
    written: float = 1.0
    attention: float = 3.0
    moved: float = 1.4
    eager: float = 2.2
    kernel: float = 3e-5
    experts: float = 1.5
    intra: float = 1.3
    inter: float = 1.5
    latency: float = 1.2e-5
    shared: float = 1.0
    tensor: float = 0.9
    pipe: float = 0.9
    gathers: float = 0.8
    sums: float = 0.3
    seen: float = 0.3
    step: float = 0.03


def layer_seconds(job: Job, layouts: Layouts, each: Work, constants: Constants) -> Column:
    """Of counted work."""
    gpu = job.cluster.gpu
    moved = constants.moved * (constants.eager if layouts.sharding is Sharding.FSDP else 1.0)
    if job.numbers is Numbers.FP8:
        products = each.flops / (gpu.peak_fp8 * gpu.reached) * constants.products_fp8
    else:
        products = each.flops / (gpu.peak * gpu.reached) * constants.products
    busy = (
        products
        + each.written / gpu.bandwidth * constants.written
        + each.attention / gpu.peak * constants.attention
        + each.moved / gpu.bandwidth * moved
    )
    return busy + each.kernels * constants.kernel


def message_seconds(job: Job, messages: Volume, group: Group, constants: Constants) -> Column:
    """Of collectives around a ring."""
    stretched = np.where(group.ranks > group.on_node, constants.inter, constants.intra * group.beside**constants.shared)
    return messages.bytes / group.rate(job.cluster) * stretched + messages.calls * group.steps * constants.latency


def parts(job: Job, layouts: Layouts, constants: Constants) -> Mapping[str, Column]:
    """Seconds of a step by part; they add up to it.

    Returns:
        What the slowest stage computes, "layers" and "head"; what it waits for along "tp", "cp", "ep", "pp", "dp"; the
        "bubble"; the "optimizer"; and what each "step" takes whatever it does.
    """
    m, p = layouts.micro_batches(job), layouts.pp
    groups = traffic.groups(job, layouts)
    held = stages.held(job, layouts)

    def waited(along: Callable[[Job, Layouts, Group], Volume], axis: str) -> Column:
        return message_seconds(job, along(job, layouts, groups[axis]), groups[axis], constants)

    computing = mean_layer_seconds(job, layouts, constants)
    tp = constants.tensor * waited(traffic.along_tensor, "tp")
    scores = layer_seconds(job, layouts, work.scores(job, layouts).all, constants)
    cp = not_hidden(waited(traffic.along_context, "cp"), scores, constants)
    ep = work.expert_share(job) * constants.experts * waited(traffic.along_experts, "ep")
    pipe = constants.pipe * message_seconds(job, traffic.along_pipe(job, layouts), groups["pp"], constants)

    each = computing + tp + cp + ep  # seconds of a layer for one micro-batch
    stage = held.layers * each
    thirds = 3 * (stage / 3,)  # forward, and the halves of backward
    end = layer_seconds(job, layouts, work.head(job, layouts).all, constants)
    head = np.where(p > 1, np.maximum(0.0, end - held.relief * each), end)  # beyond what other stages take
    data = _data_seconds(job, layouts, groups, constants, computing * held.layers)
    dense, experts = memory.held_parameters(job, layouts, held.layers)
    if layouts.sharding is not Sharding.NONE:
        dense, experts = dense / groups["dp"].ranks, experts / groups["edp"].ranks
    return {
        "layers": m * held.layers * computing,
        "head": m * head,
        "tp": m * held.layers * tp,
        "cp": m * held.layers * cp,
        "ep": m * held.layers * ep,
        "pp": m * pipe,
        "dp": data,
        "bubble": bubble(layouts, m, *thirds) * (1 - held.relief / (held.layers * np.maximum(p - 1, 1))),
        "optimizer": (dense + experts) * OPTIMIZER / job.cluster.gpu.bandwidth,
        "step": constants.step + 0.0 * m,
    }


def mean_layer_seconds(job: Job, layouts: Layouts, constants: Constants) -> Column:
    """Computing of one layer for one micro-batch, as layers are in the mean."""
    share = work.expert_share(job)
    dense = layer_seconds(job, layouts, work.layer(job, layouts, experts=False).all, constants)
    if not share:
        return dense
    fed = layer_seconds(job, layouts, work.feed_forward(job, layouts, job.model.hidden).all, constants)
    routed = layer_seconds(job, layouts, work.mixture(job, layouts).all, constants) * constants.experts
    return dense + share * (routed - fed)


def _data_seconds(
    job: Job, layouts: Layouts, groups: Mapping[str, Group], constants: Constants, stage: Column
) -> Column:
    """What is waited for along data axes, where `stage` is what a rank's layers take for one micro-batch."""
    numbers = memory.held_parameters(job, layouts, stages.held(job, layouts).layers)
    volumes = [
        (traffic.along_data(of_axis, layouts, groups[axis]), groups[axis])
        for of_axis, axis in zip(numbers, ("dp", "edp"), strict=True)
    ]
    often, once = (
        sum(message_seconds(job, volume[when], group, constants) for volume, group in volumes) for when in (0, 1)
    )
    behind = constants.gathers if layouts.sharding is Sharding.FSDP else constants.sums
    each = layouts.micro_batches(job) * not_hidden(often, behind * stage, constants)
    return each + not_hidden(once, constants.sums * stage, constants)


def not_hidden(messages: Column, behind: Column, constants: Constants) -> Column:
    """Seconds of messages that are waited for where so many seconds of computing may hide them."""
    return np.maximum(messages - behind, constants.seen * messages)


OPTIMIZER = 4 + 4 + 8 + 4 + 8 + 2  # bytes that an update of one parameter reads and writes: gradient, master, moments
