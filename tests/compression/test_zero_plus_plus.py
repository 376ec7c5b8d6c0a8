"""ZeRO++ in a plan: hpZ is exact, all else near, and what travels is what the formulas and the paper say."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from reference.choices import WireFormat
from reference.cluster import Cluster
from reference.collectives.communicator import ByHand, Finish
from reference.collectives.default import Communicate, over
from reference.collectives.fast.dispatch import Fastest
from reference.compression.cost import FewerBits
from reference.compression.formats import FORMATS
from reference.compression.lab.volume import NodeVolume, left_node, published
from reference.compression.quantised import Quantised
from reference.config import TrainConfig
from reference.errors import BadInput
from reference.memory.precision import PRECISIONS, Precision
from reference.models import GPTConfig, preset
from reference.oracle import largest_difference, on_ranks, one_process
from reference.parallelize import DataParallelism, Plan
from reference.trace import Link, Network, Op, Trace
from reference.train import Training

Clusters = Callable[..., Cluster]
FSDP, HSDP = DataParallelism.FSDP, DataParallelism.HSDP
MODEL = GPTConfig(layers=2, width=16, heads=4, kv_heads=2, hidden=24, tied=True)
EXACT = TrainConfig(MODEL, steps=3, batch=8, sequence=8, warmup=2, precision=PRECISIONS["fp64"])
BITS = {"quantize_weights": WireFormat.INT8, "quantize_gradients": WireFormat.INT4}
ALL = Plan(FSDP, secondary_shards=2, ranks_per_node=2, **BITS)
PLANS = {
    "qwZ": Plan(FSDP, quantize_weights=WireFormat.INT8),
    "hpZ": Plan(FSDP, secondary_shards=2),
    "qgZ, one level": Plan(FSDP, quantize_gradients=WireFormat.INT4),
    "qgZ": Plan(FSDP, quantize_gradients=WireFormat.INT4, ranks_per_node=2),
    "ZeRO++": ALL,
    "ZeRO++, two micro-batches": replace(ALL, micro_batches=2),
    "fp8": Plan(FSDP, quantize_weights=WireFormat.MXFP8, quantize_gradients=WireFormat.NVFP4, secondary_shards=4),
}


class Late(Fastest):
    """Whose gathers are not there before they have been waited for."""

    def start_all_gather(self, x: Tensor, out: Tensor) -> Finish:
        out.fill_(torch.nan)

        def finish() -> Tensor:
            self.all_gather(x, out)
            return out

        return finish


@pytest.mark.parametrize(
    ("plan", "communicate"),
    [
        (Plan(FSDP, secondary_shards=2), over),
        (Plan(FSDP, secondary_shards=2, micro_batches=2), Late),
        (Plan(FSDP, secondary_shards=4), over),
        (Plan(HSDP, dp_replicate=2, secondary_shards=2), over),
        (Plan(FSDP, secondary_shards=2, context_parallel=2), over),
        (Plan(FSDP, secondary_shards=2, pipeline_parallel=2, micro_batches=4), Late),
    ],
    ids=["alone", "late gathers", "one node", "hsdp", "windows shared", "pipeline"],
)
def test_a_second_copy_changes_nothing(clusters: Clusters, plan: Plan, communicate: Communicate) -> None:
    """Three steps, so that a copy that outlives its step is seen; late, so that one that is cut too early is."""
    oracle = one_process(EXACT)
    for mine in clusters(4).run(lambda: on_ranks(EXACT, dist.group.WORLD, plan=plan, communicate=communicate)):
        assert max(largest_difference(mine, oracle).values()) < 1e-10


NEAR = {
    "hsdp": replace(ALL, data_parallel=HSDP, dp_replicate=2),
    "matrices split": replace(ALL, tensor_parallel=2),
    "pipeline": replace(ALL, pipeline_parallel=2, micro_batches=4),
    "windows shared": replace(ALL, context_parallel=2, micro_batches=2),
}


def test_fewer_bits_go_with_all_axes(clusters: Clusters) -> None:
    """Three steps are near those of one process: what is added twice, or not at all, is off by more."""
    oracle = one_process(EXACT)
    for name, plan in NEAR.items():
        mine = clusters(4).run(lambda plan=plan: on_ranks(EXACT, dist.group.WORLD, plan=plan))[0]
        found = largest_difference(mine, oracle)
        assert 1e-10 < found["losses"] < 0.01, (name, found)
        assert found["gradient norms"] < 0.1, (name, found)


BF16 = Precision(torch.bfloat16, torch.bfloat16, torch.float32)


def one_step(config: TrainConfig, plan: Plan, communicate: Communicate) -> tuple[list[int], list[int]]:
    """Two steps, of which the second is what lies between two barriers.

    Returns:
        Elements of each unit, and bytes of the second copies that this rank has before the step ends.
    """
    training = Training(config, dist.group.WORLD, torch.device("cpu"), plan, communicate)
    for step in range(2):
        if step:
            dist.barrier()
        training.backward(step)
        copies = [0 if unit.second_copy is None else unit.second_copy.nbytes for unit in training.form.units]
        training.form.end_step()
        assert all(unit.second_copy is None for unit in training.form.units)
    dist.barrier()
    return [unit.layout.numel for unit in training.form.units], copies


def stepped(cluster: Cluster, config: TrainConfig, plan: Plan, communicate: Communicate = over) -> tuple:
    """Units, bytes of second copies, and the trace of a step."""
    found, trace = cluster.trace(one_step, config, plan, communicate)
    parts = []
    for events in trace.events:
        begin, end = [at for at, event in enumerate(events) if event.op is Op.BARRIER][-2:]
        parts.append(tuple(events[begin + 1 : end]))
    return *found[0], Trace(trace.world_size, tuple(parts))


def formula(plan: Plan, ranks: int) -> FewerBits:
    formats = FORMATS.get(plan.quantize_weights), FORMATS.get(plan.quantize_gradients)
    return FewerBits(ranks, *formats, plan.secondary_shards, plan.ranks_per_node, FORMATS["int8"])


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_a_step_sends_what_the_formula_says(clusters: Clusters, plan: Plan) -> None:
    """Each part of ZeRO++ alone and together; nothing falls back to more bits. And a copy takes what it should.

    (A tied table is gathered a third time, for the head.)
    """
    config = TrainConfig(replace(MODEL, tied=False), batch=8, sequence=8, precision=BF16)
    units, copies, trace = stepped(clusters(4), config, plan)
    cost = formula(plan, 4)
    assert trace.bytes_sent == [cost.sent(units, plan.micro_batches)] * 4
    assert sum(copies) == cost.second_copy(units)


WIDE = GPTConfig(layers=2, width=128, heads=4, kv_heads=4, hidden=256)


def test_what_leaves_a_node_is_what_was_published(clusters: Clusters) -> None:
    """3 M becomes 0.75 M, times (n-1)/n around a ring of n ranks and (N-1)/N between N nodes; scales add 2 to 4 %.

    So on a slow link a step takes half of the time or less: replayed, as all that it sends is known.
    """
    n, nodes, table, seconds = 8, 2, published(), {}
    plans = {"ZeRO-3": Plan(FSDP), "ZeRO++": Plan(FSDP, secondary_shards=4, ranks_per_node=4, **BITS)}
    config = TrainConfig(WIDE, batch=8, sequence=8, precision=BF16)
    slow = Network(Link("node", 1e-5, 1e9), Link("100 Mb/s", 1e-4, 12.5e6), n // nodes, n, shared=True)
    for scheme, plan in plans.items():
        units, _, trace = stepped(clusters(n), config, plan, ByHand)
        ring, between = (n - 1) / n, (nodes - 1) / nodes
        around = ring if scheme == "ZeRO-3" else between
        of = table[scheme]
        expected = NodeVolume(of.forward * ring, of.backward * ring, of.gradients * around).total
        found = left_node(trace, range(n // nodes)) / (2 * sum(units))
        assert expected <= found <= expected * (1.0 if scheme == "ZeRO-3" else 1.03)
        assert found <= of.total
        seconds[scheme] = trace.replay(slow).duration
    assert seconds["ZeRO-3"] > 2 * seconds["ZeRO++"], seconds


REFUSED = {
    "quantised weights": ({"quantize_weights": WireFormat.INT8}, "are of fsdp and hsdp, not of flat"),
    "no gradients": ({"data_parallel": FSDP, "ranks_per_node": 2}, "take --quantize-gradients"),
    "no node": ({"data_parallel": FSDP, "secondary_shards": 0}, "1 rank or more, not 0"),
}


@pytest.mark.parametrize(("fields", "said"), REFUSED.values(), ids=REFUSED)
def test_what_makes_no_sense_is_refused(fields: dict, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        Plan(**fields)


def test_nodes_must_divide_the_ranks_that_share_parameters() -> None:
    with pytest.raises(BadInput, match="4 ranks that share parameters do not divide into nodes of 3"):
        Plan(FSDP, secondary_shards=3).require_fit(4, MODEL)


LEARNT = TrainConfig(GPTConfig(2, 48, 4, 4, 128), steps=60, batch=8, sequence=64, warmup=10)
DISTANCE = 0.02  # nats per token, of the mean of the last ten losses


def last_losses(plan: Plan, communicate: Communicate = over) -> float:
    return sum(on_ranks(LEARNT, dist.group.WORLD, plan=plan, communicate=communicate).losses[-10:]) / 10


@pytest.mark.parametrize("node", [{"secondary_shards": 2}, {"ranks_per_node": 2, **BITS}], ids=["hpZ", "qgZ"])
def test_experts_are_on_other_nodes_and_are_refused(node: dict) -> None:
    """A second copy of an expert would be on the ranks with that expert, which are fewer, and not those of a node."""
    with pytest.raises(BadInput, match="experts are shared among other ranks than the rest, in nodes of another size"):
        Plan(FSDP, expert_parallel=2, **node).require_fit(4, preset("moe-tiny"))


def test_it_learns_what_full_precision_does(clusters: Clusters) -> None:
    """On the demo's text. Any strategy may be given fewer bits: DDP's all-reduces, too."""
    cluster, int8 = clusters(4), FORMATS["int8"]
    exact = cluster.run(last_losses, Plan(FSDP))[0]
    assert exact < 3.4  # of 5.5 in the beginning
    found = {
        "ZeRO++": cluster.run(last_losses, ALL)[0],
        "DDP": cluster.run(last_losses, Plan(DataParallelism.DDP), partial(Quantised, reduced=int8))[0],
    }
    assert {name: loss for name, loss in found.items() if abs(loss - exact) > DISTANCE} == {}
