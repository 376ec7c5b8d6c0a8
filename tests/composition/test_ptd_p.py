"""The formulas of PTD-P: they agree with simulated schedules, with what ranks say, and with what the paper measured."""

from dataclasses import replace

import pytest
import torch

from reference.composition.answers.axis_bytes import axis_bytes
from reference.composition.lab.published import FIGURE_13, FIGURES_14_AND_15, SELENE, TABLE_1, Row
from reference.composition.ptd_p import (
    HALF,
    Machine,
    Split,
    Transformer,
    batch_seconds,
    border_seconds,
    data_seconds,
    fastest,
    layer_traffic_seconds,
    memory_bytes,
    micro_batch_parts,
    rank_flops,
    splits,
)
from reference.composition.step_shape import StepShape
from reference.composition.traffic import traffic_of_model
from reference.errors import BadInput
from reference.memory.precision import Precision
from reference.mesh import Mesh
from reference.models import GPTConfig
from reference.pipeline_parallel.orders import interleaved, one_f_one_b
from reference.pipeline_parallel.simulate import simulate
from reference.pipeline_parallel.validate import validate
from reference.plan import Plan
from reference.trace import Link, Network

FREE = Link("free", alpha=0.0, beta=1e30)
EVEN = Precision(torch.bfloat16, torch.bfloat16, torch.bfloat16)
"""The paper's: gradients travel in 16 bits."""
SMALL = Transformer(layers=16, width=512, heads=8, sequence=128, vocabulary=1000)


@pytest.mark.parametrize("row", TABLE_1, ids=lambda row: str(row.billions))
def test_the_models_of_the_paper_have_as_many_parameters_as_it_says(row: Row) -> None:
    model = row.model
    assert round(model.parameters / 1e9, 1) == row.billions
    l, h = model.layers, model.width  # noqa: E741, the letters of the paper
    equation_2 = 12 * l * h**2 * (1 + 13 / (12 * h) + (model.vocabulary + model.sequence) / (12 * l * h))
    assert model.parameters == pytest.approx(equation_2, rel=1e-12)


def test_a_step_computes_what_equation_3_says() -> None:
    l, h, s, batch = 96, 16_384, 2048, 2160  # noqa: E741
    model = Transformer(l, h, 128)
    equation_3 = 96 * batch * s * l * h**2 * (1 + s / (6 * h) + model.vocabulary / (16 * l * h))
    assert model.flops(batch) == pytest.approx(equation_3, rel=1e-12)


@pytest.mark.parametrize("row", TABLE_1, ids=lambda row: str(row.billions))
def test_the_model_is_within_5_percent_of_what_was_measured(row: Row) -> None:
    """Three round numbers were chosen to make it so, for ten models over a factor of 600 in size."""
    assert rank_flops(row.model, row.split(), SELENE) == pytest.approx(row.measured, rel=0.05)


@pytest.mark.parametrize(("p", "m", "v"), [(1, 4, 1), (2, 4, 1), (4, 8, 1), (4, 8, 2), (8, 16, 4), (3, 5, 1)])
def test_the_bubble_is_that_of_the_simulated_schedule(p: int, m: int, v: int) -> None:
    """Waiting over computing; a rank computes all of its stages for every micro-batch."""
    done = simulate(one_f_one_b(p, m) if v == 1 else interleaved(p, m, v))
    assert Split(p, 1, 1, m, chunks=v).bubble == pytest.approx(done.longest / done.busy - 1)


def test_a_step_takes_as_many_slots_as_its_simulation() -> None:
    """Equation 1: (B/(d b) + p - 1) times what a micro-batch takes on a rank."""
    quick = Machine(Network.of(FREE), speed=1e12, bandwidth=1e12, pause=1e-6, memory=1e12)
    split = Split(pipeline=4, tensor=1, data=2, batch=32, micro_batch=2)
    slots = simulate(one_f_one_b(4, split.micro_batches)).seconds / 3  # F, I and W of a second each
    slot = sum(micro_batch_parts(SMALL, split, quick).values())
    assert batch_seconds(SMALL, split, quick) == pytest.approx(slots * slot)


@pytest.mark.parametrize(("p", "t", "d"), [(4, 2, 2), (4, 8, 3), (8, 8, 1), (4, 1, 4)])
def test_the_paper_counts_what_a_rank_in_the_middle_says(p: int, t: int, d: int) -> None:
    """`traffic` equals traces to the byte. Of the ends, which the paper leaves out, such a rank has none."""
    config = GPTConfig(layers=16, width=768, heads=8, kv_heads=8, hidden=2048, vocabulary=1000)
    plan = Plan(micro_batches=4, tensor_parallel=t, pipeline_parallel=p, scatter_gather=False)
    work = StepShape(config, plan, p * d * t, windows=2, sequence=128, precision=EVEN)
    sent = dict.fromkeys(("pp", "dp_shard", "tp_head"), 0)
    for one in traffic_of_model(work, work.mesh.rank(pp=1, dp_replicate=0, dp_shard=0, cp=0, tp_head=0, tp_copy=0)):
        sent[one.axis] += one.bytes
    pipe, data, tensor = axis_bytes(p, d, t, 8 * d, 2, config.layers, config.width, 128)
    norms = config.layers // p * 2 * config.width  # of which a layer of 12 h² weights knows nothing
    assert list(sent.values()) == [pipe, data + HALF * 2 * (d - 1) * norms // d, tensor]


def test_scatter_gather_divides_messages_between_stages_by_t() -> None:
    """Where what the next stage gathers within a node costs nothing."""
    machine = replace(SELENE, network=Network(FREE, Link("slow", alpha=0.0, beta=1e9), ranks_per_node=8))
    whole, parts = (border_seconds(SMALL, Split(4, 8, 1, 8, scatter_gather=on), machine) for on in (False, True))
    assert whole == pytest.approx(8 * parts)


def test_takeaway_1_tensor_parallelism_up_to_a_node() -> None:
    """Figure 13: 162 billion parameters on 64 GPUs, in nodes of 8."""
    for batch in (32, 128):
        pairs = {t: Split(64 // t, t, 1, batch) for t in (2, 4, 8, 16, 32, 64)}
        speed = {t: rank_flops(FIGURE_13, split, SELENE) for t, split in pairs.items()}
        assert max(speed, key=speed.get) == 8
        assert speed[2] < speed[4] < speed[8] > speed[16] > speed[32] > speed[64]


def test_the_cliff_is_where_the_node_ends() -> None:
    """With nodes of 16 tensor parallelism of 16 is hardly more expensive than 8; with nodes of 8 it nearly doubles."""
    large = replace(SELENE, network=replace(SELENE.network, ranks_per_node=16))
    eight, sixteen = (Split(64 // t, t, 1, 128) for t in (8, 16))
    beyond, within = (
        layer_traffic_seconds(FIGURE_13, sixteen, machine) / layer_traffic_seconds(FIGURE_13, eight, machine)
        for machine in (SELENE, large)
    )
    assert within < 1.2 < 1.7 < beyond


def test_takeaway_2_no_more_model_parallelism_than_memory_asks_for() -> None:
    """Figures 14 and 15: 5.9 billion parameters on 64 GPUs: doubling p or t makes it slower, whatever the batch."""
    for batch in (32, 128, 512):
        by_p = [rank_flops(FIGURES_14_AND_15, Split(p, 1, 64 // p, batch), SELENE) for p in (2, 4, 8)]
        by_t = [rank_flops(FIGURES_14_AND_15, Split(1, t, 64 // t, batch), SELENE) for t in (2, 4, 8, 16, 32)]
        assert by_p == sorted(by_p, reverse=True) and by_t == sorted(by_t, reverse=True)
    assert memory_bytes(FIGURES_14_AND_15, Split(1, 1, 64, 64)) > SELENE.memory > memory_bytes(
        FIGURES_14_AND_15, Split(2, 1, 32, 64)
    )  # fmt: skip


def test_takeaway_3_the_best_micro_batch_depends_on_the_batch() -> None:
    """Figure 8: small ones fill the pipeline, large ones the GPU."""

    def best(batch: int, p: int) -> int:
        tried = [Split(p, 8, 1, batch, b) for b in (1, 2, 4, 8, 16)]
        return max(tried, key=lambda split: rank_flops(TABLE_1[0].model, split, SELENE)).micro_batch

    assert [best(batch, p=8) for batch in (32, 128, 512, 4096)] == [1, 2, 4, 8]
    assert [best(512, p=p) for p in (2, 8)] == [8, 4]


def test_a_message_waits_for_the_slowest_link_of_its_axis() -> None:
    """Data-parallel ranks are neighbours where t is 1, and in different nodes where t is a node."""
    near, far = Split(8, 1, 8, 64), Split(1, 8, 8, 64)
    assert near.mesh == Mesh({"pipe": 8, "data": 8, "tensor": 1})
    fast, slow = SELENE.network.intra, SELENE.network.inter
    for split, link in ((near, fast), (far, slow)):
        sent = 2 * 7 / 8 * HALF * SMALL.parameters / 8
        assert data_seconds(SMALL, split, SELENE) == pytest.approx(sent / link.beta + 14 * link.alpha)


@pytest.mark.parametrize("v", [1, 2, 4])
def test_v_chunks_wait_for_v_messages_in_each_direction(v: int) -> None:
    """Where nothing else takes time, a step is (m + (p-1)/v) times as long as that."""
    slow = Machine(Network.of(Link("slow", alpha=0.0, beta=1e9)), speed=1e30, bandwidth=1e30, pause=0.0, memory=1e12)
    message = HALF * SMALL.sequence * SMALL.width / 1e9
    assert batch_seconds(SMALL, Split(4, 1, 1, 8, chunks=v), slow) == pytest.approx((8 + 3 / v) * 2 * v * message)


@pytest.mark.parametrize(("p", "m", "v"), [(4, 8, 2), (4, 8, 4), (8, 16, 2), (2, 2, 4)])
def test_chunks_hold_what_the_first_rank_of_their_schedule_holds(p: int, m: int, v: int) -> None:
    """Of each micro-batch in flight the input of each layer, of a v-th of a rank's layers."""
    one, many = (max(validate(order).activations) for order in (one_f_one_b(p, m), interleaved(p, m, v)))
    whole, cut = (memory_bytes(SMALL, Split(p, 1, 1, m, chunks=chunks)) for chunks in (1, v))
    inputs = SMALL.layers / p * HALF * SMALL.sequence * SMALL.width
    assert cut - whole == pytest.approx((many / v - one) * inputs)


def test_the_fastest_split_fits_and_no_other_is_faster() -> None:
    model = TABLE_1[3].model
    best = fastest(model, 256, 1024, SELENE)
    assert memory_bytes(model, best) <= SELENE.memory
    for split in splits(model, 256, 1024):
        fits = memory_bytes(model, split) <= SELENE.memory
        assert not fits or batch_seconds(model, split, SELENE) >= batch_seconds(model, best, SELENE)
    assert best.ranks == 256


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda: Split(2, 2, 3, 16), "16 windows does not divide among 3 replicas with micro-batches of 1"),
        (lambda: Split(4, 1, 1, 6, chunks=2), "6 micro-batches do not go in groups of 4"),
        (lambda: Split(1, 1, 0, 8), "a split has at least 1 of everything, not p = 1, t = 1, d = 0"),
        (lambda: fastest(FIGURE_13, 16, 64, SELENE), "no split of 16 ranks has room for 162.2B parameters"),
        (lambda: fastest(replace(SMALL, layers=4, heads=4), 7, 5, SELENE), "7 ranks cannot be split so that 4 layers"),
    ],
)
def test_what_does_not_divide_or_fit_is_refused(ask, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        ask()
