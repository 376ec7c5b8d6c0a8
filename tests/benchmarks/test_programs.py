"""What benchmarks compare still runs, and still computes the same: each program once, on the smallest load."""

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
ONCE = {
    "pipeline": "of['on_new_ranks'](replace(of['LOADS'][-1], rounds=1))",
    "compression": "Cluster(4).run(of['in_turns'], 1)",
    "context_parallel": "Cluster(4).run(of['on_rank'], replace(of['LOADS'][-1], rounds=1), ContextLayout.ZIGZAG)",
    "expert_parallel": "Cluster(4).run(of['on_rank'], replace(of['LOADS'][-2], rounds=1))",
    "decentralized": "Cluster(4).run(of['once'], replace(of['WAYS']['Streaming'], inner_steps=12, sequence=16))",
    "mpi": "of['started'](2, (1 << 12,))",
    "nodes": "Cluster(4).run(of['one_by_one'], 2, 1 << 10)",
    "recovery": "of['elastic'](Cluster(of['RANKS']))",
    "resilience": "of['on_new_ranks'](1)",
    "tensor_parallel": "Cluster(4).run(of['on_rank'], replace(of['LOADS'][-1], rounds=1))",
}
"""How to run each, where `of` holds the names of its script."""
RUN = """
import runpy
from dataclasses import replace
from reference.choices import ContextLayout
from reference.cluster import Cluster
of = runpy.run_path("bench_{name}.py", run_name="once")
{once}
"""


@pytest.mark.turns(4)
@pytest.mark.parametrize("name", ONCE)
def test_a_benchmark_runs_and_its_programs_agree(name: str) -> None:
    """It ends with an error where ours and the peer's differ."""
    command = [sys.executable, "-c", RUN.format(name=name, once=ONCE[name])]
    done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
