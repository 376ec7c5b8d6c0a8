"""`rankwise train` and `torchrun -m reference.train`, as a person meets them."""

import os
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable
from dataclasses import replace
from inspect import signature
from pathlib import Path

import pytest
import torch.distributed as dist

from rankwise.cli import run
from rankwise.commands.train import train
from reference import launch
from reference.cluster import Cluster, RankError
from reference.config import TrainConfig
from reference.errors import BadInput
from reference.fields import options_of
from reference.memory.precision import PRECISIONS
from reference.models import PRESETS, preset
from reference.options import OnThisMachine
from reference.oracle import one_process
from reference.plan import PipelineSchedule
from reference.report import read_log

from ..processes import wait_until

RANKWISE = (sys.executable, "-m", "rankwise")
SMALL = ("--model", "tiny", "--steps", "4", "--batch", "4", "--sequence", "16")
CONFIG = TrainConfig(PRESETS["tiny"], steps=4, batch=4, sequence=16)
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "reference.train")

BAD = [
    (["--batch", "0"], "at least 1 window"),
    (["--sequence", "0"], "at least 1 token"),
    (["--sequence", "100000"], "give a longer text"),
    (["--steps", "0"], "at least 1 step"),
    (["--learning-rate", "nan"], "positive number"),
    (["--dropout", "1"], "from 0 to below 1"),
    (["--dropout", "nan"], "from 0 to below 1"),
    (["--seed", "-1"], "0 or more"),
    (["--model", "huge"], "there are tiny"),
    (["--model", "llama3-8b"], "tokens are bytes"),
    (["--model", "tiny-encoder", "--sequence", "513"], "knows 512 positions, and a window has 513 tokens"),
    (["--data", "no/such/file"], "cannot read no/such/file"),
    (["--data", os.devnull], "not a file"),
    (["--device", "tpu"], "cpu"),
    (["--device", "cuda"], "GPU"),
    (["--steps", "many"], "--steps"),
    (["--nonsense"], "--nonsense"),
    (["--data-parallel", "zero4"], "--data-parallel is one of naive, flat, ddp"),
    (["--data-parallel", "hsdp", "--dp-replicate", "3"], "do not divide into 3 replicas"),
    (["--batch", "1000000000000"], "more held out needs 142,222,222,222,"),
    (["--batch", "1000000000000", "--micro-batches", "250000000000"], "give a longer text"),
    (["--sequence", "1000000000000"], "give a longer text"),
    (["--micro-batches", "1000000000000"], "do not divide among 1000000000000 micro-batches"),
    (["--tensor-parallel", "1000000000000"], "do not divide into groups of 1000000000000"),
    (["--pipeline-parallel", "1000000000000"], "do not divide into pipelines of 1000000000000"),
    (["--data-parallel", "hsdp", "--dp-replicate", "1000000000000"], "do not divide into 1000000000000 replicas"),
    (["--steps", "300", "--stop-after", "1000000000000"], "stops after 1 to 300 steps"),
    *(
        ([f"--{name}", f"{sign}{2**64}"], "64 bits")
        for name in ("seed", "batch", "sequence", "steps", "warmup", "micro-batches", "save-every", "tensor-parallel")
        for sign in ("", "-")
    ),
    (["--save", ""], "--save FOLDER"),
    (["--resume", "--save", "no/such/folder"], "no checkpoint in no/such/folder"),
]


IN_A_PIPELINE = [
    (["--micro-batches", "1000000000000"], "4,000,000,000,000 actions"),
    (["--schedule", "zb-v", "--micro-batches", "1000000000000"], "8,000,000,000,000 actions"),
    (["--schedule", "interleaved", "--stages-per-rank", "1000000000000"], "do not make 2000000000000 stages"),
]


@pytest.mark.parametrize("options, reason", IN_A_PIPELINE)
def test_a_schedule_that_nobody_could_write_down_is_refused(options: list[str], reason: str, capsys) -> None:
    assert run(["train", "--ranks", "2", "--pipeline-parallel", "2", *options]) == 2
    out, err = capsys.readouterr()
    assert out == "" and one_line(err) and reason in err


WRONG = [
    ({"seed": 2**64}, "seed is a number of 64 bits"),
    ({"batch": -(2**64)}, "batch is a number of 64 bits"),
    ({"stop_after": 0}, "stops after 1 to 4 steps, not 0"),
    ({"stop_after": 5}, "stops after 1 to 4 steps, not 5"),
    ({"warmup": -1}, "0 steps or more, not -1"),
    ({"clip": -1.0}, "a positive norm, not -1"),
]


@pytest.mark.parametrize(("change", "said"), WRONG)
def test_a_course_that_would_train_wrongly_is_refused(change: dict, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        replace(CONFIG, **change)


def one_line(text: str) -> bool:
    return text.count("\n") == 1 and text.endswith("\n")


def finished(command: tuple[str, ...]) -> subprocess.CompletedProcess:
    """The command, run to its end with one thread a process."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)


def no_gpu(options: list[str]) -> None:
    if options == ["--device", "cuda"]:
        import torch

        if torch.cuda.is_available():
            pytest.skip("there is a GPU here")


@pytest.mark.parametrize("options, reason", [*BAD, (["--ranks", "0"], "not 0"), (["--ranks", "3"], "among 3 ranks")])
def test_rankwise_says_bad_input_in_one_line(options: list[str], reason: str, capsys: pytest.CaptureFixture):
    no_gpu(options)
    assert run(["train", *options]) == 2
    out, err = capsys.readouterr()
    assert out == "" and one_line(err) and reason in err


@pytest.mark.turns(3)
@pytest.mark.parametrize("options, reason", BAD)
def test_torchruns_rank_0_says_the_same(options: list[str], reason: str, capsys, monkeypatch: pytest.MonkeyPatch):
    no_gpu(options)
    monkeypatch.setattr(sys, "argv", ["reference.train", *options])
    assert launch.main() == 2
    out, err = capsys.readouterr()
    assert out == "" and one_line(err) and reason in err


def test_an_empty_text_is_refused(tmp_path: Path, capsys):
    text = tmp_path / "text"
    text.touch()
    assert run(["train", "--data", str(text)]) == 2
    assert "is empty" in capsys.readouterr().err


@pytest.mark.parametrize("ways", ["", "--elastic", "--voting-replicas 2", "--elastic --islands 2 --outer diloco"])
def test_a_log_that_would_overwrite_the_text_is_refused(ways: str, tmp_path: Path, capsys):
    text = tmp_path / "text"
    text.write_bytes(b"some text " * 1000)
    told = ["--ranks", "2", "--batch", "4", "--data", str(text), "--log", str(tmp_path / "." / "text")]
    assert run(["train", *told, *ways.split()]) == 2
    assert "--log would overwrite" in capsys.readouterr().err
    assert text.stat().st_size == 10_000


def test_rankwise_train_trains(tmp_path: Path, short_text: Path, capsys):
    log = tmp_path / "new" / "log"
    assert run(["train", "--ranks", "2", *SMALL, "--data", str(short_text), "--log", str(log)]) == 0
    steps, _ = read_log(log)
    alone = one_process(replace(CONFIG, data=str(short_text)))
    assert [step.loss for step in steps] == pytest.approx(alone.losses, rel=1e-5)  # float32
    assert steps[-1].tokens == 4 * 4 * 16
    out = capsys.readouterr().out
    assert "step 4/4" in out and "held-out loss" in out


IN_A_PLAN = ("--tensor-parallel", "2", "--pipeline-parallel", "2", "--micro-batches", "2", "--schedule", "zb-h1")


@pytest.mark.parametrize(("ranks", "plan"), [("1", ()), ("4", IN_A_PLAN)])
def test_rankwise_trains_an_encoder_by_its_name(ranks: str, plan: tuple, tmp_path: Path, short_text: Path) -> None:
    options = ["--model", "tiny-encoder", *SMALL[2:], "--data", str(short_text), "--log", str(tmp_path / "log")]
    assert run(["train", "--ranks", ranks, "--precision", "fp64", *plan, *options]) == 0
    steps, _ = read_log(tmp_path / "log")
    config = replace(CONFIG, model=preset("tiny-encoder"), data=str(short_text), precision=PRECISIONS["fp64"])
    assert [step.loss for step in steps] == pytest.approx(one_process(config).losses, rel=1e-10)


def test_torchrun_trains_and_only_rank_0_speaks(short_text: Path):
    done = finished((*TORCHRUN, *SMALL, "--data", str(short_text)))
    assert done.returncode == 0, done.stderr
    shown = [float(line.split()[3]) for line in done.stdout.splitlines() if line.startswith("step")]
    alone = one_process(replace(CONFIG, data=str(short_text)))
    assert shown == pytest.approx(alone.losses, abs=1e-3)  # three digits are shown


@pytest.mark.skipif(sys.platform != "linux", reason="looks for threads in /proc")
def test_no_thread_of_gloo_outlives_the_group(short_text: Path):
    """One that does aborts the exit now and then: see `reference/launch.py`."""
    code = "import sys; from pathlib import Path; from reference import launch; assert launch.main() == 0"
    left = "print('threads:', *(comm.read_text().strip() for comm in Path('/proc/self/task').glob('*/comm')))"
    done = finished((sys.executable, "-c", f"{code}; {left}", *SMALL, "--data", str(short_text)))
    assert "threads: python" in done.stdout, done.stderr
    assert "gloo" not in done.stdout.splitlines()[-1]


def test_only_rank_0_says_what_is_wrong():
    done = finished((*TORCHRUN, "--data", "no/such/file"))
    assert [line for line in done.stderr.splitlines() if line.startswith("reference.train:")] == [
        "reference.train: cannot read no/such/file: no such file or directory"
    ]
    assert "exitcode  : 2" in done.stderr


def agree_on(texts: list[str]) -> None:
    launch.agree(["--device", "cpu", *SMALL, "--data", texts[dist.get_rank()]])


def test_ranks_that_read_different_texts_do_not_begin(clusters: Callable[..., Cluster], tmp_path: Path):
    for name, words in {"one": b"some text ", "copy": b"some text ", "other": b"more text "}.items():
        (tmp_path / name).write_bytes(words * 1000)
    cluster = clusters(2)
    cluster.run(agree_on, [str(tmp_path / name) for name in ("one", "copy")])
    with pytest.raises(RankError, match="rank 1 reads another text than rank 0: give every machine the same file"):
        cluster.run(agree_on, [str(tmp_path / name) for name in ("one", "other")])


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_ctrl_c_leaves_nothing_running(tmp_path: Path):
    mark, log = uuid.uuid4().hex, tmp_path / "log"
    command = (*RANKWISE, "train", "--ranks", "2", "--steps", "100000", *SMALL[:2], "--log", str(log))
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TEST_MARK": mark},
        preexec_fn=lambda: signal.signal(
            signal.SIGINT, signal.SIG_DFL
        ),  # tests in the background were told to ignore it
    )
    try:
        wait_until(lambda: log.exists() and log.stat().st_size > 0, seconds=100)
        assert len(marked(mark)) >= 3  # this test can see the command and its ranks
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert err == "rankwise: interrupted; nothing is left running\n"
    wait_until(lambda: not marked(mark), seconds=1)


def marked(mark: str) -> list[str]:
    """Processes that inherited the mark from the environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes():
                found.append(folder.name)
        except OSError:
            continue
    return found


def test_bench_lists_what_there_is_and_refuses_what_there_is_not(capsys: pytest.CaptureFixture):
    assert run(["bench"]) == 0
    names = capsys.readouterr().out.split()
    assert {"cluster", "collectives", "data-parallel", "pipeline", "watch"} <= set(names) and "rows" not in names
    assert run(["bench", "pipelines"]) == 2
    err = capsys.readouterr().err
    assert one_line(err) and ", ".join(names) in err


def test_bench_becomes_the_benchmark_so_that_signals_reach_it(monkeypatch: pytest.MonkeyPatch):
    became = []
    monkeypatch.setattr(os, "execv", lambda path, arguments: became.append(arguments))
    assert run(["bench", "data-parallel", "--json"]) == 0
    ((_, file, option),) = became
    assert (Path(file).name, option) == ("bench_data_parallel.py", "--json") and Path(file).is_file()


def test_both_commands_have_the_same_defaults():
    ours = {name: parameter.default for name, parameter in signature(train).parameters.items()}
    of_this_machine = {option.name for option in options_of(OnThisMachine)}
    assert launch.parse([]) == {
        name: value for name, value in ours.items() if name not in {"context", *of_this_machine}
    }


def test_help_names_every_schedule():
    said = signature(train).parameters["schedule"].annotation.__metadata__[0].help
    assert set(re.findall(r"[\w-]+", said)) >= {*PipelineSchedule}


def test_help_answers_without_torch():
    code = "import sys; from rankwise.cli import run; run(['--help']); run(['train', '--help'])"
    check = "assert 'torch' not in sys.modules and 'matplotlib' not in sys.modules"
    done = finished((sys.executable, "-c", f"{code}; {check}"))
    assert done.returncode == 0, done.stderr
    assert "train" in done.stdout
