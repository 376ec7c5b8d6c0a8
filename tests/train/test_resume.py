"""A run that was interrupted goes on as if nothing had happened, on any number of ranks and under any plan."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from rankwise import on_rank
from rankwise.cli import run
from reference.cluster import Cluster
from reference.memory.precision import PRECISIONS
from reference.models import PRESETS
from reference.oracle import one_process
from reference.parallelize import Form, Plan
from reference.report import read_log
from reference.saves import Saves
from reference.train import TrainConfig

Clusters = Callable[..., Cluster]
CONFIG = TrainConfig(PRESETS["tiny"], steps=6, batch=24, sequence=16, precision=PRECISIONS["fp64"])


def losses(clusters: Clusters, ranks: int, config: TrainConfig, plan: Plan, saves: Saves, log: Path) -> list[float]:
    clusters(ranks, preload=("torch._dynamo",)).run(on_rank.train, config, log, plan, saves)
    return [step.loss for step in read_log(log)[0]]


@pytest.mark.parametrize(
    "before, after",
    [
        ((4, Plan(Form.FSDP)), (3, Plan(Form.ZERO1, accumulate=2))),
        ((2, Plan(Form.DDP)), (4, Plan(Form.HSDP, accumulate=2))),
        ((3, Plan(Form.ZERO2)), (1, Plan(Form.NAIVE, accumulate=2))),
        ((8, Plan(Form.FSDP, tensor_parallel=4, sequence_parallel=True)), (6, Plan(Form.ZERO2, tensor_parallel=2))),
        ((3, Plan(Form.DDP)), (8, Plan(Form.HSDP, accumulate=2, tensor_parallel=2))),
    ],
    ids=["fsdp to zero1", "ddp to hsdp", "zero2 to one", "4 tensor-parallel ranks to 2", "ddp to both axes"],
)
def test_the_loss_goes_on_where_it_was(
    clusters: Clusters, short_text: Path, tmp_path: Path, before: tuple, after: tuple
):
    folder, config = tmp_path / "checkpoints", replace(CONFIG, data=str(short_text))
    (ranks, plan), (other_ranks, other_plan) = before, after
    head = losses(clusters, ranks, replace(config, stop_after=3), plan, Saves(folder, 2), tmp_path / "1")
    tail = losses(clusters, other_ranks, config, other_plan, Saves(folder, resume=True), tmp_path / "2")
    assert len(head) == 3 and len(tail) == 3
    assert head + tail == pytest.approx(one_process(config).losses, rel=1e-10)


def test_the_command_line_saves_and_goes_on(short_text: Path, tmp_path: Path, capsys: pytest.CaptureFixture):
    folder, log = tmp_path / "checkpoints", tmp_path / "log"
    common = ["train", "--ranks", "2", "--model", "tiny", "--steps", "4", "--batch", "4", "--sequence", "16"]
    common += ["--data", str(short_text)]
    split = ["--tensor-parallel", "2", "--sequence-parallel"]
    assert run([*common, *split, "--save", str(folder), "--save-every", "2"]) == 0
    assert len(list(folder.iterdir())) == 2
    assert run([*common, "--steps", "6", "--save", str(folder), "--resume", "--log", str(log)]) == 0
    steps, _ = read_log(log)
    assert [step.step for step in steps] == [5, 6]
    assert steps[0].rate == pytest.approx(64 / steps[0].seconds)


@pytest.mark.parametrize(
    "options, reason",
    [
        (["--resume"], "--save FOLDER"),
        (["--resume", "--save", "{}/nothing"], "no checkpoint in"),
        (["--save", "{}", "--save-every", "0"], "every 1 step or more"),
        (["--data-parallel", "zero4"], "naive, flat, ddp, zero1, zero2, fsdp, hsdp, not zero4"),
        (["--data-parallel", "hsdp", "--replicas", "3", "--ranks", "2"], "2 ranks do not divide into 3 replicas"),
        (["--accumulate", "0"], "at least 1 micro-batch"),
        (["--accumulate", "3"], "do not divide among 3 micro-batches"),
        (["--recompute", "some"], "none, selective, full, not some"),
        (["--precision", "int8"], "--precision is one of fp32, bf16, fp16"),
        (["--offload", "moon"], "none, cpu, disk, not moon"),
    ],
)
def test_bad_input_is_said_in_one_line(options: list[str], reason: str, tmp_path: Path, capsys):
    given = [option.format(tmp_path) for option in options]
    assert run(["train", "--ranks", "2", "--model", "tiny", "--steps", "1", *given]) == 2
    _, err = capsys.readouterr()
    assert err.count("\n") == 1 and reason in err


def test_a_run_does_not_save_over_another(tmp_path: Path, clusters: Clusters, capsys):
    saves = Saves(tmp_path / "checkpoints")
    losses(clusters, 2, replace(CONFIG, stop_after=1), Plan(), saves, tmp_path / "1")
    before = sorted(path.name for path in saves.folder.rglob("*"))
    common = ["train", "--ranks", "2", "--model", "tiny", "--batch", "24", "--sequence", "16", "--precision", "fp64"]
    assert run([*common, "--save", str(saves.folder)]) == 2
    assert "--resume" in capsys.readouterr().err
    assert run([*common, "--save", str(saves.folder), "--resume", "--batch", "4"]) == 2
    assert "a run with batch 24, and this has 4" in capsys.readouterr().err
    assert run([*common, "--save", str(saves.folder), "--resume", "--model", "demo"]) == 2
    assert "another model" in capsys.readouterr().err
    assert sorted(path.name for path in saves.folder.rglob("*")) == before
