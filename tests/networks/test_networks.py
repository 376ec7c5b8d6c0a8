"""The formulas against replayed programs, against measured numbers, and against each other."""

import pytest
import torch
import torch.distributed as dist

from reference.collectives import all_reduce
from reference.errors import BadInput
from reference.networks import (
    TIMES,
    alpha_beta,
    best_algorithm,
    bus_bandwidth,
    bus_factor,
    crossing,
    flat_ring_time,
    halving_doubling_time,
    hierarchical_time,
    naive_time,
    overlapped_hierarchical_time,
    recursive_doubling_time,
    ring_time,
    tree_time,
)
from reference.networks.lab.published import MACHINES, NODES, RINGS, MeasuredNodes, bus_bandwidths
from reference.trace import Event, Network, Op, Trace

ALPHA, BETA = 2e-6, 50e9


def exactly(seconds: float):
    return pytest.approx(seconds, rel=1e-12, abs=0)


def native_ring(n: int, numel: int) -> Trace:
    """A trace of one native all-reduce, which counts as a ring."""
    group = tuple(range(n))
    common = (group, None, 0, (numel,), "float64", 8 * numel, (), "sum", "program.py", 1, 0, 1, 0.0, 0.0)
    return Trace(n, tuple((Event(rank, Op.ALL_REDUCE, *common),) for rank in group))


@pytest.mark.parametrize("n", [1, 2, 3, 8, 17])
def test_ring_time_is_the_replay_of_a_ring(n):
    replayed = native_ring(n, 100 * n).replay(Network.uniform(alpha=ALPHA, beta=BETA)).duration
    assert ring_time(n, 800 * n, ALPHA, BETA) == exactly(replayed)


@pytest.mark.parametrize(("nodes", "per_node"), [(1, 4), (2, 4), (4, 2), (3, 1)])
def test_flat_ring_time_is_the_replay_on_a_cluster(nodes, per_node):
    n = nodes * per_node
    network = Network.cluster(nodes, per_node)
    links = ((network.intra.alpha, network.intra.beta), (network.inter.alpha, network.inter.beta))
    replayed = native_ring(n, 1000 * n).replay(network).duration
    assert flat_ring_time(nodes, per_node, 8000 * n, *links) == exactly(replayed)


def reduce(name: str, numel: int) -> None:
    getattr(all_reduce, name)(torch.ones(numel, dtype=torch.float64), dist.group.WORLD)


def reduce_in_two_levels(numel: int, per_node: int) -> None:
    rank, n = dist.get_rank(), dist.get_world_size()
    within = [dist.new_group(list(range(first, first + per_node))) for first in range(0, n, per_node)]
    across = [dist.new_group(list(range(place, n, per_node))) for place in range(per_node)]
    x = torch.ones(numel, dtype=torch.float64)
    all_reduce.hierarchical(x, within[rank // per_node], across[rank % per_node])


@pytest.mark.parametrize("n", [2, 3, 4, 6, 8])
@pytest.mark.parametrize("name", TIMES)
def test_every_formula_is_the_replay_of_real_ranks(clusters, n, name):
    numel = 24 * 5 * n  # so that all chunks are alike
    _, trace = clusters(n).trace(reduce, name.replace(" ", "_").replace("-", "_"), numel)
    replayed = trace.replay(Network.uniform(alpha=ALPHA, beta=BETA)).duration
    assert TIMES[name](n, 8 * numel, ALPHA, BETA) == exactly(replayed)


@pytest.mark.parametrize(("n", "per_node"), [(4, 2), (6, 2), (8, 4)])
def test_hierarchical_time_is_the_replay_of_real_ranks(clusters, n, per_node):
    network = Network.cluster(n // per_node, per_node)
    _, trace = clusters(n).trace(reduce_in_two_levels, 240 * n, per_node)
    links = ((network.intra.alpha, network.intra.beta), (network.inter.alpha, network.inter.beta))
    assert hierarchical_time(n // per_node, per_node, 8 * 240 * n, *links) == exactly(trace.replay(network).duration)


def test_hierarchy_of_one_level_is_a_ring():
    link, other = (ALPHA, BETA), (1.0, 1.0)
    assert hierarchical_time(8, 1, 1e6, other, link) == exactly(ring_time(8, 1e6, ALPHA, BETA))
    assert hierarchical_time(1, 8, 1e6, link, other) == exactly(ring_time(8, 1e6, ALPHA, BETA))


def test_hierarchy_beats_the_flat_ring_where_links_differ():
    intra, inter = (1.9e-6, 450e9), (4e-6, 50e9)
    for size in (1e3, 1e6, 1e9):
        assert hierarchical_time(4, 8, size, intra, inter) < flat_ring_time(4, 8, size, intra, inter)


@pytest.mark.parametrize("n", [2, 4, 8, 16, 64])
def test_powers_of_two_need_no_fold(n):
    size, rounds = 1e6, n.bit_length() - 1
    assert recursive_doubling_time(n, size, ALPHA, BETA) == exactly(rounds * (ALPHA + size / BETA))
    both = 2 * rounds * ALPHA + 2 * (n - 1) / n * size / BETA
    assert halving_doubling_time(n, size, ALPHA, BETA) == exactly(both)
    assert halving_doubling_time(n + 1, size, ALPHA, BETA) == exactly(both + 2 * (ALPHA + size / BETA))


def test_one_rank_takes_no_time():
    assert all(time(1, 1e6, ALPHA, BETA) == 0 for time in TIMES.values())


def test_small_tensors_want_few_steps_and_large_ones_few_bytes():
    assert best_algorithm(8, 100, ALPHA, BETA) == "recursive doubling"
    assert best_algorithm(8, 1e9, ALPHA, BETA) == "halving-doubling"
    assert best_algorithm(9, 1e9, ALPHA, BETA) == "ring"
    assert naive_time(2, 5e5, ALPHA, BETA) == ring_time(2, 1e6, ALPHA, BETA)


@pytest.mark.parametrize("n", [4, 8, 32])
def test_at_the_crossing_both_take_the_same_time(n):
    rounds = n.bit_length() - 1
    size = crossing((2 * (n - 1), rounds), (2 * (n - 1) / n, rounds), ALPHA, BETA)
    assert ring_time(n, size, ALPHA, BETA) == exactly(recursive_doubling_time(n, size, ALPHA, BETA))
    assert crossing((2, 2), (1, 1), ALPHA, BETA) is None
    assert crossing((3, 2), (3, 2), ALPHA, BETA) is None, "more steps and more bytes never win"


def test_bus_bandwidth_of_a_large_ring_is_the_bandwidth_of_its_links():
    for n in (2, 5, 64):
        assert bus_bandwidth(n, 1e15, ring_time(n, 1e15, ALPHA, BETA)) == pytest.approx(BETA, rel=1e-5)


def test_bus_bandwidth_is_algorithm_bandwidth_times_the_factor_of_nccl_tests():
    assert bus_bandwidth(4, 1e9, 10e-3) == exactly(1.5 * 100e9)
    assert bus_factor(Op.ALL_REDUCE, 8) == 1.75
    assert bus_factor(Op.ALL_GATHER, 8) == bus_factor(Op.REDUCE_SCATTER, 8) == 0.875
    assert bus_factor(Op.BROADCAST, 8) == 1
    with pytest.raises(BadInput, match="no bus bandwidth"):
        bus_factor(Op.BARRIER, 8)


def test_alpha_and_beta_are_found_again():
    sizes = [2**k for k in range(3, 27)]
    alpha, beta = alpha_beta(sizes, [ALPHA + s / BETA for s in sizes])
    assert (alpha, beta) == (pytest.approx(ALPHA, rel=1e-9), pytest.approx(BETA, rel=1e-9))
    noisy = [(ALPHA + s / BETA) * (1.03 if i % 2 else 0.97) for i, s in enumerate(sizes)]
    alpha, beta = alpha_beta(sizes, noisy)
    assert (alpha, beta) == (pytest.approx(ALPHA, rel=0.05), pytest.approx(BETA, rel=0.05))
    with pytest.raises(BadInput, match="two sizes, not 1: measure a larger message"):
        alpha_beta([8, 8], [1.0, 1.0])
    with pytest.raises(BadInput, match="not 2 sizes and 1 times"):
        alpha_beta([8, 16], [1.0])
    for seconds in ([2.0, 1.0], [1.0, 1.0]):
        with pytest.raises(BadInput, match="time does not grow with size"):
            alpha_beta([8, 16], seconds)


def test_a_collective_may_be_given_by_its_name():
    assert bus_factor("all_reduce", 4) == bus_factor(Op.ALL_REDUCE, 4) == 1.5
    with pytest.raises(BadInput, match="barrier has no bus bandwidth"):
        bus_factor("barrier", 4)


@pytest.mark.parametrize("machine", MACHINES)
def test_published_numbers_are_whole(machine):
    points = bus_bandwidths(machine)
    assert [size for size, _ in points] == [2**k for k in range(15, 35)]
    assert all(1e7 <= busbw < 1e12 for _, busbw in points)


def test_a_ring_s_all_reduce_is_its_two_halves_and_beats_no_link():
    """So a rate that was measured with a switch that adds is not among them: FSDP is priced with these."""
    seconds = {op: bus_factor(op, 8) / busbw for op, busbw in RINGS.items()}
    halves = seconds[Op.REDUCE_SCATTER] + seconds[Op.ALL_GATHER]
    assert seconds[Op.ALL_REDUCE] == pytest.approx(halves, rel=0.02)
    (node,) = (each for each in NODES if (each.gpu, each.nodes) == ("H200", 1))
    assert node.busbw == RINGS[Op.ALL_REDUCE] and max(RINGS.values()) < node.nvlink < bus_bandwidths("8 H200")[-1][1]


def test_two_numbers_describe_eight_h200():
    points = bus_bandwidths("8 H200")
    seconds = [bus_factor(Op.ALL_REDUCE, 8) * size / busbw for size, busbw in points]
    alpha, beta = alpha_beta([size for size, _ in points], seconds)
    assert all(
        (alpha + size / beta) / t == pytest.approx(1, abs=0.25) for (size, _), t in zip(points, seconds, strict=True)
    )


@pytest.mark.parametrize(
    ("name", "factor"),
    [
        ("all_reduce", 2 * 7 / 8),
        ("allreduce", 2 * 7 / 8),
        ("all_reduce_perf", 2 * 7 / 8),
        ("all_gather", 7 / 8),
        ("AllGather", 7 / 8),
        ("reduce_scatter_perf", 7 / 8),
        ("reducescatter", 7 / 8),
        ("alltoall", 7 / 8),
        ("alltoall_perf", 7 / 8),
        ("scatter", 7 / 8),
        ("gather_perf", 7 / 8),
        ("broadcast", 1),
        ("reduce", 1),
        ("sendrecv", 1),
        ("sendrecv_perf", 1),
    ],
)
def test_bus_factors_go_by_the_names_of_nccl_tests(name: str, factor: float) -> None:
    assert bus_factor(name, 8) == factor


TWO_LEVELS = (flat_ring_time, hierarchical_time, overlapped_hierarchical_time, tree_time)
LINK = (ALPHA, BETA)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: bus_factor("all_reduce", 0), "ranks is a whole number, at least 1, not 0"),
        (lambda: bus_factor("all_reduce", 2.5), "ranks is a whole number, at least 1, not 2.5"),
        (lambda: bus_factor("hypercube", 8), "no operation is called 'hypercube'; there are "),
        (lambda: bus_bandwidth(0, 1e9, 1.0), "ranks is a whole number, at least 1, not 0"),
        (lambda: bus_bandwidth(8, 1e9, 0), "seconds is how long it took, above 0, not 0"),
        (lambda: bus_bandwidth(8, 1e9, float("nan")), "seconds is how long it took, above 0, not nan"),
        (lambda: bus_bandwidth(8, -1, 1.0), "size is a number of bytes, 0 or more, not -1"),
        (lambda: best_algorithm(0, 1e6, *LINK), "ranks is a whole number"),
        (lambda: best_algorithm(8, 1e6, ALPHA, 0), "beta is a bandwidth in bytes per second, above 0, not 0"),
        (lambda: best_algorithm(8, 1e6, -1e-6, BETA), "alpha is a latency in seconds, 0 or more, not -1e-06"),
        (lambda: alpha_beta([1, 2], [0.0, 1.0]), "a message takes time, above 0 s, not 0.0"),
        *[(lambda time=time: time(0, 1e6, *LINK), "ranks is a whole") for time in (naive_time, ring_time)],
        *[(lambda time=time: time(0, 8, 1e6, LINK, LINK), "nodes is a whole") for time in TWO_LEVELS],
        *[(lambda time=time: time(2, 0, 1e6, LINK, LINK), "ranks_per_node is a whole") for time in TWO_LEVELS],
        *[(lambda time=time: time(2, 8, 1e6, LINK, (0.0, 0)), "beta is a bandwidth") for time in TWO_LEVELS],
        (lambda: tree_time(2, 8, 1e6, LINK, LINK, nics=0), "nics is a whole number, at least 1, not 0"),
    ],
)
def test_what_has_no_answer_is_said_in_one_sentence(call, words: str) -> None:
    with pytest.raises(BadInput) as refusal:
        call()
    assert str(refusal.value).startswith(words) and "\n" not in str(refusal.value)


@pytest.mark.parametrize("time", TWO_LEVELS)
def test_one_rank_alone_takes_no_time_on_two_levels_either(time) -> None:
    assert time(1, 1, 1e9, LINK, LINK) == 0


def test_rings_through_all_nics_are_as_fast_as_all_nics_together() -> None:
    intra, inter, size = (0.0, 450e9), (0.0, 12.5e9), 1e9
    for nics in (1, 2, 4, 8):
        seconds = flat_ring_time(4, 8, size, intra, inter, nics)
        assert bus_bandwidth(32, size, seconds) == exactly(nics * 12.5e9)
    assert bus_bandwidth(32, size, flat_ring_time(4, 8, size, intra, inter, 64)) == exactly(450e9)


@pytest.mark.parametrize("nodes", [2, 3, 4, 5, 8, 13, 64])
def test_phases_that_overlap_take_as_long_as_the_longer_one(nodes: int) -> None:
    """And no algorithm is faster than two levels: each node must send 2(N-1)/N of a tensor."""
    intra, inter, size = (0.0, 200e9), (0.0, 12.5e9), 1e9
    free = (0.0, float("inf"))
    alone = max(hierarchical_time(nodes, 8, size, intra, free), hierarchical_time(nodes, 8, size, free, inter))
    overlapped = overlapped_hierarchical_time(nodes, 8, size, intra, inter, nics=8)
    assert overlapped == exactly(alone)
    tree, ring = tree_time(nodes, 8, size, intra, inter, 8), flat_ring_time(nodes, 8, size, intra, inter, 8)
    assert overlapped <= min(tree, ring) * (1 + 1e-12)
    assert tree <= 2 * size / 8 / 12.5e9 * (1 + 1e-12)
    assert (tree < 0.6 * ring) == (nodes == 2), "a tree pays between two nodes"


def test_latencies_are_those_of_the_steps_in_a_row() -> None:
    assert tree_time(8, 4, 0, (1e-6, 1e9), (5e-6, 1e9)) == exactly(2 * 3 * 1e-6 + 2 * 3 * 5e-6)
    assert overlapped_hierarchical_time(8, 4, 0, (1e-6, 1e9), (5e-6, 1e9)) == exactly(2 * 3 * 1e-6 + 2 * 7 * 5e-6)


@pytest.mark.parametrize("machine", NODES, ids=lambda machine: f"{machine.nodes}x8 {machine.gpu}")
def test_what_nccl_was_measured_at_is_a_little_less_than_the_better_of_ring_and_trees(machine: MeasuredNodes) -> None:
    """Nothing is fitted: bandwidths are as sold. Between nodes 80 to 96 % of them arrive, within one 75 to 82 %."""
    size, links = 1e12, ((0.0, machine.nvlink), (0.0, machine.nic))
    seconds = min(time(machine.nodes, 8, size, *links, nics=machine.nics) for time in (flat_ring_time, tree_time))
    share = machine.busbw / bus_bandwidth(8 * machine.nodes, size, seconds)
    low, high = (0.80, 0.96) if machine.nodes > 1 else (0.75, 0.83)
    assert low <= share <= high


def test_two_nodes_of_h800_exceed_what_their_nics_are_sold_as() -> None:
    """One ring through one NIC says 12.5 GB/s, phases one after another 100; a tree 187.5, and 161 were measured."""
    links, size = ((0.0, 200e9), (0.0, 12.5e9)), 1e12
    found = [
        bus_bandwidth(16, size, seconds)
        for seconds in (
            flat_ring_time(2, 8, size, *links),
            hierarchical_time(2, 8, size, *links),
            flat_ring_time(2, 8, size, *links, nics=8),
            tree_time(2, 8, size, *links, nics=8),
        )
    ]
    assert found == pytest.approx([12.5e9, 100e9, 100e9, 187.5e9], rel=1e-9)
