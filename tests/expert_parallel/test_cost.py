"""What a layer of experts sends is what the formulas say, for any routing."""

from dataclasses import replace
from math import comb

import pytest
import torch
import torch.distributed as dist

from reference.errors import BadInput
from reference.expert_parallel import Dispatch, TwoLevelDispatch, cost
from reference.expert_parallel.answers.sharing import bytes_of_experts
from reference.expert_parallel.cost import Routes
from reference.models.routing import NOWHERE

WIDTH, K = 6, 3


def routes(ranks: int, experts: int, nodes: int = 1, seed: int = 0) -> Routes:
    """Ranks with 5, 6, 7, ... tokens and none on rank 1, some choices dropped, and some experts that no token wants."""
    generator = torch.Generator().manual_seed(seed)
    chosen = []
    for rank in range(ranks):
        scores = torch.rand(0 if rank == 1 else 5 + rank, experts, generator=generator)
        scores[:, experts // 2] = -1.0
        mine = scores.topk(K, dim=-1).indices
        chosen.append(mine.masked_fill(torch.rand(mine.shape, generator=generator) < 0.2, NOWHERE))
    return Routes(tuple(chosen), experts, nodes)


def layer(routes: Routes, two_levels: bool) -> None:
    """Forward and backward of one rank, in float64."""
    from reference.collectives.default import over
    from reference.groups import Groups
    from reference.mesh import Mesh

    if two_levels:
        mesh = Mesh({"node": routes.nodes, "inside": routes.ranks // routes.nodes})
        groups = Groups(dist.group.WORLD, mesh, over)
        dispatch = TwoLevelDispatch(groups.communicator("node"), groups.communicator("inside"), routes.experts)
    else:
        dispatch = Dispatch(over(dist.group.WORLD), routes.experts)
    chosen = routes.chosen[dist.get_rank()]
    x = torch.randn(len(chosen), WIDTH, dtype=torch.float64, requires_grad=True)
    weights = torch.rand(chosen.shape, dtype=torch.float64, requires_grad=True)
    out = dispatch.start(lambda rows, counts: 2 * rows, x[None], chosen[None], weights[None])()
    out.sum().backward()


@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_one_level_sends_a_row_for_each_choice_and_one_back_twice(clusters, ranks: int) -> None:
    held = routes(ranks, 2 * ranks + 2 * (ranks == 1))
    _, trace = clusters(ranks).trace(layer, held, False)
    assert trace.bytes_sent == cost.sent(held, WIDTH, 8)


@pytest.mark.parametrize(("ranks", "nodes"), [(4, 2), (3, 3)])
def test_two_levels_send_a_copy_to_a_node(clusters, ranks: int, nodes: int) -> None:
    held = routes(ranks, 4 * ranks, nodes)
    _, trace = clusters(ranks).trace(layer, held, True)
    of_node = ranks // nodes
    crossing = sum(message.bytes for message in trace.messages if message.src // of_node != message.dst // of_node)
    assert crossing == cost.sent_across(held, WIDTH, 8)


def test_every_choice_is_a_row_and_every_node_a_copy() -> None:
    held = Routes((torch.tensor([[0, 1], [0, 3]]), torch.tensor([[2, NOWHERE]])), experts=4, nodes=2)
    assert held.counts().tolist() == [[2, 1, 0, 1], [0, 0, 1, 0]]
    assert held.rows().tolist() == [[3, 1], [0, 1]]
    assert held.copies().tolist() == [[2, 1], [0, 1]]


@pytest.mark.parametrize(("ranks", "nodes"), [(4, 2), (6, 3)])
def test_inside_a_node_rows_are_those_of_all_choices_of_its_experts(ranks: int, nodes: int) -> None:
    held = routes(ranks, 2 * ranks, nodes)
    arriving = [row for node in range(nodes) for row in cost.inside(held, node).rows().sum(0).tolist()]
    assert arriving == held.rows().sum(0).tolist()


def test_a_forward_that_runs_twice_sends_half_as_much_again_and_its_counts_twice() -> None:
    held = routes(4, 8)
    nothing = replace(held, chosen=tuple(chosen[:0] for chosen in held.chosen))
    once, twice, counts = cost.sent(held, WIDTH, 8), cost.sent(held, WIDTH, 8, forwards=2), cost.sent(nothing, WIDTH, 8)
    assert [2 * (many - 2 * few) for many, few in zip(twice, counts, strict=True)] == [
        3 * (many - few) for many, few in zip(once, counts, strict=True)
    ]


@pytest.mark.parametrize("etp", [1, 2, 4])
def test_ranks_that_share_matrices_send_what_the_formula_for_even_rows_says(etp: int) -> None:
    rows = 24
    expected = bytes_of_experts(rows, 1, WIDTH, 8, 1, etp)[1]
    assert cost.sent_between_shares([rows] * etp, counted=0, width=WIDTH, size=8) == [expected] * etp


@pytest.mark.parametrize(("experts", "k", "nodes"), [(8, 2, 4), (16, 4, 2), (6, 6, 3)])
def test_expected_nodes_are_the_mean_over_all_choices(experts: int, k: int, nodes: int) -> None:
    every = torch.combinations(torch.arange(experts), k)
    of_node = experts // nodes
    found = torch.stack([(every // of_node == node).any(1) for node in range(nodes)]).sum() / comb(experts, k)
    assert cost.expected_nodes(experts, k, nodes) == pytest.approx(float(found))


@pytest.mark.parametrize(
    ("chosen", "experts", "nodes", "words"),
    [((), 4, 1, "on 0 ranks"), (2, 0, 1, "0 experts"), (2, 4, 3, "2 ranks"), (2, 2, 1, "there is not")],
)
def test_routes_that_make_no_sense_are_refused(chosen, experts: int, nodes: int, words: str) -> None:
    of_ranks = (torch.tensor([[3]]),) * chosen if chosen else ()
    with pytest.raises(BadInput, match=words):
        Routes(of_ranks, experts, nodes)
