"""A run that was interrupted resumes as if nothing had happened, on any number of ranks and under any plan."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rankwise import on_rank
from rankwise.cli import run
from reference.choices import Compress, Optimizer, Outer
from reference.cluster import Cluster
from reference.config import TrainConfig
from reference.errors import BadInput
from reference.memory.precision import PRECISIONS
from reference.models import PRESETS, preset
from reference.models.data import Batches, file_text
from reference.models.moe_config import Balance
from reference.options import completed
from reference.oracle import one_process
from reference.parallelize import DataParallelism, Plan
from reference.report import read_log
from reference.saves import Saves, changes, learned, scheduled
from reference.zero import checkpoint_folder

Clusters = Callable[..., Cluster]
CONFIG = TrainConfig(PRESETS["tiny"], steps=6, batch=24, sequence=16, precision=PRECISIONS["fp64"])


def losses(clusters: Clusters, ranks: int, config: TrainConfig, plan: Plan, saves: Saves, log: Path) -> list[float]:
    clusters(ranks).run(on_rank.train, config, log, plan, saves)
    return [step.loss for step in read_log(log)[0]]


@pytest.mark.parametrize(
    "before, after",
    [
        ((4, Plan(DataParallelism.FSDP)), (3, Plan(DataParallelism.ZERO1, micro_batches=2))),
        ((2, Plan(DataParallelism.DDP)), (4, Plan(DataParallelism.HSDP, micro_batches=2))),
        ((3, Plan(DataParallelism.ZERO2)), (1, Plan(DataParallelism.NAIVE, micro_batches=2))),
        (
            (8, Plan(DataParallelism.FSDP, tensor_parallel=4, sequence_parallel=True)),
            (6, Plan(DataParallelism.ZERO2, tensor_parallel=2)),
        ),
        ((3, Plan(DataParallelism.DDP)), (8, Plan(DataParallelism.HSDP, micro_batches=2, tensor_parallel=2))),
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
    common += ["--data", str(short_text), "--log", str(log)]
    split = ["--tensor-parallel", "2", "--sequence-parallel"]
    assert run([*common, *split, "--save", str(folder), "--save-every", "2"]) == 0
    assert len(list(folder.iterdir())) == 2
    capsys.readouterr()
    assert run([*common, "--steps", "6", "--save", str(folder), "--resume"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[1] == "resuming after step 4"
    assert [line.split()[1] for line in shown if line.startswith("step")] == ["5/6", "6/6"]
    steps, _ = read_log(log)
    assert [step.step for step in steps] == [1, 2, 3, 4, 5, 6]  # the log continues, too
    assert steps[4].rate == pytest.approx(64 / steps[4].seconds)


def batches(config: TrainConfig, text: Path) -> Batches:
    return Batches.of(file_text(text), config.sequence, config.batch, config.seed)


def saved(folder: Path, step: int, config: TrainConfig, text: Path) -> Path:
    """A checkpoint with no more in it than says what it is of."""
    extra = {"learned": learned(config, batches(config, text)), "scaler": {}}
    return checkpoint_folder.finish(checkpoint_folder.begin(folder), step, {"step": step, "extra": extra}, {})


def test_damaged_checkpoints_are_named(short_text: Path, tmp_path: Path):
    read, resume = batches(CONFIG, short_text), Saves(tmp_path, resume=True)
    first, second, third = (saved(tmp_path, step, CONFIG, short_text) for step in (1, 2, 3))
    assert resume.check(CONFIG, read) == "resuming after step 3"
    for damaged in (second, third):
        (damaged / "manifest.json").unlink()
    wrong = "; ".join(f"{each} is damaged: manifest.json: No such file or directory" for each in (third, second))
    assert resume.check(CONFIG, read) == f"resuming after step 1; {wrong}"
    (first / "SHA256SUMS").unlink()
    with pytest.raises(BadInput) as refusal:
        resume.check(CONFIG, read)
    assert str(refusal.value).startswith(f"{wrong}; {first} is damaged: ")


def test_a_run_that_has_no_step_left_says_so(short_text: Path, tmp_path: Path):
    saved(tmp_path, 6, CONFIG, short_text)
    line = Saves(tmp_path, resume=True).check(replace(CONFIG, steps=3), batches(CONFIG, short_text))
    assert line == "resuming after step 6: nothing is left to train, this run ends after step 3"


def changed(name: str, value: int | float | str) -> TrainConfig:
    """The run of these tests, but for one thing."""
    if name == "precision":
        return replace(CONFIG, precision=PRECISIONS[value])
    if name == "dropout":
        return replace(CONFIG, model=replace(CONFIG.model, dropout=value))
    return replace(CONFIG, **{name: value})


@pytest.mark.parametrize(
    ("name", "there", "here"),
    [
        ("precision", "fp32", "fp16"),
        ("precision", "fp16", "fp32"),
        ("precision", "fp64", "fp32"),
        ("dropout", 0.0, 0.1),
        ("batch", 24, 12),
        ("sequence", 16, 8),
        ("seed", 0, 1),
    ],
)
def test_a_run_goes_on_with_what_it_began_with(
    name: str, there: int | float | str, here: int | float | str, short_text: Path, tmp_path: Path
):
    before, now = changed(name, there), changed(name, here)
    saved(tmp_path, 2, before, short_text)
    with pytest.raises(BadInput, match=f"of a run with {name} {there}, and this has {here}$"):
        Saves(tmp_path, resume=True).check(now, batches(now, short_text))


MIXTURE = preset("moe-tiny")


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"spike_deviations": 8.0}, "what this one has, loss spikes rolled back past: leave it out, or save"),
        ({"compress": Compress.TOP_K}, "without what this one has, compress top-k .*: leave it out, or save"),
        ({"islands": 2, "outer": Outer.DILOCO}, "without what this one has, islands 2: leave it out, or save"),
    ],
    ids=lambda x: next(iter(x)) if isinstance(x, dict) else "",
)
def test_what_a_run_began_without_is_said(more: dict[str, Any], reason: str, short_text: Path, tmp_path: Path):
    saved(tmp_path, 2, CONFIG, short_text)
    now = replace(CONFIG, **more)
    with pytest.raises(BadInput, match=reason):
        Saves(tmp_path, resume=True).check(now, batches(now, short_text))


@pytest.mark.parametrize(
    ("before", "now", "reason"),
    [
        (
            replace(CONFIG, optimizer=Optimizer.ONE_BIT_ADAM, steps=10),
            replace(CONFIG, optimizer=Optimizer.ONE_BIT_ADAM, steps=20),
            "of a run with --freeze-after 2, and this has 4$",
        ),
        (
            replace(CONFIG, model=MIXTURE),
            replace(CONFIG, model=replace(MIXTURE, capacity=0.5)),
            "of a run with capacity 0.0, and this has 0.5$",
        ),
        (
            replace(CONFIG, model=MIXTURE),
            replace(CONFIG, model=replace(MIXTURE, balance=Balance.NONE)),
            "of a run with balance .*, and this has none$",
        ),
    ],
    ids=["freeze after", "capacity", "balance"],
)
def test_what_would_be_learned_otherwise_is_refused(
    before: TrainConfig, now: TrainConfig, reason: str, short_text: Path, tmp_path: Path
):
    saved(tmp_path, 2, before, short_text)
    with pytest.raises(BadInput, match=reason):
        Saves(tmp_path, resume=True).check(now, batches(now, short_text))


def test_how_islands_meet_from_here_on_is_said() -> None:
    config = replace(CONFIG, islands=2, outer=Outer.DILOCO, inner_steps=2)
    before, now = (scheduled(each) for each in (config, replace(config, inner_steps=1, outer_rate=0.1)))
    assert changes(before, now) == ["from here on: inner steps 1 instead of 2, outer rate 0.1 instead of 0.7"]
    assert "inner steps" not in scheduled(CONFIG)


def test_a_run_goes_on_with_its_text_and_not_with_another_one_that_is_as_long(short_text: Path, tmp_path: Path):
    saved(tmp_path / "checkpoints", 2, CONFIG, short_text)
    other = tmp_path / "other"
    other.write_bytes(short_text.read_bytes()[::-1])
    with pytest.raises(BadInput, match=r"of a run with text [0-9a-f]{16}, and this has [0-9a-f]{16}$"):
        Saves(tmp_path / "checkpoints", resume=True).check(CONFIG, batches(CONFIG, other))


def test_a_checkpoint_that_does_not_tell_what_it_takes_to_go_on_is_refused(short_text: Path, tmp_path: Path):
    known = {"batch": CONFIG.batch, "sequence": CONFIG.sequence, "seed": CONFIG.seed, "precision": "fp64"}
    contents = {"step": 2, "extra": {"learned": known, "scaler": {}}}
    checkpoint_folder.finish(checkpoint_folder.begin(tmp_path), 2, contents, {})
    with pytest.raises(BadInput, match=r"does not tell the dropout of its run: save a new run somewhere else$"):
        Saves(tmp_path, resume=True).check(CONFIG, batches(CONFIG, short_text))


@pytest.mark.parametrize("place", ["file", "file/below", "/proc/checkpoints"])
def test_a_folder_that_cannot_be_written_is_refused_before_the_first_step(
    place: str, tmp_path: Path, clusters: Clusters, capsys: pytest.CaptureFixture
):
    (tmp_path / "file").touch()
    common = ["train", "--ranks", "2", "--model", "tiny", "--batch", "4", "--sequence", "16"]
    assert run([*common, "--save", str(tmp_path / place)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and f"cannot save in {tmp_path / place}: " in err
    refused = clusters(2).run(on_rank.train_or_refuse, CONFIG, tmp_path / "log", Plan(), Saves(tmp_path / place))
    assert [str(each) for each in refused] == [err.removeprefix("rankwise: ").rstrip()] * 2
    assert not (tmp_path / "log").exists()


@pytest.mark.parametrize(
    "options, reason",
    [
        (["--resume"], "--save FOLDER"),
        (["--resume", "--save", "{}/nothing"], "no checkpoint in"),
        (["--save", "{}", "--save-every", "0"], "every 1 step or more"),
        (["--save-every", "10"], "--save-every needs --save FOLDER"),
        (["--dp-replicate", "2"], "dp_replicate is of hsdp, not of flat"),
        (["--stages-per-rank", "2"], "stages per rank are of interleaved and breadth-first, not of 1f1b"),
        (["--data-parallel", "hsdp", "--dp-replicate", "0"], "at least 1 replica, not 0"),
        (["--data-parallel", "zero4"], "naive, flat, ddp, zero1, zero2, fsdp, hsdp, not zero4"),
        (["--data-parallel", "hsdp", "--dp-replicate", "3", "--ranks", "2"], "2 ranks do not divide into 3 replicas"),
        (["--micro-batches", "0"], "at least 1 micro-batch"),
        (["--micro-batches", "3"], "do not divide among 3 micro-batches"),
        (["--recompute", "some"], "none, selective, full, not some"),
        (["--precision", "int8"], "--precision is one of fp32, tf32, bf16, bf16-stochastic, fp16, fp64, not int8"),
        (["--offload", "moon"], "none, cpu, disk, not moon"),
        (["--offload", "disk", "--offload-folder", "no/such/folder"], "no/such/folder is not a folder"),
        (["--scatter-gather", "of"], "--scatter-gather is one of on, off, not of"),
        (["--weight-decay", "-1"], "a weight decay is 0 or more, and finite, not -1.0"),
        (["--weight-decay", "inf"], "a weight decay is 0 or more, and finite, not inf"),
        (["--clip", "0"], "a positive norm, not 0.0"),
        (["--warmup", "-1"], "0 steps or more, not -1"),
        (["--stop-after", "2"], "stops after 1 to 1 steps, not 2"),
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


COMMON = ["train", "--model", "tiny", "--batch", "4", "--sequence", "16", "--learning-rate", "0.01", "--seed", "3"]


@pytest.fixture(scope="module")
def interrupted(short_text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints of a run of four steps on 2 tensor-parallel ranks, after the second and the fourth."""
    folder = tmp_path_factory.mktemp("run") / "checkpoints"
    options = ["--steps", "4", "--ranks", "2", "--tensor-parallel", "2", "--sequence-parallel", "--precision", "fp64"]
    assert run([*COMMON, *options, "--data", str(short_text), "--save", str(folder), "--save-every", "2"]) == 0
    return folder


def half_of(interrupted: Path, folder: Path) -> Path:
    """A copy of a run of four steps, as if it had been stopped after the second one."""
    shutil.copytree(interrupted, folder)
    shutil.rmtree(folder / checkpoint_folder.latest(folder).name)
    assert len(checkpoint_folder.checkpoints(folder)) == 1
    return folder


@pytest.fixture
def half(interrupted: Path, tmp_path: Path) -> Path:
    """One of one's own."""
    return half_of(interrupted, tmp_path / "checkpoints")


@pytest.fixture(scope="module")
def second_half(interrupted: Path, tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of the third step and the fourth, where nothing was said but to resume."""
    place = tmp_path_factory.mktemp("second half")
    code, tail = resumed(half_of(interrupted, place / "checkpoints"), place / "log")
    assert code == 0
    return tail


def resumed(folder: Path, log: Path, *options: str) -> tuple[int, list[float]]:
    code = run(["train", "--save", str(folder), "--resume", "--log", str(log), *options])
    return code, [step.loss for step in read_log(log)[0]] if code == 0 else []


def test_resume_alone_is_enough(half: Path, short_text: Path, tmp_path: Path, capsys, monkeypatch) -> None:
    """Also from another folder: all options are in the checkpoint, also how often to save."""
    monkeypatch.chdir(tmp_path)
    code, tail = resumed(half, tmp_path / "log")
    shown = capsys.readouterr().out.splitlines()
    assert code == 0 and "2 ranks" in shown[0] and shown[1] == "resuming after step 2"
    precision, model = PRECISIONS["fp64"], PRESETS["tiny"]
    config = TrainConfig(
        model, str(short_text), 4, batch=4, sequence=16, learning_rate=0.01, seed=3, precision=precision
    )
    assert tail == pytest.approx(one_process(config).losses[2:], rel=1e-10)
    assert len(checkpoint_folder.checkpoints(half)) == 2


@pytest.mark.parametrize(
    "options",
    [
        ["--batch", "4", "--seed", "3", "--precision", "fp64"],
        ["--ranks", "1", "--tensor-parallel", "1"],
        ["--data-parallel", "zero1", "--ranks", "4"],
        ["--save-every", "1"],
    ],
    ids=" ".join,
)
def test_options_that_agree_or_lay_out_otherwise_change_nothing(
    half: Path, second_half: list[float], tmp_path: Path, options: list[str]
) -> None:
    code, tail = resumed(half, tmp_path / "log", *options)
    assert code == 0 and len(tail) == 2 and tail == pytest.approx(second_half, rel=1e-10)


def test_a_longer_run_or_another_learning_rate_is_said(half: Path, tmp_path: Path, capsys) -> None:
    code, tail = resumed(half, tmp_path / "log", "--steps", "6", "--learning-rate", "0.02")
    assert code == 0 and len(tail) == 4
    assert capsys.readouterr().out.splitlines()[1:3] == [
        "resuming after step 2",
        "from here on: steps 6 instead of 4, learning rate 0.02 instead of 0.01; "
        "the learning rate continues as in a run of 6 steps",
    ]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--batch", "8"], "is of a run with batch 4, and this has 8"),
        (["--sequence", "8"], "is of a run with sequence 16, and this has 8"),
        (["--seed", "4"], "is of a run with seed 3, and this has 4"),
        (["--dropout", "0.5"], "is of a run with dropout 0.0, and this has 0.5"),
        (["--precision", "fp32"], "is of a run with precision fp64, and this has fp32"),
        (["--model", "demo"], "is of another model: of tiny, and this is demo"),
        (["--data", __file__], "is of a run with text "),
        (["--ranks", "3"], "3 ranks do not divide"),
    ],
)
def test_options_that_would_learn_something_else_are_refused_by_name(
    half: Path, tmp_path: Path, options: list[str], reason: str, capsys
) -> None:
    assert resumed(half, tmp_path / "log", *options)[0] == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and reason in err


def test_a_run_that_stops_early_goes_on_to_its_end(short_text: Path, tmp_path: Path, capsys) -> None:
    """Where it was to stop is of one sitting, and not in the checkpoint."""
    options = ["--steps", "4", "--ranks", "1", "--precision", "fp64", "--warmup", "2", "--weight-decay", "0.5"]
    folder, data = tmp_path / "checkpoints", ["--data", str(short_text)]
    assert run([*COMMON, *options, *data, "--stop-after", "2", "--save", str(folder)]) == 0
    code, tail = resumed(folder, tmp_path / "log")
    assert code == 0 and "from here on" not in capsys.readouterr().out
    config = replace(CONFIG, data=str(short_text), steps=4, batch=4, learning_rate=0.01, seed=3)
    whole = one_process(replace(config, warmup=2, weight_decay=0.5))
    assert tail == pytest.approx(whole.losses[2:], rel=1e-10)


def test_folders_are_the_same_ones_for_a_run_that_goes_on_elsewhere(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    stored = Saves(tmp_path).of({"data": "book.txt", "offload_folder": "scratch"}).options
    assert stored == {"data": str(tmp_path / "book.txt"), "offload_folder": str(tmp_path / "scratch")}


def test_what_belongs_to_an_option_that_is_another_now_is_not_taken_over() -> None:
    options = {"data_parallel": "zero1", "dp_replicate": None, "schedule": "1f1b", "stages_per_rank": None, "batch": 16}
    stored = {
        "data_parallel": "hsdp",
        "dp_replicate": 2,
        "schedule": "interleaved",
        "stages_per_rank": 4,
        "batch": 8,
        "gone": 1,
    }
    taken_over = {"schedule": "interleaved", "stages_per_rank": 4, "batch": 8}
    assert completed(options, {"data_parallel"}, stored) == {**options, **taken_over}
    same = options | {"data_parallel": "hsdp"}
    assert completed(same, {"data_parallel"}, stored)["dp_replicate"] == 2
    assert completed(options, set(), {}) == options


def test_torchrun_takes_the_options_over_too(half: Path) -> None:
    command = [sys.executable, "-m", "reference.train", "--save", str(half), "--resume", "--device", "cpu"]
    root = Path(on_rank.__file__).parents[1]
    done = subprocess.run([*command, "--tensor-parallel", "1"], cwd=root, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1] == "resuming after step 2"
    assert checkpoint_folder.contents(checkpoint_folder.latest(half))["step"] == 4
