"""Steps on this machine: prices are found again, and a prediction is what counts and prices say."""

from dataclasses import replace

import numpy as np
import pytest

from reference.config import TrainConfig
from reference.models.config import preset
from reference.plan import DataParallelism, Plan
from reference.planning import local
from reference.planning.local import LocalRates, counts, errors, features, predict_here, rank_seconds

RATES = LocalRates(cores=2, flop=2e-11, byte=1e-10, kernel=1e-5, step=5e-3, message=1e-4, sent=1e-9)
CONFIG = TrainConfig(preset("demo"), batch=8)
PRICES = (RATES.flop, RATES.byte, RATES.kernel, RATES.step)


def test_prices_are_found_again_from_what_they_cost() -> None:
    rows = np.random.default_rng(0).uniform(1, 100, (12, 4)) / PRICES
    assert local._not_below_zero(rows, rows @ PRICES) == pytest.approx(PRICES, rel=1e-9)


def test_no_price_is_below_zero() -> None:
    rows = np.random.default_rng(1).uniform(1, 100, (12, 4))
    found = local._not_below_zero(rows, rows @ [1.0, 2.0, -0.2, 3.0])
    assert (found > 0).all() and found[2] < 1e-12


def test_one_rank_takes_what_it_does() -> None:
    rank = counts(CONFIG, Plan(), 1).rank()
    flops, moved, kernels, steps, messages, sent = features(rank)
    expected = flops * RATES.flop + moved * RATES.byte + kernels * RATES.kernel + RATES.step
    assert (steps, messages, sent) == (1, 0, 0)
    assert predict_here(RATES, CONFIG, Plan(), 1) == pytest.approx(expected)


def test_ranks_share_cores() -> None:
    """Four replicas do a quarter each, on two cores: as long as one process on two, and messages besides."""
    plan = Plan(DataParallelism.DDP)
    one, four = (rank_seconds(RATES, counts(CONFIG, plan, ranks).rank()) for ranks in (1, 4))
    assert predict_here(RATES, CONFIG, plan, 4) == pytest.approx(4 * four / 2)
    assert predict_here(RATES, CONFIG, plan, 2) == pytest.approx(rank_seconds(RATES, counts(CONFIG, plan, 2).rank()))
    assert four < one


def test_a_pipeline_with_few_micro_batches_waits() -> None:
    few, many = (Plan(micro_batches=m, pipeline_parallel=2) for m in (1, 8))
    assert predict_here(RATES, CONFIG, few, 2) > 1.2 * predict_here(RATES, CONFIG, many, 2)


def test_ranks_that_wait_for_each_other_take_longer_and_one_alone_does_not() -> None:
    slow, plan = replace(RATES, together={1: 1.0, 2: 1.2, 8: 1.6}), Plan(DataParallelism.DDP)
    for ranks, factor in ((1, 1.0), (2, 1.2), (4, 1.4), (8, 1.6)):
        expected = factor * predict_here(RATES, CONFIG, plan, ranks)
        assert predict_here(slow, CONFIG, plan, ranks) == pytest.approx(expected)


def test_errors_are_medians_and_orders() -> None:
    assert errors([1.1, 2.0, 2.7], [1.0, 2.0, 3.0]) == (pytest.approx(0.1), pytest.approx(1.0))
    assert errors([3.0, 2.0, 1.0], [1.0, 2.0, 3.0])[1] == pytest.approx(-1.0)
