"""What a rank keeps of a layer's experts is what the formula says."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

from reference.cluster import Cluster
from reference.config import TrainConfig
from reference.expert_parallel.cost import parameters_on_a_rank
from reference.models.moe_config import MoEConfig
from reference.parallelize import DataParallelism, Plan
from reference.train import Training

MODEL = MoEConfig(2, 16, 4, 2, 24, experts=6, top_k=2, expert_hidden=12)
CONFIG = TrainConfig(MODEL, steps=1, batch=24, sequence=24)


def kept(config: TrainConfig, plan: Plan) -> tuple[int, int]:
    """Elements of experts whose masters this rank keeps, and those of its optimizer after a step."""
    training = Training(config, dist.group.WORLD, torch.device("cpu"), plan)
    training.backward(0)
    training.update(0)
    masters = [part.master for part in training.form.parts if ".experts." in part.name]
    states = [training.optimizer.state[master]["exp_avg"].numel() for master in masters if master.numel()]
    return sum(master.numel() for master in masters), sum(states)


@pytest.mark.parametrize(
    ("ranks", "experts", "plan", "shards"),
    [
        (2, 6, Plan(expert_parallel=2), 1),
        (4, 6, Plan(expert_parallel=2), 1),
        (4, 6, Plan(DataParallelism.FSDP, expert_parallel=2), 2),
        (4, 6, Plan(DataParallelism.ZERO1, expert_parallel=2), 2),
        (4, 5, Plan(expert_parallel=4), 1),  # two, two, one, none
        (4, 6, Plan(expert_parallel=2, expert_tensor_parallel=2), 1),
        (6, 6, Plan(DataParallelism.FSDP, tensor_parallel=2, expert_parallel=3), 2),
    ],
)
def test_a_rank_keeps_its_share_of_experts(
    clusters: Callable[..., Cluster], ranks: int, experts: int, plan: Plan, shards: int
) -> None:
    config = replace(CONFIG, model=replace(MODEL, experts=experts))
    found = clusters(ranks).run(kept, config, plan)
    one = parameters_on_a_rank(
        config.model.expert_parameters, experts, plan.expert_parallel, plan.expert_tensor_parallel, shards
    )
    assert max(numbers for numbers, _ in found) == len(config.model.expert_layers) * one
    assert all(numbers == states for numbers, states in found)
    replicas = ranks // plan.expert_parallel // plan.expert_tensor_parallel // shards
    assert sum(numbers for numbers, _ in found) == replicas * 2 * experts * config.model.expert_parameters
