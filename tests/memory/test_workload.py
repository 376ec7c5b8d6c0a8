"""A step as planned, against the same step as measured."""

from dataclasses import replace

import pytest
import torch
from torch.optim import AdamW

from reference.errors import BadInput
from reference.memory.gpus import GB
from reference.memory.history import History, MemoryKind
from reference.memory.lab.gauge import Gauge
from reference.memory.recipe import RECIPES, Stage, state_bytes
from reference.memory.recompute import Recompute, recompute
from reference.memory.workload import Workload
from reference.models import GPT, GPTConfig, create, preset, token_loss

LARGE = Workload(preset("llama3-8b"), RECIPES["mixed Adam"], Stage.ZERO3, ranks=8, batch=1, sequence=8192)


def measured(work: Workload) -> History:
    """The second step of AdamW."""
    model = create(GPT, work.model, dtype=work.dtype)
    recompute(model, work.recompute)
    optimizer = AdamW(model.parameters())
    tokens = torch.zeros(work.batch, work.sequence, dtype=torch.int64)
    for _ in range(2):
        with (gauge := Gauge.of(model, optimizer)):
            gauge.mark("forward")
            loss = token_loss(model(tokens), tokens, tokens.numel())
            gauge.mark("backward")
            loss.backward()
            gauge.mark("step")
            optimizer.step()
            optimizer.zero_grad()
    return gauge.history


@pytest.mark.turns(5)
@pytest.mark.parametrize("how", Recompute)
@pytest.mark.parametrize("recipe", ["fp32 Adam", "pure bf16 Adam"])
@pytest.mark.parametrize("vocabulary", [256, 4000], ids=["small vocabulary", "large vocabulary"])
@pytest.mark.parametrize("tied", [False, True])
def test_the_planned_peaks_are_the_measured_ones(recipe, how, vocabulary, tied):
    """In forward and in backward, whether logits or a block need most. 1 %: counts of steps, scalars."""
    config = GPTConfig(layers=3, width=64, heads=4, kv_heads=2, hidden=176, vocabulary=vocabulary, tied=tied)
    work = Workload(config, RECIPES[recipe], batch=2, sequence=64, recompute=how)
    plan, real = work.history(), measured(work)
    for phase in ("forward", "backward"):
        assert plan.during(phase).peak == pytest.approx(real.during(phase).peak, rel=0.01)
        for kind in MemoryKind:
            got, said = plan.during(phase).at_peak[kind], real.during(phase).at_peak[kind]
            assert got == pytest.approx(said, abs=0.01 * real.peak), kind


@pytest.mark.parametrize("how", Recompute)
@pytest.mark.parametrize(
    "other", [{"gated": False}, {"biases": ("query", "up", "down")}, {"activation": "gelu"}], ids=str
)
def test_the_planned_peaks_of_other_models_are_the_measured_ones(other: dict, how: Recompute):
    config = GPTConfig(layers=3, width=64, heads=4, kv_heads=2, hidden=256, vocabulary=256, head_size=8, **other)
    work = Workload(config, RECIPES["fp32 Adam"], batch=2, sequence=64, recompute=how)
    plan, real = work.history(), measured(work)
    for phase in ("forward", "backward"):
        assert plan.during(phase).peak == pytest.approx(real.during(phase).peak, rel=0.01)


def test_a_tied_table_has_two_gradients_and_their_sum_when_backward_comes_to_the_embedding():
    """With few tokens that is the peak."""
    config = GPTConfig(layers=2, width=128, heads=4, kv_heads=4, hidden=344, vocabulary=8000, tied=True)
    work = Workload(config, RECIPES["fp32 Adam"], batch=1, sequence=16)
    plan, real = work.history().during("backward"), measured(work).during("backward")
    assert plan.peak == pytest.approx(real.peak, rel=0.01)
    assert plan.at_peak[MemoryKind.GRADIENTS] == 4 * config.parameters
    assert plan.at_peak[MemoryKind.BUFFERS] > 2 * 4 * config.vocabulary * config.width


def test_units_hold_every_parameter_once():
    for name in ("tiny", "demo", "llama3-70b"):
        work = replace(LARGE, model=preset(name))
        assert sum(work.units) == preset(name).parameters


@pytest.mark.parametrize("stage", Stage)
def test_the_state_between_steps_is_that_of_the_recipe(stage):
    """Beside padding: every unit is cut by itself."""
    work = replace(LARGE, stage=stage, ranks=7)
    whole = state_bytes(work.model.parameters, work.recipe, stage, 7)
    before, after = work.history().usage[0], work.history().usage[-2]
    assert before.tolist() == [work.state.parameters, 0, work.state.optimizer, 0, 0]
    assert after.tolist() == [work.state.parameters, work.state.gradients, work.state.optimizer, 0, 0]
    assert 0 <= work.state.total - whole.total <= len(work.units) * 16


def test_zero_3_gathers_two_units_at_a_time():
    history = LARGE.history()
    two = max(a + b for a, b in zip(LARGE.units, LARGE.units[1:], strict=False))
    assert history.peak_of(MemoryKind.PARAMETERS) == LARGE.state.parameters + 2 * two


def test_alone_every_stage_is_the_same():
    alone = [replace(LARGE, stage=stage, ranks=1).history().usage for stage in Stage]
    assert all((usage == alone[0]).all() for usage in alone)


def test_each_stage_and_each_recomputation_needs_less():
    peaks = [replace(LARGE, stage=stage).history().peak for stage in Stage]
    assert peaks == sorted(peaks, reverse=True)
    peaks = [replace(LARGE, recompute=how).history().peak for how in Recompute]
    assert peaks == sorted(peaks, reverse=True)


def test_8_billion_parameters_fit_into_80_gb_with_zero_3_and_not_without():
    work = replace(LARGE, recompute=Recompute.FULL)
    assert work.history().peak < 80 * GB < replace(work, stage=Stage.DDP).history().peak


def test_what_cannot_be_is_said():
    with pytest.raises(BadInput, match="at least 1 window of 1 token, not 0 of 8192"):
        replace(LARGE, batch=0)
    with pytest.raises(BadInput, match="no stage is called 'zero5'"):
        replace(LARGE, stage="zero5")
