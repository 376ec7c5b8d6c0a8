"""Models with experts train what one process trains, however their ranks are folded; and what a step sends."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from rankwise import on_rank
from reference.cluster import Cluster
from reference.config import TrainConfig
from reference.errors import BadInput
from reference.expert_parallel import cost
from reference.memory.precision import PRECISIONS
from reference.memory.recompute import Recompute
from reference.models.moe_config import Balance, Gate, MoEConfig
from reference.oracle import largest_difference, one_process
from reference.parallelize import DataParallelism, PipelineSchedule, Plan
from reference.trace import Op
from reference.train import Training

EXACT = 1e-10
MODEL = MoEConfig(layers=2, width=16, heads=4, kv_heads=2, hidden=24, experts=4, top_k=2, expert_hidden=12)
CONFIG = TrainConfig(MODEL, steps=3, batch=8, sequence=24, warmup=2, precision=PRECISIONS["fp64"])
DEEPSEEK = {"gate": Gate.SIGMOID, "scale": 2.5, "shared_experts": 1, "dense_layers": 1, "balance": Balance.BIAS}
CASES = {
    "experts on all ranks": (4, {}, Plan(DataParallelism.DDP, expert_parallel=4)),
    "replicas of experts": (4, {}, Plan(DataParallelism.DDP, expert_parallel=2, micro_batches=2)),
    "FSDP of both": (4, {}, Plan(DataParallelism.FSDP, expert_parallel=2, micro_batches=2, recompute=Recompute.FULL)),
    "HSDP": (8, {}, Plan(DataParallelism.HSDP, expert_parallel=2)),
    "five experts on three": (3, {"experts": 5}, Plan(expert_parallel=3)),
    "tensor parallel, whole experts": (2, {}, Plan(tensor_parallel=2, expert_parallel=2)),
    "sequence parallel": (2, {}, Plan(tensor_parallel=2, sequence_parallel=True, expert_parallel=2)),
    "ep 1, etp 2 (Megatron-LM issue 1628)": (2, {}, Plan(tensor_parallel=2, expert_tensor_parallel=2)),
    "etp without tp": (4, {}, Plan(DataParallelism.FSDP, expert_parallel=2, expert_tensor_parallel=2)),
    "context": (
        4,
        {"balance": Balance.SEQUENCE, "z_loss": 0.01},
        Plan(context_parallel=2, tensor_parallel=2, expert_parallel=4),
    ),
    "capacity over ranks that share windows": (
        4,
        {"capacity": 0.8, "balance": Balance.GSHARD},
        Plan(context_parallel=2, tensor_parallel=2, expert_parallel=4),
    ),
    "two levels": (4, {"expert_groups": 2}, Plan(expert_parallel=4, expert_nodes=2, expert_chunks=2)),
    "as DeepSeek": (4, DEEPSEEK, Plan(DataParallelism.FSDP, expert_parallel=4, micro_batches=2)),
    "zero bubble": (
        4,
        {},
        Plan(
            DataParallelism.FSDP,
            pipeline_parallel=2,
            schedule=PipelineSchedule.ZB_H1,
            micro_batches=4,
            expert_parallel=2,
        ),
    ),
    "a stage without experts": (
        4,
        {"layers": 4, "dense_layers": 2},
        Plan(DataParallelism.FSDP, pipeline_parallel=2, micro_batches=2, expert_parallel=2),
    ),
}


@pytest.mark.turns(3)
@pytest.mark.parametrize("name", CASES)
def test_experts_train_as_in_one_process(clusters: Callable[..., Cluster], name: str) -> None:
    ranks, shape, plan = CASES[name]
    size = {"batch": 6} if ranks % 3 == 0 else {}
    config = replace(CONFIG, model=replace(MODEL, **shape), **size)
    expected = one_process(config, plan.dp_size(ranks), plan.micro_batches)
    for found in clusters(ranks).run(on_rank.record, config, plan):
        assert max(largest_difference(found, expected).values()) < EXACT


@pytest.mark.parametrize("sequence", [1, 5, 23])
def test_padding_is_routed_nowhere(clusters: Callable[..., Cluster], sequence: int) -> None:
    """With one token, three ranks of four hold padding alone."""
    config = replace(CONFIG, model=replace(MODEL, capacity=1.0, balance=Balance.SEQUENCE), sequence=sequence)
    plan = Plan(context_parallel=4, expert_parallel=4)
    (found, *_) = clusters(4).run(on_rank.record, config, plan)
    assert max(largest_difference(found, one_process(config)).values()) < EXACT


def step_with_choices(config: TrainConfig, plan: Plan) -> list[Tensor]:
    """Forward and backward of a step on this rank, and which experts its tokens went to, of each layer in turn."""
    training, found = Training(config, dist.group.WORLD, torch.device("cpu"), plan), []
    for layer in training.balancing.layers.values():
        decide = layer.decide

        def noting(*inputs: Tensor, decide: Callable = decide) -> tuple[Tensor, Tensor]:
            decision = decide(*inputs)
            found.append(decision[0].flatten(0, 1))
            return decision

        layer.decide = noting
    training.backward(0)
    return found


@pytest.mark.parametrize("chunks", [1, 3])
def test_bytes_of_a_step_along_the_axis_of_experts_equal_the_formula(
    clusters: Callable[..., Cluster], chunks: int
) -> None:
    plan = Plan(expert_parallel=4, expert_chunks=chunks, micro_batches=2)
    chosen, trace = clusters(4).trace(step_with_choices, CONFIG, plan)
    expected = [0] * 4
    for of_ranks in zip(*chosen, strict=True):  # two layers of two micro-batches
        for rank, sent in enumerate(cost.sent(cost.Routes(of_ranks, MODEL.experts), MODEL.width, 8, chunks)):
            expected[rank] += sent
    assert len(chosen[0]) == 4
    for rank, events in enumerate(trace.events):
        exchanges = [event for event in events if event.op is Op.ALL_TO_ALL]
        assert sum(sum(event.splits) - event.splits[rank] for event in exchanges) == expected[rank]


@pytest.mark.parametrize(
    ("ranks", "plan", "said"),
    [
        (4, {"expert_parallel": 8}, "8 ranks share out 4 experts"),
        (6, {"expert_parallel": 4}, "do not divide into 4 x 1 that share out experts: take a multiple of 4"),
        (4, {"expert_tensor_parallel": 4, "expert_parallel": 2}, "do not divide into 2 x 4"),
        (5, {"expert_tensor_parallel": 5}, "12 features of an expert do not divide among 5 ranks"),
        (4, {"expert_parallel": 4, "expert_nodes": 3}, "4 ranks with experts do not divide among 3 nodes"),
        (4, {"expert_parallel": 0}, "expert parallelism takes at least 1, not 0"),
        (4, {"expert_chunks": 0}, "dispatch to experts takes at least 1, not 0"),
    ],
)
def test_what_does_not_fit_is_refused(ranks: int, plan: dict, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        Plan(**plan).require_fit(ranks, MODEL)


def test_a_model_without_experts_has_none_to_share_out() -> None:
    with pytest.raises(BadInput, match="no experts to share out: take one that has, such as moe-demo"):
        Plan(expert_parallel=2).require_fit(2, TrainConfig().model)
