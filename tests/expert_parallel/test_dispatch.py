"""Tokens come to their experts and back, on one level and on two: values, gradients, and bytes."""

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from reference.cluster import Cluster
from reference.collectives.default import over
from reference.expert_parallel import cost, plain
from reference.expert_parallel.dispatch import Dispatch
from reference.models.by_expert import ChoicesByExpert

from .layers import WIDTH, Case, Found, blocks, experts_of, groups_of, inputs_of, on_rank, one_process

EXACT = 1e-12
Clusters = Callable[..., Cluster]
CASES = {
    "one rank": Case((5,)),
    "two": Case((5, 3)),
    "three with five experts": Case((4, 4, 4), experts=5),
    "five experts on four": Case((3, 2, 4, 1), experts=5),  # two, two, one, none
    "a rank without tokens": Case((6, 0, 3, 2)),
    "no tokens at all": Case((0, 0)),
    "one expert each": Case((4, 4, 4, 4), k=1),
    "all experts": Case((3, 3), k=4),
    "some dropped": Case((6, 5, 4), experts=6, dropped=0.4),
    "all dropped": Case((3, 2), dropped=1.1),
    "chunks": Case((7, 5, 2), experts=6, chunks=3),
    "matrices on two": Case((4, 3, 5, 2), etp=2),
    "matrices on three": Case((2, 4, 3), etp=3),
    "two nodes": Case((4, 5, 3, 6), experts=8, nodes=2),
    "three nodes": Case((4, 0, 3, 2, 5, 1), experts=6, k=3, nodes=3),
    "two nodes, dropped, chunks": Case((4, 5, 3, 6), experts=8, k=3, nodes=2, dropped=0.3, chunks=2),
    "seven experts on two nodes": Case((4, 5, 3, 6), experts=7, nodes=2),
    "two nodes, matrices on two": Case((4, 2, 3, 1, 2, 2, 0, 3), experts=4, nodes=2, etp=2),
    "eight": Case((2,) * 8, experts=8, k=3),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_layer_over_ranks_is_that_of_one_process(clusters: Clusters, case: Case) -> None:
    expected = one_process(case)
    ranks: list[Found] = clusters(len(case.tokens)).run(on_rank, case)
    for rank, (found, whole) in enumerate(zip(ranks, expected, strict=True)):
        pairs = [*zip(found[:3], whole[:3], strict=True)]
        pairs += zip(found.of_experts, blocks(case, whole.of_experts, rank), strict=True)
        for mine, theirs in pairs:
            torch.testing.assert_close(mine, theirs, rtol=0, atol=EXACT)


def plain_on_rank(case: Case) -> Found:
    """`plain.mixture` over all ranks."""
    rank, n = dist.get_rank(), dist.get_world_size()
    layer = experts_of(case, n, 1, (rank, 0))
    x, chosen, weights, gradient = inputs_of(case)[rank]
    x, weights = x.requires_grad_(), weights.requires_grad_()
    here = len(layer.gate.weight)

    def expert(number: int) -> Callable[[Tensor], Tensor]:
        return lambda rows: layer(rows, [len(rows) if other == number else 0 for other in range(here)])

    out = plain.mixture(x[0], chosen[0], weights[0], [expert(e) for e in range(here)], dist.group.WORLD)
    out.backward(gradient[0])
    return Found(out.detach()[None], x.grad, weights.grad, tuple(p.grad for p in layer.parameters()))


@pytest.mark.parametrize("name", ["one rank", "two", "a rank without tokens", "no tokens at all", "eight"])
def test_the_plain_algorithm_too(clusters: Clusters, name: str) -> None:
    case = CASES[name]
    for rank, (found, whole) in enumerate(
        zip(clusters(len(case.tokens)).run(plain_on_rank, case), one_process(case), strict=True)
    ):
        for mine, theirs in zip(found[:3], whole[:3], strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=EXACT)
        for mine, theirs in zip(found.of_experts, blocks(case, whole.of_experts, rank), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=EXACT)


def apart(case: Case) -> None:
    """Groups, a barrier, and then the layer."""
    groups_of(case)
    dist.barrier()
    on_rank(case)


def routes_of(case: Case) -> cost.Routes:
    """Where tokens of a case go."""
    return cost.Routes(tuple(chosen[0] for _, chosen, _, _ in inputs_of(case)), case.experts, case.nodes)


@pytest.mark.parametrize("name", ["two", "five experts on four", "a rank without tokens", "some dropped", "chunks"])
def test_bytes_on_one_level_equal_the_formula(clusters: Clusters, name: str) -> None:
    case = CASES[name]
    _, trace = clusters(len(case.tokens)).trace(on_rank, case)
    assert list(trace.bytes_sent) == cost.sent(routes_of(case), WIDTH, 8, case.chunks)


@pytest.mark.parametrize("name", ["two nodes", "three nodes", "seven experts on two nodes"])
def test_bytes_between_nodes_equal_the_formula(clusters: Clusters, name: str) -> None:
    """Each message between nodes is one of the first level; a copy goes to a node once."""
    case = CASES[name]
    n = len(case.tokens)
    _, trace = clusters(n).trace(on_rank, case)
    of_node = n // case.nodes
    sent = [0] * n
    for message in trace.messages:
        if message.src // of_node != message.dst // of_node:
            sent[message.src] += message.bytes
    assert sent == cost.sent_across_by_rank(routes_of(case), WIDTH, 8)


def test_what_copies_to_expect() -> None:
    """DeepSeek-V3's 8 of 256 experts on 8 nodes, were it not for its limit of 4: 5.3 nodes, instead of 8 rows."""
    random = torch.Generator().manual_seed(0)
    chosen = torch.rand(4000, 256, generator=random).argsort(-1)[:, :8]
    counted = cost.Routes((chosen,) * 8, 256, nodes=8).copies()[0].sum() / 4000
    assert counted == pytest.approx(cost.expected_nodes(256, 8, 8), rel=0.01)
    assert cost.expected_nodes(256, 8, 8) == pytest.approx(5.29, abs=0.01)
    assert cost.expected_nodes(4, 4, 2) == 2 and cost.expected_nodes(8, 1, 4) == 1


def test_rows_come_in_the_order_of_experts_and_go_back() -> None:
    x = torch.arange(6.0).view(1, 3, 2)
    choices = ChoicesByExpert.of(torch.tensor([[[2, 0], [1, 2], [-1, 0]]]), 4)
    rows = choices.rows(x)
    assert choices.counts.tolist() == [2, 1, 2, 0]
    assert rows.tolist() == [[0, 1], [4, 5], [2, 3], [0, 1], [2, 3]]
    assert choices.back(rows * 10).tolist() == [[[[0, 10], [0, 10]], [[20, 30], [20, 30]], [[0, 0], [40, 50]]]]


def test_on_the_meta_device_all_experts_get_as_many() -> None:
    x, chosen = torch.empty(1, 5, 2, device="meta"), torch.empty(1, 5, 2, dtype=torch.int64, device="meta")
    choices = ChoicesByExpert.of(chosen, 4)
    assert choices.rows(x).shape == (10, 2) and choices.counts.tolist() == [3, 3, 2, 2]
    assert choices.back(choices.rows(x)).shape == (1, 5, 2, 2)


def differentiated_twice(case: Case) -> str:
    """What a penalty on gradients is refused with."""
    layer = experts_of(case, case.ep, 1, (dist.get_rank(), 0))
    x, chosen, weights, _ = inputs_of(case)[dist.get_rank()]
    x.requires_grad_()
    out = Dispatch(over(dist.group.WORLD), case.experts).start(layer, x, chosen, weights)()
    (first,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError) as refused:
        first.square().sum().backward()
    return str(refused.value)


def test_gradients_of_gradients_are_refused_instead_of_wrong(clusters: Clusters) -> None:
    assert all("differentiate twice" in said for said in clusters(2).run(differentiated_twice, CASES["two"]))
