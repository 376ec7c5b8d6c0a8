"""`rankwise trace` of programs that bring their own ranks: they run as they are, or one line says what would work."""

import sys
from pathlib import Path

import pytest

from rankwise.cli import run
from rankwise.own_ranks import Style, style_of

WORKER = """
import os
import torch, torch.distributed as dist, torch.multiprocessing as mp
from torch.distributed import init_process_group, destroy_process_group

SCALE = 2

def helper(x):
    return x * SCALE

def worker(rank, world_size, extra=None):
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", "29512"
    init_process_group("gloo", rank=rank, world_size=world_size)
    x = helper(torch.ones(2))
    dist.all_reduce(x)
    assert x[0] == SCALE * world_size and dist.get_backend() == "gloo"
    destroy_process_group()
"""
MAIN = '\nif __name__ == "__main__":\n'
STARTS = {
    "spawn": WORKER + MAIN + "    mp.spawn(worker, args=(3,), nprocs=3, join=True)\n",
    "spawn in main": WORKER + "def main():\n    mp.spawn(worker, (3,), 3)\n" + MAIN + "    main()\n",
    "spawn without join": WORKER + MAIN + "    c = mp.spawn(worker, args=(3,), nprocs=3, join=False)\n"
    "    while not c.join(): pass\n",
    "start_processes": WORKER + MAIN + "    mp.start_processes(worker, (3,), 3, start_method='spawn')\n",
    "processes": WORKER + MAIN + "    ps = [mp.Process(target=worker, args=(r, 3)) for r in range(3)]\n"
    "    for p in ps: p.start()\n    for p in ps: p.join()\n    assert all(p.exitcode == 0 for p in ps)\n",
    "processes of a context": WORKER + "import multiprocessing\n" + MAIN
    + "    c = multiprocessing.get_context('spawn')\n"
    "    ps = [c.Process(target=worker, args=(r,), kwargs={'world_size': 3}) for r in range(3)]\n"
    "    for p in ps: p.start()\n    for p in ps: p.join(timeout=60)\n    assert not any(p.is_alive() for p in ps)\n",
    "a class of processes": WORKER + "class Rank(mp.Process):\n"
    "    def __init__(self, rank):\n        super().__init__(name=f'rank {rank}')\n        self.rank = rank\n"
    "    def run(self):\n        assert self.name == f'rank {self.rank}'\n        worker(self.rank, 3)\n" + MAIN
    + "    ps = [Rank(r) for r in range(3)]\n    for p in ps: p.start()\n    for p in ps: p.join()\n"
    "    assert all(p.exitcode == 0 for p in ps)\n",
    "processes that are not joined": WORKER + MAIN
    + "    for r in range(3):\n        mp.Process(target=worker, args=(r, 3)).start()\n",
    "closures": WORKER + "def main(n):\n    mp.start_processes(lambda r: worker(r, n), nprocs=n)\n" + MAIN
    + "    main(3)\n",
}  # fmt: skip
TORCHRUN = {
    "at the top": "import torch, torch.distributed as dist\ndist.init_process_group('gloo')\n"
    "x = torch.ones(2)\ndist.all_reduce(x)\nassert x[0] == 3\ndist.destroy_process_group()\n",
    "in main": "import os, torch, torch.distributed as dist\ndef main():\n"
    "    dist.init_process_group()\n    assert dist.get_rank() == int(os.environ['RANK'])\n"
    "    dist.all_reduce(torch.ones(2))\n    dist.destroy_process_group()\n"
    "if __name__ == '__main__':\n    main()\n",
    "by the environment": "import os, sys, torch, torch.distributed as dist\n"
    "dist.init_process_group('gloo', init_method='env://', rank=int(os.environ['RANK']),"
    " world_size=int(os.environ['WORLD_SIZE']))\n"
    "assert os.environ['MASTER_ADDR'] and sys.argv[1:] == []\ndist.all_reduce(torch.ones(2))\nsys.exit(0)\n",
    "by a mesh": "import torch, torch.distributed as dist\n"
    "from torch.distributed.device_mesh import init_device_mesh\n"
    "mesh = init_device_mesh('cpu', (3,), mesh_dim_names=('data',))\n"
    "dist.all_reduce(torch.ones(2), group=mesh.get_group('data'))\n",
    "only where it is not yet": "import torch, torch.distributed as dist\n"
    "if not dist.is_initialized():\n    dist.init_process_group('gloo')\ndist.all_reduce(torch.ones(2))\n",
}


@pytest.fixture(autouse=True)
def own_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", sys.path.copy())


def trace(tmp_path: Path, source: str, *options: str) -> int:
    (tmp_path / "program.py").write_text(source)
    return run(["trace", str(tmp_path / "program.py"), "--out", str(tmp_path / "out"), *options])


def test_a_mesh_in_main_takes_the_group_that_is_there(tmp_path: Path, capsys: pytest.CaptureFixture):
    meshed = TORCHRUN["by a mesh"].splitlines(keepends=True)
    source = "".join([*meshed[:2], "def main():\n", *(f"    {line}" for line in meshed[2:])])
    assert style_of(source) is Style.FUNCTION and trace(tmp_path, source, "--ranks", "3") == 0
    assert "rank 2: 1 calls" in capsys.readouterr().out


@pytest.mark.parametrize("name", STARTS)
def test_a_program_that_starts_its_ranks_is_traced(name: str, tmp_path: Path, capsys: pytest.CaptureFixture):
    assert style_of(STARTS[name]) is Style.STARTS
    assert trace(tmp_path, STARTS[name]) == 0
    out = capsys.readouterr().out
    assert "rank 2: 1 calls" in out and "rank 3" not in out and "\n0 messages" not in out


@pytest.mark.parametrize("name", TORCHRUN)
def test_a_program_for_torchrun_is_traced(name: str, tmp_path: Path, capsys: pytest.CaptureFixture):
    assert style_of(TORCHRUN[name]) is Style.TORCHRUN
    assert trace(tmp_path, TORCHRUN[name], "--ranks", "3") == 0
    out = capsys.readouterr().out
    assert "rank 2: 1 calls" in out and "\n0 messages" not in out


def test_a_function_of_a_program_with_a_group_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture):
    source = TORCHRUN["at the top"].replace("dist.destroy", "def again():\n    dist.barrier()\n# ")
    assert trace(tmp_path, source, "--ranks", "3", "--function", "again") == 0
    assert "rank 2: 2 calls" in capsys.readouterr().out


def test_a_function_that_takes_its_rank_and_how_many_there_are(tmp_path: Path, capsys: pytest.CaptureFixture):
    assert trace(tmp_path, STARTS["spawn"], "--ranks", "2", "--function", "worker") == 0
    assert "rank 1: 1 calls" in capsys.readouterr().out


REFUSED = {
    "nothing is said": ("def main(): pass\n", "its ranks said nothing to each other"),
    "nothing is started": (WORKER + "\ndef main():\n    mp.spawn(worker, (2,), 2)\n", "has started no ranks"),
    "a queue": (
        WORKER + MAIN + "    q = mp.Queue()\n    mp.Process(target=worker, args=(0, 1, q)).start()\n",
        "can't be sent to a rank",
    ),
    "it fails before": (WORKER + MAIN + "    1 / 0\n    mp.spawn(worker, (2,), 2)\n", "ZeroDivisionError"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_where_there_is_nothing_to_draw_one_line_says_so(name: str, tmp_path: Path, capsys: pytest.CaptureFixture):
    source, words = REFUSED[name]
    assert trace(tmp_path, source, "--ranks", "2") == 2
    said = capsys.readouterr()
    assert words in said.err and said.err.count("\n") == 1 and "drawn" not in said.out


WRONG = {
    "too many": (TORCHRUN["at the top"].replace("'gloo'", "'gloo', world_size=5, rank=0"), "--ranks sets that"),
    "on GPUs": (TORCHRUN["at the top"].replace("'gloo'", "'nccl'"), "speak gloo"),
    "a deadlock": (
        TORCHRUN["at the top"].replace("dist.all_reduce(x)", "dist.recv(x, src=(dist.get_rank() + 1) % 3)"),
        "deadlock",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_on_a_rank_is_named_with_its_line(name: str, tmp_path: Path, capsys: pytest.CaptureFixture):
    source, words = WRONG[name]
    assert trace(tmp_path, source, "--ranks", "3") == 1
    err = capsys.readouterr().err
    assert words in err and "program.py:" in err
