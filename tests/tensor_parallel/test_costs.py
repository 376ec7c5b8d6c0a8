"""Traces of real runs count what `reference.tensor_parallel.cost` says, to the byte."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from reference.cluster import Cluster
from reference.collectives import all_gather, all_reduce, reduce_scatter
from reference.collectives import cost as collectives
from reference.collectives.communicator import Native
from reference.collectives.default import Communicate, over
from reference.collectives.fast import eager, select
from reference.memory.precision import PRECISIONS
from reference.memory.recompute import Recompute
from reference.models import PRESETS, GPTConfig
from reference.models.config import LINEAR
from reference.parallelize import Plan, parallelize
from reference.sequence_parallel import SequenceRegion
from reference.tensor_parallel import Region, cost, vocabulary
from reference.tensor_parallel.cost import Crossings
from reference.trace import Op

from ..data_parallel.conftest import in_group, members
from ..data_parallel.traffic import between, cut
from .split import split_gpt

MODEL = GPTConfig(layers=1, width=48, heads=24, kv_heads=24, hidden=24, vocabulary=50)  # 24 divides by all of RANKS
ROWS, SEQUENCE = 1, 24
TOKENS, STREAM = ROWS * SEQUENCE, ROWS * SEQUENCE * 48  # B·S, B·S·D
DOUBLE = 8  # bytes
RANKS = (2, 3, 4, 6, 8)
REGIONS = (Region, SequenceRegion)


class Pass(NamedTuple):
    """Forward and backward of one model."""

    region: type[Region]
    config: GPTConfig = MODEL
    recompute: Recompute = Recompute.NONE
    overlap: bool = True  # what starts sends as many bytes as a ring
    communicate: Communicate = over


def passes(group: ProcessGroup, cases: Sequence[Pass]) -> None:
    """One after the other, with a barrier after each."""
    for case in cases:
        model, _ = split_gpt(case.config, case.region(case.communicate(group), case.overlap), case.recompute)
        tokens = torch.arange(TOKENS).view(ROWS, SEQUENCE)
        vocabulary.token_loss(model(tokens), tokens, TOKENS, group, case.config.vocabulary).backward()
        dist.barrier(group)


def sent(ranks: Cluster, t: int, cases: Sequence[Pass]) -> list[list[int]]:
    """Bytes by group rank, case by case."""
    _, trace = ranks.trace(in_group, t, passes, cases)
    parts = cut(trace)
    assert not any(part.unmatched for part in parts)
    return [[part.bytes_sent[rank] for rank in members(t)] for part in parts]


def of_a_block(ranks: Cluster, t: int, cases: Sequence[Pass]) -> list[list[int]]:
    """Bytes by which two blocks send more than one."""
    two = [case._replace(config=replace(case.config, layers=2)) for case in cases]
    found = sent(ranks, t, [*cases, *two])
    pairs = zip(found[len(cases) :], found[: len(cases)], strict=True)
    return [[more - less for more, less in zip(*pair, strict=True)] for pair in pairs]


@pytest.mark.parametrize("t", RANKS)
def test_a_block_sends_what_the_formula_says(ranks: Cluster, t: int) -> None:
    """With and without slices of the sequence, whatever is recomputed."""
    cases = [Pass(region, recompute=how) for region, how in itertools.product(REGIONS, Recompute)]
    for case, found in zip(cases, of_a_block(ranks, t, cases), strict=True):
        expected = cost.block(case.recompute).elements_sent(STREAM, t, case.region.slices_tokens)
        assert found == [DOUBLE * expected] * t, case


def by_hand(t: int, rank: int, crossings: Crossings, sequence_parallel: bool) -> int:
    """Bytes, with the algorithms that suit small tensors between processes of one machine."""

    def price(algorithm: Callable[..., None]) -> int:
        return collectives.of(algorithm).bytes(rank, t, STREAM, DOUBLE)

    power_of_two = t & (t - 1) == 0
    if not sequence_parallel:
        return crossings.sums * price(select.cheapest(select.ALL_REDUCES, t, STREAM, DOUBLE))
    gather = price(all_gather.recursive_doubling if power_of_two else all_gather.bruck)
    return crossings.gathers * gather + crossings.sums * price(
        reduce_scatter.recursive_halving if power_of_two else reduce_scatter.ring
    )


@pytest.mark.parametrize("t", RANKS)
def test_collectives_by_hand_cross_as_often(ranks: Cluster, t: int) -> None:
    found = of_a_block(ranks, t, [Pass(region, overlap=False) for region in REGIONS])
    assert found == [[by_hand(t, rank, cost.block(), region.slices_tokens) for rank in range(t)] for region in REGIONS]


def test_by_hand_two_ranks_send_all_of_it_and_four_send_it_twice() -> None:
    """Recursive doubling: log2 t times the tensor, in log2 t steps; a ring sends 2(t-1)/t of it, in 2(t-1) steps."""
    doubling, four = eager.eager_doubling, 4 * DOUBLE * STREAM  # all-reduces of a block
    assert [select.cheapest(select.ALL_REDUCES, t, STREAM, DOUBLE) for t in (2, 4)] == [doubling, doubling]
    assert [by_hand(t, 0, cost.block(), sequence_parallel=False) for t in (2, 4)] == [four, 2 * four]


@pytest.mark.parametrize("t", RANKS)
def test_the_rest_is_embedding_head_and_loss(ranks: Cluster, t: int) -> None:
    """Ten times the vocabulary sends nothing more."""
    configs = (MODEL, replace(MODEL, vocabulary=10 * MODEL.vocabulary), replace(MODEL, tied=True))
    cases = [Pass(*each) for each in itertools.product(REGIONS, configs)]
    of_loss = [summed_by_hand(TOKENS, t, rank) + summed_by_hand(2 * TOKENS, t, rank) for rank in range(t)]
    for case, found in zip(cases, sent(ranks, t, cases), strict=True):
        crossed = cost.model(layers=1).elements_sent(STREAM, t, case.region.slices_tokens)
        assert found == [DOUBLE * (crossed + each) for each in of_loss], case


def summed_by_hand(numel: int, t: int, rank: int) -> int:
    """Elements that a rank sends in an all-reduce of a small tensor."""
    return collectives.of(select.cheapest(select.ALL_REDUCES, t, numel, DOUBLE)).elements(rank, t, numel)


def test_the_loss_tells_three_numbers_of_each_token() -> None:
    """Around a ring; whole logits would be a gather of a vocabulary for each."""
    assert cost.loss(TOKENS, 8) == 2 * 3 * TOKENS * 7 // 8
    assert cost.loss(TOKENS, 8, smoothing=True) == 2 * 4 * TOKENS * 7 // 8


@pytest.mark.parametrize("t", RANKS)
def test_both_send_the_same_but_for_what_is_gathered_again(t: int) -> None:
    """In a block two all-gathers, of what forward had and did not keep; in a model one more, before the head."""
    for crossings, again in ((cost.block(), 2), (cost.block(Recompute.FULL), 2), (cost.model(5), 2 * 5 + 1)):
        kept = Crossings(crossings.gathers - again, crossings.sums)
        assert kept.elements_sent(STREAM, t, True) == kept.elements_sent(STREAM, t, False)
        more = crossings.elements_sent(STREAM, t, True) - crossings.elements_sent(STREAM, t, False)
        assert more == again * STREAM * (t - 1) // t


def test_a_block_of_llama_is_470_megabytes() -> None:
    """The example in the formulas' own words."""
    numel = 8192 * PRESETS["llama3-8b"].width
    assert round(2 * cost.block().elements_sent(numel, 8, sequence_parallel=False) / 1e6) == 470


COPIES = GPTConfig(layers=2, width=48, heads=12, kv_heads=2, hidden=24, vocabulary=50)


def one_step(group: ProcessGroup, plan: Plan, config: GPTConfig) -> None:
    """A step of two micro-batches, with a barrier before what happens once, and one after it."""
    parallel = parallelize(config, plan, group, torch.device("cpu"), PRECISIONS["fp64"])
    tokens = torch.arange(TOKENS).view(ROWS, SEQUENCE)
    for last in (False, True):
        with parallel.form.micro_batch(last):
            parallel.loss(parallel.model(tokens), tokens, 2 * TOKENS).backward()
        dist.barrier(group)
    parallel.form.reduce_gradients()
    dist.barrier(group)


@pytest.mark.parametrize("biases", [(), LINEAR], ids=["no biases", "biases"])
@pytest.mark.parametrize("t", [2, 4, 6])
def test_once_a_step_gradients_of_norms_and_of_copies_are_summed(
    clusters: Callable[..., Cluster], t: int, biases: tuple[str, ...]
) -> None:
    """Each kind in one all-reduce, by hand: so bytes are those of its algorithm. Formulas count a ring."""
    config, each = replace(COPIES, biases=biases, head_size=6 if biases else None), bool(biases)
    of_norms = (2 * config.layers + 1) * config.width + 2 * each * config.layers * config.width
    of_copies, copies = 2 * config.layers * config.head_dim * (config.width + each), t // config.kv_heads
    for slices in (False, True):
        plan = Plan(tensor_parallel=t, sequence_parallel=slices)
        trace = clusters(t).trace(lambda plan=plan: one_step(dist.group.WORLD, plan, config))[1]
        first, second, once = cut(trace)
        assert first.bytes_sent == second.bytes_sent
        for rank in range(t):
            elements = slices * summed_by_hand(of_norms, t, rank) + summed_by_hand(of_copies, copies, rank % copies)
            assert once.bytes_sent[rank] == DOUBLE * elements
            assert cost.norms(config, t, rank) == around_a_ring(of_norms, t, rank)
            assert cost.kv_copies(config, t, rank) == around_a_ring(of_copies, copies, rank % copies)


def around_a_ring(numel: int, t: int, rank: int) -> int:
    return collectives.of(all_reduce.ring).elements(rank, t, numel)


def test_each_kind_of_collective_is_called_as_often_as_the_table_says(ranks: Cluster) -> None:
    """Of torch's own: by hand they are messages."""
    for region, expected in (
        (Region, {Op.ALL_REDUCE: cost.model(1).sums}),
        (SequenceRegion, {Op.ALL_GATHER: cost.model(1).gathers, Op.REDUCE_SCATTER: cost.model(1).sums}),
    ):
        _, trace = ranks.trace(in_group, 4, passes, [Pass(region, communicate=Native)])
        for rank in members(4):
            [events] = between(trace.events[rank])
            calls = [event.op for event in events if not event.op.point_to_point]
            assert {op: calls.count(op) for op in calls} == expected
