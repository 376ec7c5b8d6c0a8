"""Metrics over ranks are those of one process that has seen everything, however it was divided."""

import math
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from reference.cluster import Cluster
from reference.data_parallel.answers.metrics import Average, accuracy, hits, over_ranks, perplexity, token_losses
from reference.trace import Op

Clusters = Callable[..., Cluster]
VOCABULARY = 7
COUNTS = {
    "alike": lambda n: [6] * n,
    "uneven": lambda n: list(range(3, 3 + n)),
    "one has none": lambda n: [0, *[5] * (n - 1)],
}


def batch(rank: int, tokens: int) -> tuple[Tensor, Tensor]:
    """Logits and targets, of which every fourth is not to be predicted."""
    generator = torch.Generator().manual_seed(rank)
    logits = torch.randn(tokens, VOCABULARY, generator=generator, dtype=torch.float64)
    targets = torch.randint(VOCABULARY, (tokens,), generator=generator)
    targets[3::4] = -100
    return logits, targets


def measured(counts: list[int]) -> dict[str, float]:
    """Loss and accuracy, of two batches on each rank, in one message."""
    first, second = batch(dist.get_rank(), counts[dist.get_rank()]), batch(100 + dist.get_rank(), 2)
    return over_ranks(
        {
            "loss": token_losses(*first) + token_losses(*second),
            "accuracy": hits(*first) + hits(*second),
            "length": Average.of(torch.tensor([counts[dist.get_rank()]])),
        },
        dist.group.WORLD,
    )


@pytest.mark.parametrize("counts", COUNTS)
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_means_are_those_of_one_process(clusters: Clusters, n: int, counts: str) -> None:
    """Sums of integers are exact. The sum of losses differs in the order of additions alone: 1e-15 for each."""
    lengths = COUNTS[counts](n)
    results, trace = clusters(n).trace(measured, lengths)
    batches = [batch(rank, length) for rank, length in enumerate(lengths)] + [batch(100 + rank, 2) for rank in range(n)]
    logits, targets = (torch.cat(each) for each in zip(*batches, strict=True))
    for result in results:
        assert result == results[0]
        assert result["loss"] == pytest.approx(float(F.cross_entropy(logits, targets)), rel=1e-13)
        assert result["accuracy"] == float((logits.argmax(-1) == targets).sum()) / int((targets != -100).sum())
        assert result["length"] == sum(lengths) / n
    assert all([(e.op, e.bytes) for e in events] == [(Op.ALL_REDUCE, 3 * 16)] for events in trace.events)


def test_the_mean_of_means_is_another_number(clusters: Clusters) -> None:
    """What this module is for: the cases above would notice it."""
    own = [hits(*batch(rank, length)) + hits(*batch(100 + rank, 2)) for rank, length in enumerate([3, 4, 5])]
    each = [float(right / asked) for right, asked in (average.sum_and_count for average in own)]
    (together, *_) = clusters(3).run(lambda: measured([3, 4, 5])["accuracy"])
    assert together != pytest.approx(sum(each) / 3, rel=1e-3)


def test_accuracy_in_one_call(clusters: Clusters) -> None:
    """Rank 1 has seen nothing. Targets are what rank 0 predicts, but for one, and one that is not asked for."""

    def on_rank() -> float:
        logits = torch.eye(4)[: 4 if dist.get_rank() == 0 else 0]
        return accuracy(logits, torch.tensor([0, 1, 3, -100])[: len(logits)], dist.group.WORLD)

    assert clusters(2).run(on_rank) == [2 / 3, 2 / 3]


def test_of_nothing_there_is_no_mean(clusters: Clusters) -> None:
    (result,) = clusters(1).run(lambda: over_ranks({"empty": Average.of(torch.empty(0))}, dist.group.WORLD))
    assert math.isnan(result["empty"])


def test_no_metrics_take_no_message(clusters: Clusters) -> None:
    results, trace = clusters(2).trace(lambda: over_ranks({}, dist.group.WORLD))
    assert results == [{}, {}]
    assert not any(trace.events)


def test_losses_in_bfloat16_are_summed_in_more_bits() -> None:
    logits = torch.randn(4000, VOCABULARY, generator=torch.Generator().manual_seed(0)).bfloat16()
    targets = torch.zeros(4000, dtype=torch.int64)
    total, count = token_losses(logits, targets).sum_and_count.tolist()
    assert total / count == pytest.approx(float(F.cross_entropy(logits.double(), targets)), rel=1e-6)


def test_perplexity_of_a_fair_die_is_its_number_of_sides() -> None:
    logits, targets = torch.zeros(5, 6), torch.arange(5)
    total, count = token_losses(logits, targets).sum_and_count.tolist()
    assert perplexity(total / count) == pytest.approx(6, rel=1e-6)
