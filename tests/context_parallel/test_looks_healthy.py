"""What the puzzle `looks_healthy` says of its program holds: all of it looks well but for the gradients."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from puzzles import catalog
from puzzles.catalog.context_parallel.in_one_process import by_definition
from puzzles.catalog.context_parallel.looks_healthy import WEIGHTS
from puzzles.grading import text
from puzzles.grading.puzzle import case
from reference.cluster import Cluster

from .conftest import EXACT, on

PUZZLE = catalog.find("context_parallel.looks_healthy")
SIZES = {"batch": 2, "local": 3, "width": 3, "steps": 8}


def in_training(group: ProcessGroup, source: str, inputs: list[dict[str, Any]]) -> tuple[list[float], list, Tensor]:
    """The program's losses, its weights afterwards, and what it finds for this rank's queries in the first step."""
    program: dict[str, Any] = {}
    exec(source, program)
    of_queries, one_block = [], program["attend_backward"]

    def recorded(*arguments: Any) -> tuple[Tensor, ...]:
        found = one_block(*arguments)
        of_queries.append(found[0])
        return found

    program["attend_backward"] = recorded
    own = inputs[group.rank()]
    losses = program["train"](**own, group=group)
    return losses, [own[name].detach() for name in WEIGHTS], sum(of_queries[: group.size()])


def gradient_of_queries(inputs: list[dict[str, Any]]) -> tuple[float, Tensor]:
    """Of one process, in the first step: the loss, and the gradient of all queries, [B, 1, S, D]."""
    x, target = (torch.cat([each[name] for each in inputs], 1) for name in ("x", "target"))
    query, key, value = ((x @ inputs[0][name].T)[:, None] for name in WEIGHTS)
    query.requires_grad_()
    loss = (x + by_definition(query, key, value, torch.arange(x.shape[1]))[:, 0] - target).square().sum(-1).mean()
    return loss.item(), torch.autograd.grad(loss, query)[0]


@pytest.mark.parametrize("n", [2, 4])
def test_all_looks_well_but_for_the_gradients_of_all_ranks_but_the_first(ranks: Cluster, n: int) -> None:
    inputs = [dict(PUZZLE.inputs(case(n, **SIZES), rank)) for rank in range(n)]
    loss, gradient = gradient_of_queries(inputs)
    found = on(ranks, n, in_training, text.stub(PUZZLE), inputs)
    for rank, (losses, weights, of_queries) in enumerate(found):
        assert losses[0] == pytest.approx(loss, rel=EXACT)
        assert all(later < earlier for earlier, later in pairwise(losses))
        assert all(torch.equal(one, other) for one, other in zip(weights, found[0][1], strict=True))
        off = (of_queries - gradient.chunk(n, 2)[rank]).abs().max() / gradient.abs().max()
        assert (off < EXACT) == (rank == 0), (rank, off)


def test_on_one_rank_it_is_right(ranks: Cluster) -> None:
    alone = case(1, **SIZES)
    inputs = [dict(PUZZLE.inputs(alone, 0))]
    (expected,) = PUZZLE.oracle(alone, [dict(PUZZLE.inputs(alone, 0))])
    ((losses, weights, _),) = on(ranks, 1, in_training, text.stub(PUZZLE), inputs)
    assert losses == pytest.approx(expected["losses"], rel=EXACT)
    for name, weight in zip(WEIGHTS, weights, strict=True):
        assert float((weight - expected[name]).abs().max()) < EXACT
