"""Rules that a few liars do not move far, and the one that they do."""

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

from reference.cluster import Cluster
from reference.collectives.default import over
from reference.decentralized import plain_unscheduled
from reference.decentralized.lab.least_squares import LeastSquares
from reference.decentralized.lab.liars import train
from reference.decentralized.robust import ATTACKS, RULES, combine, krum, little, mean, median, trimmed_mean
from reference.errors import BadInput

PROBLEM = LeastSquares.drawn(size=7, examples=200, batch=16)
N, LIARS = 5, 1


def said(rank: int) -> torch.Tensor:
    return torch.randn(7, generator=torch.Generator().manual_seed(rank)).double()


def _combined(name: str) -> torch.Tensor:
    return combine(RULES[name], said(dist.get_rank()), LIARS, over(dist.group.WORLD))


@pytest.mark.parametrize("name", RULES)
def test_all_ranks_agree_on_what_one_process_finds(clusters: Callable[..., Cluster], name: str) -> None:
    results, trace = clusters(N).trace(_combined, name)
    expected = RULES[name](torch.stack([said(rank) for rank in range(N)]), LIARS)
    for result in results:
        torch.testing.assert_close(result, expected, rtol=1e-14, atol=1e-15)
    whole = 8 * 10  # 7 numbers in 5 chunks of 2
    most = (N - 1) * 56 if name == "Krum" else 2 * (N - 1) * whole // N
    assert max(trace.bytes_sent) == most


def test_the_trimmed_mean_is_the_plain_algorithm() -> None:
    every = torch.stack([said(rank) for rank in range(N)])
    assert torch.equal(trimmed_mean(every, 2), plain_unscheduled.robust(every, 2))
    assert torch.equal(trimmed_mean(every, 2), median(every, 2)), "of five, without two on each side"
    torch.testing.assert_close(trimmed_mean(every, 0), mean(every, 0))


@pytest.mark.parametrize("name", ["median", "trimmed mean", "Krum"])
@pytest.mark.parametrize("lie", [1e300, -1e300, float("inf"), float("nan")])
def test_how_far_a_liar_goes_does_not_matter(name: str, lie: float) -> None:
    honest = torch.stack([said(rank) for rank in range(1, N)])
    result = RULES[name](torch.cat([torch.full((1, 7), lie, dtype=torch.float64), honest]), LIARS)
    assert (honest.min(0).values <= result).all()
    assert (result <= honest.max(0).values).all()


def test_krum_takes_one_of_those_that_are_near_each_other() -> None:
    every = torch.tensor([[9.0, 9.0], [1.0, 1.0], [1.1, 1.0], [1.0, 1.1], [-5.0, 0.0]])
    assert krum(every, 1).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("attack", ["sign flip", "large"])
def test_training_learns_among_liars_but_not_by_the_mean(clusters: Callable[..., Cluster], attack: str) -> None:
    begin = PROBLEM.loss(torch.zeros(7).double())
    for name in ("mean", "trimmed mean", "Krum"):
        loss = PROBLEM.loss(train(clusters(N), RULES[name], ATTACKS[attack], PROBLEM, LIARS, 40, 0.1))
        assert loss > begin if name == "mean" else loss < begin / 10, (name, loss)


def test_a_little_hides_in_the_spread_of_the_others() -> None:
    """So Krum takes the lie, and the trimmed mean is pulled to its side."""
    every = torch.stack([said(rank) for rank in range(9)])
    every[:3] = little(every, 3)
    honest = every[3:]
    assert (every[0] >= honest.min(0).values).all()
    assert torch.equal(krum(every, 3), every[0])
    assert (trimmed_mean(every, 3) < honest.mean(0)).double().mean() > 0.5


def test_too_many_liars_are_refused(clusters: Callable[..., Cluster]) -> None:
    def refused(name: str, liars: int) -> str:
        try:
            combine(RULES[name], said(0), liars, over(dist.group.WORLD))
        except BadInput as error:
            return str(error)

    assert "krum needs 7 ranks or more" in clusters(N).run(refused, "Krum", 2)[0]
    assert "trimmed-mean needs 7" in clusters(N).run(refused, "trimmed mean", 3)[0]
