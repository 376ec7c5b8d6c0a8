"""Linear layers with scales from the steps before: under every plan what one process learns, and what it remembers."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from rankwise import on_rank
from reference.choices import LinearNumbers, Outer, Recompute
from reference.cluster import Cluster
from reference.collectives.default import over
from reference.compression.delayed import GRADIENT, STEPS, PastScales
from reference.config import TrainConfig
from reference.memory.precision import PRECISIONS
from reference.models import PRESETS
from reference.oracle import largest_difference, one_process
from reference.parallelize import DataParallelism, PipelineSchedule, Plan
from reference.report import read_log
from reference.saves import Saves
from reference.train import Training, validation_loss

from ..data_parallel.traffic import cut

Clusters = Callable[..., Cluster]
FORMS = DataParallelism
CONFIG = TrainConfig(
    PRESETS["tiny"],
    steps=4,
    batch=8,
    sequence=16,
    warmup=2,
    precision=PRECISIONS["fp64"],
    linear=LinearNumbers.FP8_DELAYED,
)
EXACT = 1e-9
PIPELINE = Plan(pipeline_parallel=2, micro_batches=2)
PLANS = {
    "ddp, micro-batches": Plan(FORMS.DDP, micro_batches=2),
    "fsdp, again": Plan(FORMS.FSDP, recompute=Recompute.FULL),
    "selective": Plan(FORMS.ZERO1, recompute=Recompute.SELECTIVE),
    "fsdp, sp": Plan(FORMS.FSDP, tensor_parallel=2, sequence_parallel=True),
    "context": Plan(context_parallel=2),
    "zero bubble": Plan(FORMS.ZERO1, pipeline_parallel=2, micro_batches=2, schedule=PipelineSchedule.ZB_H1),
    "pipeline, tp": Plan(pipeline_parallel=2, micro_batches=2, tensor_parallel=2),
}


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_any_plan_learns_what_one_process_learns(clusters: Clusters, plan: Plan) -> None:
    difference = largest_difference(clusters(4).run(on_rank.record, CONFIG, plan)[0], one_process(CONFIG))
    assert max(difference.values()) < EXACT, difference


def test_it_is_not_what_scales_of_now_learn() -> None:
    """So the test above can fail."""
    now = one_process(replace(CONFIG, linear=LinearNumbers.FP8))
    assert max(largest_difference(one_process(CONFIG), now).values()) > 1e-4


def test_a_checkpoint_goes_from_any_layout_to_any_other(clusters: Clusters, tmp_path: Path) -> None:
    """Of all stages of a pipeline, which do not know each other's layers."""
    config, folder = replace(CONFIG, steps=6, batch=24), tmp_path / "checkpoints"
    legs = [
        (4, Plan(FORMS.ZERO1, pipeline_parallel=2, micro_batches=2)),
        (3, Plan(FORMS.FSDP)),
        (4, Plan(pipeline_parallel=2, micro_batches=2, tensor_parallel=2)),
    ]
    found = []
    for number, (ranks, plan) in enumerate(legs):
        part, log = replace(config, stop_after=2 * number + 2), tmp_path / str(number)
        saves = Saves(folder, 2, resume=number > 0, in_background=number == 0)
        clusters(ranks).run(on_rank.train, part, log, plan, saves)
        found += [step.loss for step in read_log(log)[0]]
    assert found == pytest.approx(one_process(config).losses, rel=EXACT)


def test_one_message_in_a_step_and_none_to_other_stages(clusters: Clusters) -> None:
    """4 bytes for each scale, of the ranks that have the layer, when the step is over: none waits for it in a layer."""
    layers = 7 + 4  # inputs: of query, key and value one; gradients: of each matrix

    def ends_a_step(plan: Plan) -> int:
        training = Training(replace(CONFIG, precision=PRECISIONS["fp32"]), dist.group.WORLD, torch.device("cpu"), plan)
        training.backward(0)
        dist.barrier()
        training.scales.end_step()
        dist.barrier()
        return len(training.scales.history)

    whole = CONFIG.model.layers
    for plan, mine, ranks in ((Plan(FORMS.DDP), whole, 4), (PIPELINE, whole // 2, 2)):
        found, trace = clusters(4).trace(ends_a_step, plan)
        assert found == [mine * layers] * 4
        sent = cut(trace)[-1].bytes_sent
        assert min(sent) > 0 and max(sent) <= 4 * mine * layers * (ranks - 1).bit_length(), sent


def test_what_is_not_finite_is_forgotten_and_evaluation_is_not_noted(clusters: Clusters) -> None:
    def remembers() -> None:
        training = Training(CONFIG, dist.group.WORLD, torch.device("cpu"), Plan())
        for step in range(STEPS + 2):
            training.backward(step % CONFIG.steps)
            training.scales.end_step()
            training.form.end_step()
        key, known = next(iter(training.scales.history.items()))
        assert len(known) == STEPS
        before = {name: list(values) for name, values in training.scales.history.items()}
        validation_loss(training)
        assert not training.scales._now
        training.scales._now = {key: torch.tensor(torch.inf)}
        training.scales.end_step()
        assert {name: list(values) for name, values in training.scales.history.items()} == before

    clusters(2).run(remembers)


def test_the_first_gradients_are_not_lost_where_there_were_zeros(clusters: Clusters) -> None:
    """Behind a head of zeros; with the scale for zeros, numbers below 2^-17 would be zeros."""

    def on_rank() -> None:
        layer = torch.nn.Linear(2, 2)
        scales = PastScales({layer: "layer"}, over(dist.group.WORLD))
        scales.round(layer, GRADIENT, torch.zeros(3))
        scales.end_step()
        small = torch.full((3,), 1e-6)
        assert torch.equal(scales.round(layer, GRADIENT, small), small)
        scales.end_step()
        assert scales.round(layer, GRADIENT, small).all()

    clusters(2).run(on_rank)


def test_it_learns_nearly_what_16_bits_learn() -> None:
    """The tiny model, 60 steps of real text: within 0.05 nats per byte."""

    def last(kind: LinearNumbers) -> float:
        config = replace(CONFIG, steps=60, warmup=5, precision=PRECISIONS["fp32"], linear=kind)
        return sum(one_process(config).losses[-10:]) / 10

    assert abs(last(LinearNumbers.FP8_DELAYED) - last(LinearNumbers.SAME)) < 0.05


def test_islands_have_other_numbers(clusters: Clusters) -> None:
    config = replace(CONFIG, outer=Outer.DILOCO, islands=2)
    refused = clusters(2).run(on_rank.train_or_refuse, config, Path("unused"), Plan(), None)
    assert "would have other scales each: take --linear fp8" in str(refused[0])
