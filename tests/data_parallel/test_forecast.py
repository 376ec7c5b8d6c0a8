"""A step before it runs: what hides, what does not, and that a program's messages say the same when replayed."""

import math
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch import nn

from puzzles.grading.drives.data_parallel import Layered, part_of_loss
from puzzles.grading.overlap import Work, microseconds, notes_of
from reference.cluster import Cluster
from reference.data_parallel.lab.forecast import LayerCost, gpt_layers, seconds, step, tail
from reference.data_parallel.plain import reduce_in_buckets
from reference.errors import BadInput
from reference.models import GPT, PRESETS, create
from reference.networks import ring_time
from reference.trace import Network
from reference.trace.activity import Doing

from .conftest import MOST

SECOND = 1e6  # elements whose all-reduce takes a second here


def three_layers(*numels: int) -> list[LayerCost]:
    """Each takes 1 s forward and 2 s backward, and has one parameter of int8."""
    parameters = [nn.Parameter(torch.empty(n, dtype=torch.int8, device="meta"), requires_grad=False) for n in numels]
    return [LayerCost(str(number), 1.0, 2.0, (parameter,)) for number, parameter in enumerate(parameters)]


def one_second_a_million(size: float) -> float:
    return size / SECOND


def messages(layers: list[LayerCost], bucket_bytes: float) -> list[tuple[float, float]]:
    done = step(layers, bucket_bytes, one_second_a_million)
    return [(a.begin, a.end) for a in done if a.doing is Doing.COMMUNICATION]


def test_gradients_leave_when_they_are_known_last_layer_first():
    assert messages(three_layers(1_000_000, 1_000_000, 1_000_000), 0) == [(5, 6), (7, 8), (9, 10)]


def test_an_all_reduce_waits_for_the_one_before_it():
    assert messages(three_layers(1_000_000, 1_000_000, 3_000_000), 0) == [(5, 8), (8, 9), (9, 10)]


def test_a_bucket_leaves_when_the_last_of_its_gradients_is_known():
    assert messages(three_layers(1_000_000, 1_000_000, 1_000_000), 2e6) == [(7, 9), (9, 10)]


def test_layers_without_parameters_send_nothing():
    assert tail(step([LayerCost("tanh", 1.0, 2.0, ())], 100, lambda size: 1.0)) == 0


def test_a_tied_table_is_in_no_single_layer():
    with pytest.raises(BadInput, match="a tied table"):
        gpt_layers(replace(PRESETS["tiny"], tied=True), tokens=10, flops=1e9)


def test_one_bucket_for_everything_hides_nothing():
    done = step(three_layers(1_000_000, 1_000_000, 1_000_000), math.inf, one_second_a_million)
    assert seconds(done) == 9 + 3 and tail(done) == 3


@pytest.mark.parametrize("bucket_bytes", [0, 32 * 33 * 8, 3 * 32 * 33 * 8, 10**9])
@pytest.mark.parametrize("busy", [0.2, 1.5])
def test_a_program_takes_as_long_as_foreseen(ranks: Cluster, bucket_bytes: int, busy: float) -> None:
    """The small DDP, its messages replayed: where backward is longer than the messages, and where it is shorter."""
    network = Network.uniform(alpha=20e-6, beta=100e6)

    def all_reduce(size: float) -> float:
        return ring_time(MOST, size, network.intra.alpha, network.intra.beta)

    backward = busy * all_reduce(32 * 33 * 8)
    weights = [torch.zeros(shape, dtype=torch.float64) for _ in range(6) for shape in ((32, 32), (32,))]

    def program() -> dict:
        work = Work()
        model = Layered(weights, backward, work)
        finish = reduce_in_buckets(model, dist.group.WORLD, bucket_bytes)
        part_of_loss(model, torch.ones(1, 32, dtype=torch.float64), MOST).backward()
        finish()
        return work.notes

    notes, trace = ranks.trace(program)
    took = microseconds(trace, dict(enumerate(map(notes_of, notes))), network)
    layers = [LayerCost("", 0.0, backward, tuple(layer.parameters())) for layer in Layered(weights).layers]
    assert took == pytest.approx(1e6 * seconds(step(layers, bucket_bytes, all_reduce)), rel=1e-3)  # whole nanoseconds


def test_layers_of_a_gpt_have_its_parameters_and_its_work():
    config = PRESETS["demo"]
    layers = gpt_layers(config, tokens=10, flops=1e9)
    parameters = [parameter for layer in layers for parameter in layer.parameters]
    assert [p.shape for p in parameters] == [p.shape for p in create(GPT, config).parameters()]
    assert sum(p.nbytes for p in parameters) == 2 * config.parameters
    norms = (2 * config.layers + 1) * config.width
    matrices = config.parameters - config.vocabulary * config.width - norms
    assert sum(layer.forward for layer in layers) == pytest.approx(2 * matrices * 10 / 1e9)
    assert sum(layer.backward for layer in layers) == pytest.approx(4 * matrices * 10 / 1e9)


@pytest.mark.parametrize("name", ["llama3-8b", "llama3-405b"])
def test_what_hides_depends_on_tokens_and_links_and_not_on_the_model(name: str) -> None:
    """The threshold bF/(2β): above it only the first layer's gradients are left, below it a part of all of them."""
    flops, beta = 400e12, 50e9
    threshold = 2 * flops / (2 * beta)

    def exposed(tokens: float) -> float:
        done = step(gpt_layers(PRESETS[name], tokens, flops), 400e6, lambda size: 2 * size / beta)
        return tail(done) / (2 * 2 * PRESETS[name].parameters / beta)

    assert exposed(1.2 * threshold) < 0.15  # embedding and head of the small one are 13 % of it, and hide little
    assert exposed(0.5 * threshold) == pytest.approx(0.5, abs=0.1)
