"""Ranks with more and with less to do, in a batch and in number of batches, learn what one process learns."""

from collections.abc import Callable, Iterator
from itertools import zip_longest

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from reference.cluster import Cluster
from reference.data_parallel.replicated import DistributedDataParallel, Replicated
from reference.data_parallel.uneven import joined, weighted_loss
from reference.memory.precision import PRECISIONS
from reference.oracle import alone, record
from reference.trace import Op

Clusters = Callable[..., Cluster]
RATE = 0.1
TOKENS = ([3, 1, 2], [4], [], [2, 5, 1, 3])  # of each batch of ranks 0 to 3


def losses_of(rank: int, count: int) -> Tensor:
    generator = torch.Generator().manual_seed(rank)
    return torch.randn(count, generator=generator, dtype=torch.float64).requires_grad_()


def weighted(counts: list[int]) -> tuple[Tensor, Tensor]:
    losses = losses_of(dist.get_rank(), counts[dist.get_rank()])
    loss = weighted_loss(losses, dist.group.WORLD)
    loss.backward()
    return loss.detach(), losses.grad


@pytest.mark.parametrize("counts", [[4], [3, 3], [1, 6], [5, 0, 2], [0, 0, 1, 0]], ids=str)
def test_every_token_counts_the_same(clusters: Clusters, counts: list[int]) -> None:
    results, trace = clusters(len(counts)).trace(weighted, counts)
    whole = torch.cat([losses_of(rank, count) for rank, count in enumerate(counts)])
    assert sum(loss.item() for loss, _ in results) == pytest.approx(whole.mean().item(), rel=1e-14)
    for _, gradient in results:
        assert torch.equal(gradient, torch.full_like(gradient, 1 / sum(counts)))
    assert all([(e.op, e.bytes) for e in events] == [(Op.ALL_REDUCE, 8)] for events in trace.events)


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)).double()


def batches(rank: int) -> Iterator[Tensor]:
    for step, tokens in enumerate(TOKENS[rank]):
        generator = torch.Generator().manual_seed(10 * step + rank)
        yield torch.randn(tokens, 2, generator=generator, dtype=torch.float64)


def train(form: type, members: list[int]) -> tuple[list[int], dict[str, Tensor]] | None:
    """Until all ranks of a group have run out: the tokens of every step, and the parameters."""
    group = dist.new_group(members)
    if dist.get_rank() not in members:
        return None
    learner = model()
    parallel, seen = form(learner, group, PRECISIONS["fp64"], unused=True), []
    for batch, tokens in joined(batches(dist.get_rank()), group):
        with parallel.micro_batch(last=True):
            if batch is not None:
                (learner(batch).square().sum() / tokens).backward()
        parallel.reduce_gradients()
        with torch.no_grad():
            for part in parallel.parts:
                part.master.sub_(RATE * part.master.grad)
        parallel.end_step()
        seen.append(tokens)
    return seen, {name: p.detach() for name, p in learner.named_parameters()}


def in_one_process(members: list[int]) -> tuple[list[int], dict[str, Tensor]]:
    learner, of_ranks = model(), [list(batches(rank)) for rank in members]
    steps = [torch.cat([x for x in step if x is not None]) for step in zip_longest(*of_ranks)]
    optimizer = torch.optim.SGD(learner.parameters(), lr=RATE)
    found = record(learner, alone(learner, optimizer, lambda k: learner(steps[k]).square().mean(), len(steps)))
    return [len(batch) for batch in steps], found.parameters


@pytest.mark.parametrize("form", [Replicated, DistributedDataParallel])
@pytest.mark.parametrize("members", [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3], [1, 2]], ids=str)
def test_training_goes_on_until_the_last_has_finished(clusters: Clusters, form: type, members: list[int]) -> None:
    """Rank 2 has no batch at all, and takes every step with the others."""
    seen, parameters = in_one_process(members)
    results = [result for result in clusters(4).run(train, form, members) if result is not None]
    assert len(results) == len(members)
    for mine_seen, mine in results:
        assert mine_seen == seen
        for name, value in parameters.items():
            torch.testing.assert_close(mine[name], value, rtol=1e-12, atol=1e-14, msg=name)


def test_it_takes_one_message_a_step_and_one_more(clusters: Clusters) -> None:
    results, trace = clusters(3).trace(lambda: list(joined("ab" * dist.get_rank(), dist.group.WORLD)))
    assert results[0] == [(None, 2), (None, 2), (None, 1), (None, 1)]
    assert results[1] == [("a", 2), ("b", 2), (None, 1), (None, 1)]
    assert all([(e.op, e.bytes) for e in events] == [(Op.ALL_REDUCE, 16)] * 5 for events in trace.events)


def learned_from_pairs() -> list[Tensor]:
    """The loop of the module's docstring, on batches of inputs and targets; rank 1 has one less."""
    learner, group = model(), dist.group.WORLD
    form = DistributedDataParallel(learner, group, PRECISIONS["fp64"], unused=True)
    optimizer = torch.optim.SGD([part.master for part in form.parts], lr=RATE)
    batches = [(torch.full((2, 2), 1.0 + i).double(), torch.ones(2, 1).double()) for i in range(2 - dist.get_rank())]
    for batch, tokens in joined(batches, group, tokens_of=lambda batch: batch[1].numel()):
        with form.micro_batch(last=True):
            if batch is not None:
                ((learner(batch[0]) - batch[1]).square().sum() / tokens).backward()
        form.reduce_gradients()
        optimizer.step()
        form.end_step()
    return [p.detach() for p in learner.parameters()]


def test_the_loop_of_the_docstring_learns(clusters: Clusters) -> None:
    learner = model()
    optimizer = torch.optim.SGD(learner.parameters(), lr=RATE)
    record(
        learner,
        alone(learner, optimizer, lambda k: (learner(torch.full((1, 2), k + 1.0).double()) - 1).square().sum(), 2),
    )
    for found in clusters(2).run(learned_from_pairs):
        for got, expected in zip(found, learner.parameters(), strict=True):
            torch.testing.assert_close(got, expected.detach(), rtol=1e-12, atol=1e-14)


def test_a_batch_of_padding_alone_ends_nothing(clusters: Clusters) -> None:
    def on_rank() -> list:
        return list(joined([0, 3], dist.group.WORLD, tokens_of=lambda tokens: tokens))

    assert clusters(2).run(on_rank) == [[(0, 0), (3, 6)]] * 2


def test_ranks_that_have_nothing_at_all_are_done(clusters: Clusters) -> None:
    assert clusters(2).run(lambda: list(joined([], dist.group.WORLD))) == [[], []]
