"""Where ranks compute, who says so, and how they leave: what a machine with GPUs would show, shown without one."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from rankwise import training
from rankwise.cli import run
from reference import on_gpus
from reference.collectives import compat
from reference.errors import BadInput

ROOT = Path(__file__).resolve().parents[2]
SMALL = ("--model", "tiny", "--steps", "2", "--batch", "4", "--sequence", "16")
LIMIT = 60  # seconds: Python and torch start in several, and a rank that hangs would stay for minutes


COMPUTES_ON = {"cpu:gloo,cuda:gloo": "cuda:3", "gloo": "cpu", "cpu:gloo": "cpu"}  # by backend of its world


def test_a_rank_computes_where_its_world_says() -> None:
    """gloo alone serves tensors of both kinds, and is no world of GPUs."""
    program = f"""
        import torch, torch.distributed as dist
        from unittest.mock import patch
        from rankwise.on_rank import own_device
        for backend in {[*COMPUTES_ON]}:
            dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
            with patch("torch.cuda.current_device", lambda: 3):
                print(own_device())
            dist.destroy_process_group()
    """
    command = [sys.executable, "-c", dedent(program)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [*COMPUTES_ON.values()]


@pytest.mark.parametrize(
    ("backend", "gpus"), [("nccl", True), ("cpu:gloo,cuda:nccl", True), ("tapped", False), ("cpu:gloo", False)]
)
def test_every_name_of_a_world_on_gpus_is_known(backend: str, gpus: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "get_backend", lambda group: backend)
    assert compat.computes_on_gpus(SimpleNamespace()) is gpus


@pytest.mark.parametrize(("serves", "device"), [(("cpu", "cuda"), "cpu"), (("cuda",), "cuda"), (("cpu",), "cpu")])
def test_small_numbers_go_where_their_group_has_a_way(serves: tuple[str, ...], device: str) -> None:
    """A group by hand over NCCL has no way between CPUs, whatever it is called."""
    group = SimpleNamespace(_device_types=[torch.device(kind) for kind in serves])
    assert compat.device_of(group).type == device


def test_what_is_printed_is_what_the_ranks_say(capsys, monkeypatch: pytest.MonkeyPatch, short_text: Path) -> None:
    """An owner that believes in GPUs, and ranks that compute on the CPU: no step is taken, and nothing says "cuda"."""
    monkeypatch.setattr(training, "choose_device", lambda wanted, ranks: "cuda")
    monkeypatch.setattr(training, "Cluster", lambda ranks, **options: a_cluster(ranks, **options | {"device": "cpu"}))
    assert run(["train", "--ranks", "2", *SMALL, "--data", str(short_text)]) == 2
    out, err = capsys.readouterr()
    assert "step" not in out and "ranks" not in out
    assert "cuda was chosen, and rank 0 computes on cpu: say --device cpu" in err


def a_cluster(ranks: int, **options: object):
    """The class itself, which a test has put something else in the place of."""
    from reference.cluster import Cluster

    return Cluster(ranks, **options)


def test_one_rank_elsewhere_is_enough() -> None:
    everywhere = [torch.device("cuda", 0), torch.device("cuda", 1)]
    assert training.place_of(everywhere, "cuda") == "cuda"
    with pytest.raises(BadInput, match="rank 2 computes on cpu"):
        training.place_of([*everywhere, torch.device("cpu")], "cuda")


Started = Callable[..., list[subprocess.CompletedProcess]]


@pytest.fixture
def started() -> Started:
    """Start `reference.launch.main` on two ranks, as torchrun does, each after a few lines of its own."""

    def start(*options: str, first: str, world_size: int = 2) -> list[subprocess.CompletedProcess]:
        program = "import os, sys, torch\nfrom reference import launch\n" + dedent(first) + "\nsys.exit(launch.main())"
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        agent = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
        ranks = []
        for rank in range(world_size):
            place = {"RANK": rank, "LOCAL_RANK": 0, "WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": 1}
            environment = os.environ | {name: str(value) for name, value in place.items()}
            environment |= agent | {"OMP_NUM_THREADS": "1"}
            command = [sys.executable, "-c", program, *options]
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
            ranks.append(subprocess.Popen(command, cwd=ROOT, env=environment, **pipes))
        try:
            deadline = time.monotonic() + LIMIT
            said = [rank.communicate(timeout=deadline - time.monotonic()) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
        return [
            subprocess.CompletedProcess(rank.args, rank.returncode, *words)
            for rank, words in zip(ranks, said, strict=True)
        ]

    return start


FAILS_ON_1 = """
    import torch.distributed as dist
    def never(group=None):
        import time
        time.sleep(1000)                  # as NCCL does, where work of others is left
    dist.destroy_process_group = never
    def fail(*arguments):
        if int(os.environ["RANK"]) == 1:
            raise {error}
        sys.exit(7)                       # what the other rank would do is not asked here
    launch.run = fail
    if int(os.environ["RANK"]) == 0:
        dist.destroy_process_group = lambda group=None: None
"""


def test_an_exception_is_shown_and_ends_its_rank_before_groups_are_taken_down(started: Started, short_text) -> None:
    _, failed = started(*SMALL, "--data", str(short_text), first=FAILS_ON_1.format(error="MemoryError('CUDA is full')"))
    assert failed.returncode == 1
    assert "Traceback" in failed.stderr and "MemoryError: CUDA is full" in failed.stderr


def test_bad_input_that_one_rank_alone_meets_is_said_by_it(started: Started, short_text: Path) -> None:
    error = "launch.BadInput('the disk is full')"
    _, failed = started(*SMALL, "--data", str(short_text), first=FAILS_ON_1.format(error=error))
    assert failed.returncode == 2
    assert failed.stderr == "reference.train: rank 1: the disk is full\n"


UNEQUAL = """
    has = int(os.environ["RANK"]) != {without}
    torch.cuda.is_available = lambda: has
    torch.cuda.device_count = lambda: int(has)
    torch.cuda.set_device = lambda device: None
    torch.accelerator.is_available = lambda: False  # else a torch with CUDA asks a driver that is not there
"""


@pytest.mark.parametrize("without", [0, 1])
def test_machines_of_which_one_has_no_gpu_are_refused_in_one_line(
    started: Started, without: int, short_text: Path
) -> None:
    first, second = started(*SMALL, "--data", str(short_text), first=UNEQUAL.format(without=without))
    assert (first.returncode, second.returncode) == (2, 2)
    kinds = ("cuda", "cpu") if without == 0 else ("cpu", "cuda")
    assert f"rank 1 would compute on {kinds[0]} and rank 0 on {kinds[1]}: say --device cpu" in first.stderr
    assert first.stderr.count("\n") == 1 and second.stderr == ""


def test_they_train_on_cpus_when_told_to(started: Started, short_text: Path) -> None:
    """None of them makes groups of NCCL, which the other has not: this build of torch could not."""
    first, second = started(*SMALL, "--device", "cpu", "--data", str(short_text), first=UNEQUAL.format(without=1))
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert "2 ranks, cpu" in first.stdout


def test_launch_asks_for_all_connections_and_leaves_what_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(on_gpus.CONNECTIONS, raising=False)
    on_gpus.allow_connections()
    assert os.environ[on_gpus.CONNECTIONS] == "32"
    monkeypatch.setenv(on_gpus.CONNECTIONS, "1")
    on_gpus.allow_connections()
    assert os.environ[on_gpus.CONNECTIONS] == "1"
