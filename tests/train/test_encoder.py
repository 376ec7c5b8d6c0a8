"""Another model than a GPT trains by every axis, by its configuration alone: equal to one process in float64."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import mean

import pytest
import torch

from rankwise import on_rank
from reference.cluster import Cluster
from reference.config import TrainConfig
from reference.errors import BadInput
from reference.memory.offload import Offload
from reference.memory.precision import PRECISIONS
from reference.memory.recompute import Recompute
from reference.models import EncoderConfig, architecture, create
from reference.models.data import Batches
from reference.models.objective import IGNORED, MaskedTokens
from reference.oracle import largest_difference, one_process
from reference.parallelize import DataParallelism, PipelineSchedule, Plan
from reference.report import read_log
from reference.saves import Saves

Clusters = Callable[..., Cluster]
MODEL = EncoderConfig(layers=4, width=16, heads=4, hidden=24, longest=12)
BOUND = 1e-10  # in float64 the order of additions costs 1e-15, a mistake 1e-3
SP = {"tensor_parallel": 2, "sequence_parallel": True}
PLANS = {
    "replicas": (2, Plan(DataParallelism.DDP, micro_batches=2)),
    "ZeRO-1, offloaded": (3, Plan(DataParallelism.ZERO1, offload=Offload.CPU)),
    "ZeRO-2, selective": (2, Plan(DataParallelism.ZERO2, micro_batches=2, recompute=Recompute.SELECTIVE)),
    "FSDP, full": (3, Plan(DataParallelism.FSDP, micro_batches=2, recompute=Recompute.FULL)),
    "HSDP, tensor": (8, Plan(DataParallelism.HSDP, tensor_parallel=2)),
    "tensor": (4, Plan(tensor_parallel=4, recompute=Recompute.SELECTIVE)),
    "sequence, selective": (4, Plan(DataParallelism.ZERO1, **SP, recompute=Recompute.SELECTIVE)),
    "sequence, full": (4, Plan(tensor_parallel=4, sequence_parallel=True, recompute=Recompute.FULL)),
    "asynchronous": (4, Plan(DataParallelism.FSDP, **SP, async_tensor_parallel=True)),
    "GPipe": (4, Plan(DataParallelism.DDP, pipeline_parallel=4, micro_batches=4, schedule=PipelineSchedule.GPIPE)),
    "interleaved": (
        4,
        Plan(
            DataParallelism.ZERO2,
            pipeline_parallel=2,
            micro_batches=2,
            schedule=PipelineSchedule.INTERLEAVED,
            recompute=Recompute.SELECTIVE,
        ),
    ),
    "zero-bubble": (
        2,
        Plan(pipeline_parallel=2, micro_batches=4, schedule=PipelineSchedule.ZB_H1, recompute=Recompute.SELECTIVE),
    ),
    "zero-bubble, tensor": (
        4,
        Plan(pipeline_parallel=2, micro_batches=4, schedule=PipelineSchedule.ZB_V, tensor_parallel=2),
    ),
    "DualPipeV, FSDP": (
        4,
        Plan(
            DataParallelism.FSDP,
            pipeline_parallel=2,
            micro_batches=4,
            schedule=PipelineSchedule.DUAL_PIPE_V,
            recompute=Recompute.FULL,
        ),
    ),
    "all axes": (
        8,
        Plan(
            DataParallelism.FSDP,
            pipeline_parallel=2,
            micro_batches=2,
            schedule=PipelineSchedule.ZB_H1,
            **SP,
            recompute=Recompute.SELECTIVE,
        ),
    ),
}


def training(model: EncoderConfig = MODEL, batch: int = 12) -> TrainConfig:
    """Large steps: biases begin at zero, and are to matter."""
    return TrainConfig(
        model, steps=3, batch=batch, sequence=8, warmup=0, learning_rate=0.02, precision=PRECISIONS["fp64"]
    )


@pytest.mark.turns(3)
@pytest.mark.parametrize("name", PLANS)
def test_any_plan_equals_one_process(clusters: Clusters, name: str) -> None:
    ranks, plan = PLANS[name]
    model = replace(MODEL, dropout=0.2 if ranks > 2 else 0.0)
    config = training(model, batch=plan.dp_size(ranks) * plan.micro_batches * 2)
    expected = one_process(config)
    biases = {name: value for name, value in expected.parameters.items() if name.endswith(".bias")}
    assert all(value.abs().max() > 1e-3 for value in biases.values()), "they have learned"
    first, *others = clusters(ranks).run(on_rank.record, config, plan)
    assert max(largest_difference(first, expected).values()) < BOUND
    for other in others:
        assert other.losses == first.losses and other.gradient_norms == first.gradient_norms
        assert all(other.parameters[name].equal(value) for name, value in first.parameters.items())


def test_a_checkpoint_of_one_plan_goes_on_under_another(clusters: Clusters, short_text: Path, tmp_path: Path) -> None:
    config = replace(training(batch=8), data=str(short_text), steps=4)
    plans = [
        (4, Plan(tensor_parallel=4, sequence_parallel=True)),
        (2, Plan(pipeline_parallel=2, micro_batches=4, schedule=PipelineSchedule.ZB_H1)),
        (4, Plan(DataParallelism.FSDP, tensor_parallel=2)),
        (1, Plan()),
    ]
    losses = []
    for number, (ranks, plan) in enumerate(plans):
        part = replace(config, stop_after=1 + number)
        saves, log = Saves(tmp_path / "checkpoints", 1, resume=number > 0), tmp_path / str(number)
        clusters(ranks).run(on_rank.train, part, log, plan, saves)
        losses += [step.loss for step in read_log(log)[0]]
    assert losses == pytest.approx(one_process(config).losses, rel=1e-10)


def test_held_out_text_is_hidden_in_the_same_places_for_any_plan(clusters: Clusters, tmp_path: Path) -> None:
    config = training(batch=8)
    outcomes = [
        clusters(ranks).run(on_rank.train, config, tmp_path / str(ranks), plan)[0]
        for ranks, plan in ((1, Plan()), (4, Plan(pipeline_parallel=2, micro_batches=2, tensor_parallel=2)))
    ]
    assert outcomes[0].validation_loss == pytest.approx(outcomes[1].validation_loss, rel=1e-10)


def test_it_learns_to_find_hidden_tokens() -> None:
    config = replace(training(batch=8), steps=50, learning_rate=0.01)
    losses = one_process(config).losses
    assert mean(losses[-10:]) < losses[0] - 1


def test_as_many_tokens_are_hidden_in_each_window() -> None:
    objective, windows = MaskedTokens(), torch.randint(1, 256, (50, 41))
    seeds = torch.randint(-(2**62), 2**62, (50, 40))
    tokens, targets = objective.examples(windows, seeds)
    hidden = targets != IGNORED
    assert (hidden.sum(1) == objective.counted(40)).all() and objective.counted(40) == 6
    assert torch.equal(targets[hidden], windows[:, :-1][hidden]) and (tokens[hidden] == objective.mask).all()
    assert torch.equal(tokens[~hidden], windows[:, :-1][~hidden])
    assert len({tuple(row.nonzero().flatten().tolist()) for row in hidden}) > 40, "each window hides others"


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_what_is_hidden_does_not_depend_on_who_reads_it(ranks: int) -> None:
    text = (torch.arange(5000) % 255 + 1).to(torch.uint8).numpy()
    batches = Batches.of(text, 16, 8, objective=MaskedTokens())
    whole, parts = batches.of_step(3), [batches.of_step(3, rank, ranks) for rank in range(ranks)]
    for expected, found in zip(whole, zip(*parts, strict=True), strict=True):
        assert torch.equal(torch.cat(found), expected)
    assert not torch.equal(whole[1] == IGNORED, batches.of_step(4)[1] == IGNORED)
    assert batches.tokens == 8 * 2 == int((whole[1] != IGNORED).sum())


def test_tokens_look_both_ways() -> None:
    model = create(architecture, MODEL, dtype=torch.float64)
    tokens = torch.arange(8)[None]
    other = tokens.clone()
    other[0, -1] = 99
    assert not torch.equal(model(tokens)[0, 0], model(other)[0, 0])


def test_its_sizes_are_counted() -> None:
    model = create(architecture, MODEL, device="meta")
    assert MODEL.parameters == sum(p.numel() for p in model.parameters())
    assert MODEL.block_parameters == sum(p.numel() for p in model.blocks[0].parameters())


def test_a_window_beyond_its_positions_is_refused() -> None:
    with pytest.raises(BadInput, match="knows 12 positions, and a window has 13 tokens"):
        create(architecture, MODEL)(torch.zeros(1, 13, dtype=torch.int64))


@pytest.mark.parametrize("room", ["parallelize.py", "pipeline_parallel", "tensor_parallel", "data_parallel", "zero"])
def test_no_strategy_knows_it(room: str) -> None:
    place = Path(__file__).parents[2] / "reference" / room
    files = [place] if place.is_file() else [*place.rglob("*.py")]
    assert not [path for path in files if "ncoder" in path.read_text()]
