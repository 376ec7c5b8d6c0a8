"""A bias that evens out experts: its step, what it does to training, and that a step's load is of all ranks."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

from reference.cluster import Cluster
from reference.config import TrainConfig
from reference.expert_parallel.balancing import StepLoad, moved
from reference.models.moe_config import Balance, MoEConfig
from reference.parallelize import DataParallelism, Plan
from reference.train import Training

MODEL = MoEConfig(2, 16, 4, 2, 24, experts=4, top_k=2, expert_hidden=12)
CONFIG = TrainConfig(MODEL, steps=40, batch=8, sequence=24)
Clusters = Callable[..., Cluster]


def test_the_step_of_a_bias() -> None:
    """Wang et al. 2024, algorithm 1; the mean of all biases stays zero."""
    after = moved(torch.zeros(4), torch.tensor([10.0, 0.0, 2.0, 4.0]), 0.1)
    torch.testing.assert_close(after, torch.tensor([-0.125, 0.075, 0.075, -0.025]))
    assert moved(torch.zeros(2), torch.tensor([3.0, 3.0]), 0.1).tolist() == [0.0, 0.0]


def loads(config: TrainConfig, plan: Plan, steps: int) -> list[tuple[StepLoad, list]]:
    """Of each step: what experts got, and the bias after it."""
    training, found = Training(config, dist.group.WORLD, torch.device("cpu"), plan), []
    for step in range(steps):
        training.backward(step)
        training.update(step)
        found.append((training.load, training.balancing.bias.tolist()))
    return found


PLANS = {
    "pipeline x ep": (4, Plan(pipeline_parallel=2, micro_batches=2, expert_parallel=2)),
    "tp x cp": (4, Plan(tensor_parallel=2, context_parallel=2, expert_parallel=4)),
    "fsdp": (4, Plan(DataParallelism.FSDP, expert_parallel=2, micro_batches=2)),
}


@pytest.mark.parametrize("name", PLANS)
def test_a_load_is_that_of_one_process_on_every_rank(clusters: Clusters, name: str) -> None:
    ranks, plan = PLANS[name]
    config = replace(CONFIG, model=replace(MODEL, balance=Balance.BIAS, z_loss=0.01, capacity=0.8))
    (alone,) = clusters(1).run(loads, config, Plan(), 3)
    for found in clusters(ranks).run(loads, config, plan, 3):
        for (mine, bias), (expected, its_bias) in zip(found, alone, strict=True):
            assert torch.equal(mine.counts, expected.counts) and mine.dropped == expected.dropped > 0
            assert mine.loss == pytest.approx(expected.loss, rel=1e-5) and bias == its_bias
    assert int(alone[0][0].counts.sum()) == 2 * 2 * 8 * 24


def test_balancing_evens_out_what_is_uneven_without_it(clusters: Clusters) -> None:
    """Three runs of 40 steps: the last ten, of the layer that is worst."""
    worst = {}
    for balance, rate in ((Balance.NONE, 0.0), (Balance.SWITCH, 0.1), (Balance.BIAS, 0.002)):
        model = replace(MODEL, balance=balance, balance_rate=rate)
        config = replace(CONFIG, model=model, learning_rate=1e-3)
        found = clusters(2).run(loads, config, Plan(), 40)[0]
        worst[balance] = sum(load.imbalance for load, _ in found[-10:]) / 10
    assert max(worst[Balance.BIAS], worst[Balance.SWITCH]) < worst[Balance.NONE] - 0.2, worst


def test_words_of_a_load() -> None:
    load = StepLoad(torch.tensor([[4, 0], [2, 2]]), 2, 0.5)
    assert load.imbalance == 2.0 and load.dropped_share == 0.25
    nothing = StepLoad(torch.zeros(0, 2, dtype=torch.int64), 0, 0.0)
    assert nothing.imbalance == 1.0 and nothing.dropped_share == 0
