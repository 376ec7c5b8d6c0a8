"""A simulated layer does what the ranks would do, and says what that would cost."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

from reference.cluster import Cluster
from reference.errors import BadInput
from reference.models import PRESETS, GPTConfig
from reference.networks.hierarchical import hierarchical_time
from reference.sequence_parallel import SequenceRegion
from reference.tensor_parallel import Region, cost
from reference.tensor_parallel.lab import op_trace
from reference.tensor_parallel.lab.op_trace import LayerOp
from reference.tensor_parallel.lab.simulate_layer import LayerSimulation, rings, simulate_layer, two_levels
from reference.trace import INFINIBAND_NDR, NVLINK4, Network, Op
from reference.trace.activity import Doing

CONFIG = GPTConfig(layers=1, width=48, heads=12, kv_heads=4, hidden=96)
BATCH, SEQUENCE = 2, 24
REGIONS = {False: Region, True: SequenceRegion}
NODES = Network.cluster(2, 8)
slicing = pytest.mark.parametrize("slices_tokens", REGIONS)


def small(t: int, slices_tokens: bool) -> LayerSimulation:
    return simulate_layer(CONFIG, t, BATCH, SEQUENCE, slices_tokens, torch.float64)


@slicing
@pytest.mark.parametrize("t", [2, 4])
def test_steps_are_those_of_ranks_that_are_there(clusters: Callable[..., Cluster], t: int, slices_tokens: bool) -> None:
    """Sites, shapes, FLOPs, order, and who waits for what."""

    def block() -> list[LayerOp]:
        region = REGIONS[slices_tokens](dist.group.WORLD, overlap=True)
        return op_trace.of_block(CONFIG, region, BATCH, SEQUENCE, torch.float64)

    found, trace = clusters(t).trace(block)
    simulated = small(t, slices_tokens)
    for own in found:
        assert [replace(step, fingerprint=0, calls=(0, 0)) for step in own] == list(simulated.steps)
    sent = [sum(step.sent for step in own) for own in op_trace.with_bytes(found, trace)]
    assert sent == trace.bytes_sent == simulated.trace.bytes_sent


@slicing
@pytest.mark.parametrize("t", [2, 3, 4, 6, 12])
def test_it_sends_what_the_formula_says(t: int, slices_tokens: bool) -> None:
    config = replace(CONFIG, kv_heads=12)
    sent = simulate_layer(config, t, BATCH, SEQUENCE, slices_tokens, torch.float64).trace.bytes_sent
    stream = BATCH * SEQUENCE * config.width
    assert sent == [8 * cost.block().elements_sent(stream, t, slices_tokens)] * t


@slicing
@pytest.mark.parametrize("t", [1, 2, 4])
def test_flops_are_shared_out(t: int, slices_tokens: bool) -> None:
    """6 for each weight and token, and attention: 6 S D for each token, by half of the pairs."""
    weights = CONFIG.parameters - CONFIG.width * (2 * CONFIG.vocabulary + 3)
    tokens = BATCH * SEQUENCE
    assert small(t, slices_tokens).flops == 6 * tokens * (weights + SEQUENCE * CONFIG.width) // t


def test_one_rank_never_waits() -> None:
    computing, waiting = small(1, False).times(rings(Network.of(INFINIBAND_NDR)), 1e12)
    assert computing > 0
    assert waiting == pytest.approx(0, abs=1e-9 * computing)  # sums of times are rounded
    assert small(1, False).trace.messages == ()


def test_sums_of_gradients_travel_while_weights_have_theirs_computed() -> None:
    """Those of forward, and nothing else, hold a rank up, if the network is about as fast as that."""
    simulation = simulate_layer(PRESETS["llama3-8b"], 8, 1, 8192)
    price = rings(Network.of(NVLINK4))
    done = simulation.activities(price, 400e12)
    sums = [activity for activity in done if activity.doing is Doing.COMMUNICATION]
    _, waiting = simulation.times(price, 400e12)
    assert len(sums) == 4
    one = sums[0].end - sums[0].begin
    hidden = next(a for a in done if a.doing is Doing.WEIGHT_GRADIENT and a.begin >= sums[2].begin)
    assert hidden.label == "gate, up"
    assert hidden.end > sums[2].end  # all of the third
    products = next(a for a in done if a.label == "query, key, value" and a.begin >= sums[3].begin)
    assert waiting == pytest.approx(2 * one + sums[3].end - products.end)


def test_two_levels_take_what_the_formula_says() -> None:
    size = 4096 * 64 * 2
    alone = [(link.alpha, link.beta) for link in (NVLINK4, INFINIBAND_NDR)]
    found = two_levels(NODES)((Op.ALL_REDUCE, size // 2, torch.bfloat16), 16)
    assert found == pytest.approx(hierarchical_time(2, 8, size, *alone))


def test_in_one_node_two_levels_are_one() -> None:
    call = (Op.ALL_GATHER, 4096, torch.bfloat16)
    assert two_levels(NODES)(call, 8) == rings(NODES)(call, 8) == rings(Network.of(NVLINK4))(call, 8)


def test_halves_of_an_all_reduce_take_as_long_together() -> None:
    whole = two_levels(NODES)((Op.ALL_REDUCE, 2**20, torch.bfloat16), 16)
    scatter = two_levels(NODES)((Op.REDUCE_SCATTER, 2**20, torch.bfloat16), 16)
    gather = two_levels(NODES)((Op.ALL_GATHER, 2**16, torch.bfloat16), 16)
    assert scatter + gather == pytest.approx(whole)


def test_what_does_not_divide_is_said() -> None:
    with pytest.raises(BadInput, match="12 heads do not divide among 5"):
        small(5, False)
    with pytest.raises(BadInput, match="at least 1 rank, not 0"):
        small(0, False)
    with pytest.raises(BadInput, match="tokens of a window"):
        simulate_layer(CONFIG, 4, 1, 22, slices_tokens=True)
