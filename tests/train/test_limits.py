"""What cannot be in memory is refused before anything is allocated; what could be is not."""

import sys
from dataclasses import replace

import pytest

from rankwise import training
from rankwise.cli import run
from reference import launch
from reference.choices import Recompute
from reference.config import TrainConfig
from reference.errors import BadInput
from reference.fields import LARGEST_INT
from reference.limits import host_memory, least_bytes, require_memory
from reference.memory import activations
from reference.memory.precision import PRECISIONS
from reference.models.data import Batches, _held_out
from reference.plan import Plan

CONFIG = TrainConfig(batch=8, sequence=1000)


@pytest.mark.parametrize("recompute", Recompute)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_no_step_keeps_less(recompute: Recompute, precision: str) -> None:
    """The formula of lesson 04 says what one rank keeps of all of a batch; a bound is below it, and near enough."""
    config = replace(CONFIG, precision=PRECISIONS[precision])
    kept = sum(
        each.bytes
        for each in activations.model(config.model, config.batch, config.sequence, config.precision.compute, recompute)
    )
    assert kept / 8 < least_bytes(config, Plan(recompute=recompute)) <= kept


def test_micro_batches_and_other_machines_share_it() -> None:
    needed = round(least_bytes(CONFIG, Plan()))
    require_memory(CONFIG, Plan(), needed)
    with pytest.raises(BadInput, match=r"8 windows of 1,000 tokens in 1 micro-batches keep .* take a smaller batch"):
        require_memory(CONFIG, Plan(), needed - 1)
    require_memory(CONFIG, Plan(micro_batches=2), needed // 2)
    require_memory(CONFIG, Plan(), needed // 2, share=0.5)


def test_this_machine_has_some_memory() -> None:
    assert 2**30 < host_memory() < 2**50


def test_a_step_that_there_is_no_memory_for_is_refused_in_one_line(capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both command lines ask before they begin."""
    for module, command in ((training, lambda: run(["train"])), (launch, launch.main)):
        monkeypatch.setattr(module, "host_memory", lambda: 10_000_000)
        monkeypatch.setattr(sys, "argv", ["reference.train"])
        assert command() == 2
        out, err = capsys.readouterr()
        assert out == "" and err.count("\n") == 1 and "GB: take a smaller batch or sequence" in err


@pytest.mark.parametrize("batch", [1, 2, 9, 10, 95, 1234, 10**6, 10**12, LARGEST_INT])
def test_what_a_text_lacks_is_said_at_once_and_exactly(batch: int) -> None:
    needed = batch + 1
    while needed - _held_out(needed) < batch:
        needed += max(1, (batch - needed + _held_out(needed)) // 2)
    with pytest.raises(BadInput, match=f"with {needed - batch} more held out needs {needed + 1:,}:"):
        Batches.of(b"x", 1, batch)
