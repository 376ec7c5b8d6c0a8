"""Seconds of a step: counted work and messages over a GPU's rates, each stretched by a factor that was fitted.

A layer's seconds on a rank are a sum, since kernels follow each other:

    products:   FLOPs / peak · a  +  bytes that they touch / bandwidth · b
    attention:  FLOPs / peak · c
    between:    bytes / bandwidth · d
    kernels:    at least so many microseconds for each, whatever it does

Communication is what the rings' rates allow, stretched, with a latency for each doubling of ranks. Of it, what has
something to hide behind is hidden: FSDP's gathers behind the layer that is computed, gradients behind the backward.
A pipeline adds its bubble, by schedule. A step is then

    m micro-batches of the slowest stage  +  bubble  +  gradients' sum that is not hidden  +  optimizer.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from reference.plan import PipelineSchedule

from . import memory, traffic, work
from .job import Job, Numbers
from .layouts import Column, Layouts, Sharding
from .traffic import Group, Volume
from .work import Work


@dataclass(frozen=True)
class Constants:
    """How far a kind of GPU stays behind its data sheet: one set for each, fitted in `fit.py`.

    Factors are at least 1 where they stretch; times are in seconds.
    """

    products: float = 1.0  # on top of what the best of many large products reached
    products_fp8: float = 1.0
    touched: float = 1.0
    attention: float = 2.0
    moved: float = 1.5
    kernel: float = 5e-6
    intra: float = 1.3
    inter: float = 1.3
    latency: float = 1e-5  # of each doubling of ranks in a collective
    tensor: float = 1.0  # the part of tensor parallelism's messages that is waited for
    data: float = 1.0  # the part of a backward that sums of gradients do not hide behind
    hidden: float = 0.8  # the part of computing behind which FSDP's messages hide
    pipe: float = 1.0  # the part of messages between stages that is waited for
    step: float = 0.0  # of each step, whatever it does


def layer_seconds(job: Job, each: Work, constants: Constants) -> Column:
    """Of counted work."""
    gpu = job.cluster.gpu
    if job.numbers is Numbers.FP8:
        products = each.flops / (gpu.peak_fp8 * gpu.reached) * constants.products_fp8
    else:
        products = each.flops / (gpu.peak * gpu.reached) * constants.products
    busy = (
        products
        + each.touched / gpu.bandwidth * constants.touched
        + each.attention / gpu.peak * constants.attention
        + each.moved / gpu.bandwidth * constants.moved
    )
    return np.maximum(busy, each.kernels * constants.kernel)


def message_seconds(job: Job, messages: Volume, group: Group, constants: Constants) -> Column:
    """Of collectives around a ring."""
    stretched = np.where(group.ranks > group.on_node, constants.inter, constants.intra)
    return messages.bytes / group.rate(job.cluster) * stretched + messages.calls * group.steps * constants.latency


def parts(job: Job, layouts: Layouts, constants: Constants) -> Mapping[str, Column]:
    """Seconds of a step by part; they add up to it.

    Returns:
        "products", "attention", "memory", "kernels", "head", and along axes "tp", "cp", "ep", "pp", "dp"; "bubble",
        "optimizer", "step".
    """
    m, p = layouts.micro_batches(job), layouts.pp
    groups = traffic.groups(job, layouts)
    layers = job.model.layers / p

    computing = layer_seconds(job, work.mean_layer(job, layouts).all, constants)
    end = layer_seconds(job, work.head(job, layouts).all, constants)

    def waited(along: Callable[[Job, Layouts, Group], Volume], axis: str) -> Column:
        return message_seconds(job, along(job, layouts, groups[axis]), groups[axis], constants)

    tp = constants.tensor * waited(traffic.along_tensor, "tp")
    scores = layer_seconds(job, work.scores(job, layouts).all, constants)
    cp = np.maximum(0.0, waited(traffic.along_context, "cp") - scores)
    ep = work.expert_share(job) * waited(traffic.along_experts, "ep")
    pipe = constants.pipe * message_seconds(job, traffic.along_pipe(job, layouts), groups["pp"], constants)

    dense, experts = memory.parameters(job, layouts, layers)
    ends = np.where((p == 1) & (not job.model.tied), 2, 1) * memory.table(job, layouts)
    summed = message_seconds(
        job, traffic.along_data(dense + ends, layouts, groups["dp"]), groups["dp"], constants
    ) + message_seconds(job, traffic.along_data(experts, layouts, groups["edp"]), groups["edp"], constants)
    if layouts.sharding is Sharding.FSDP:
        data = m * np.maximum(0.0, summed - constants.hidden * layers * computing)
    else:
        data = constants.data * summed

    middle = layers * (computing + tp + cp + ep)  # seconds of a stage's layers, for one micro-batch
    lengths = np.where(p > 1, end, 0.0)
    bubble = _bubble(layouts, middle, lengths, m)
    held = (dense + ends) / (layouts.dp * layouts.cp if layouts.sharding is not Sharding.NONE else 1.0) + experts
    optimizer = held * OPTIMIZER / job.cluster.gpu.bandwidth * constants.moved
    return {
        "layers": m * layers * computing,
        "head": m * end,
        "tp": m * layers * tp,
        "cp": m * layers * cp,
        "ep": m * layers * ep,
        "pp": m * pipe,
        "dp": data,
        "bubble": bubble,
        "optimizer": optimizer,
        "step": constants.step + 0.0 * m,
    }


OPTIMIZER = 4 + 4 + 8 + 4 + 8 + 2  # bytes that an update of one parameter reads and writes: gradient, master, moments


def _bubble(layouts: Layouts, stage: Column, end: Column, m: Column) -> Column:
    """Seconds in which the last stage's rank waits: what the others take before its first micro-batch and after it.

    In units of a stage's forward F, backward for inputs I and for weights W, each a third.
    """
    p, v = layouts.pp, layouts.chunks
    match layouts.schedule:
        case PipelineSchedule.INTERLEAVED | PipelineSchedule.INTERLEAVED_EVEN | PipelineSchedule.BREADTH_FIRST:
            waits = (p - 1) / v
        case PipelineSchedule.ZB_H1 | PipelineSchedule.ONE_F_ONE_B_V:
            waits = (p - 1) / 3
        case PipelineSchedule.ZB_H2 | PipelineSchedule.ZB_V | PipelineSchedule.DUAL_PIPE_V:
            waits = 0.0 * p
        case PipelineSchedule.V_HALF | PipelineSchedule.V_MIN:
            waits = (p - 1) / 2
        case _:
            waits = p - 1
    return waits * stage
