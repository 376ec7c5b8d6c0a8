"""The step of 64 H100s: a learner's order and all-reduce, run at their real number of ranks, and priced by a model.

Llama 3 8B in 8 stages and 8 replicas. Stages compute for as long as the planner predicts; the order is simulated. The
all-reduce of a stage's gradients runs on 8 ranks here, with a small tensor, and its messages are replayed on a network
whose bandwidth is smaller by as much as the tensor is. So each run gives the same seconds, on whatever machine.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from reference.cluster import Cluster
from reference.collectives import all_reduce
from reference.models import preset
from reference.pipeline_parallel import orders
from reference.pipeline_parallel.schedule import Schedule
from reference.pipeline_parallel.simulate import Costs, simulate
from reference.planning.hardware import GpuCluster, gpu
from reference.planning.job import Job
from reference.planning.layouts import Layouts
from reference.planning.predict import predict
from reference.trace import Trace
from reference.trace.network import INFINIBAND_NDR, Link, Network
from reference.zero_bubble import orders as zero_bubble

from ..grading.schedules import Pipe

MODEL, GPUS, STAGES, REPLICAS, WINDOWS, TOKENS = "llama3-8b", 64, 8, 8, 128, 8192
SMALL = 512  # elements of the tensor that is summed here
OF_GRADIENTS, OF_ACTIVATIONS = 4, 2  # bytes of an element
ALL_REDUCES = ("ring_all_reduce", "halving_doubling", "recursive_doubling", "wrong_ring", "naive_all_reduce")
ORDERS = {
    "pipeline_parallel.gpipe_order": orders.gpipe,
    "pipeline_parallel.one_f_one_b_order": orders.one_f_one_b,
    "zero_bubble.zb_h1_order": zero_bubble.zb_h1,
}


def summed(function: Callable[..., Any], elements: int) -> None:
    """On a rank: one all-reduce."""
    function(torch.ones(elements), group=dist.group.WORLD)


def replayed(trace: Trace, elements: int, size: int, nodes: int, per_node: int, links: tuple[Link, Link]) -> float:
    """Seconds of a trace whose tensor had `elements` of 4 bytes, where it has `size` bytes.

    Args:
        links: within a node, and between nodes.
    """
    times = size / (4 * elements)
    intra, inter = (Link(link.name, link.alpha, link.beta / times) for link in links)
    return trace.replay(Network.cluster(nodes, per_node, intra, inter)).duration


def own_all_reduce(functions: Mapping[str, Any]) -> Callable[..., Any]:
    """The learner's, best first; a ring of the reference where there is none."""
    named = (f"collectives.{name}" for name in ALL_REDUCES)
    return next((functions[name] for name in named if name in functions), all_reduce.ring)


def ordered(function: Callable[..., Any], p: int, m: int) -> list[list[str]]:
    """On a rank: the lines of p ranks, as text."""
    return [[str(each) for each in function(rank, p, m)] for rank in range(p)]


def own_order(function: Callable[..., Any], cluster: Cluster, p: int, m: int) -> Schedule:
    """What a learner's function orders p ranks to compute; it is called on walled-in ranks.

    Raises:
        BadInput: if that is no step of training.
    """
    pipe = Pipe.straight(range(p), m)
    schedule = pipe.schedule(cluster.run(ordered, function, p, m)[0])
    pipe.prove(schedule)
    return schedule


def schedules(functions: Mapping[str, Any], cluster: Cluster, p: int, m: int) -> dict[str, Schedule]:
    """The learner's orders, by puzzle; the reference's 1F1B where there is none."""
    own = {name: own_order(functions[name], cluster, p, m) for name in ORDERS if name in functions}
    return own or {"1F1B of the reference": orders.one_f_one_b(p, m)}


def step_of_64(functions: Mapping[str, Any], eight: Cluster) -> dict[str, float]:
    """Seconds of the step, and of its parts.

    Args:
        functions: a learner's, by puzzle.
        eight: as many ranks.

    Raises:
        BadInput: if an order is no step of training.
    """
    job = Job(preset(MODEL), GpuCluster(gpu("h100"), GPUS), sequence=TOKENS, batch=WINDOWS)
    predicted = predict(job, Layouts(pp=STAGES, dp=REPLICAS))
    m = int(predicted.layouts.micro_batches(job))
    layers, head = (float(predicted.time[name]) / (3 * m) for name in ("layers", "head"))
    each = [layers] * (STAGES - 1) + [layers + head]  # of forward, and of either half of backward
    size = TOKENS * job.model.width * OF_ACTIVATIONS
    costs = Costs(each, each, each, message=INFINIBAND_NDR.time(size), unit="s")
    computed = min(simulate(each, costs).longest for each in schedules(functions, eight, STAGES, m).values())
    gradients = OF_GRADIENTS * job.model.parameters / STAGES
    function = own_all_reduce(functions)
    _, trace = eight.trace(summed, function, SMALL)
    links = (INFINIBAND_NDR, INFINIBAND_NDR)
    sums = replayed(trace, SMALL, int(gradients), REPLICAS, 1, links)
    update = float(predicted.time["optimizer"] + predicted.time["step"])
    busy = (layers * STAGES + head) * 3 * m / STAGES
    return {
        "stages": computed,
        "of which they wait": computed - busy,
        "sums of gradients": sums,
        "update": update,
        "step": computed + sums + update,
        "tokens/s": WINDOWS * TOKENS / (computed + sums + update),
    }
