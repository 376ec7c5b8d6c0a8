"""What a command imports, and when: torch takes seconds, and ranks that import it for themselves take them again."""

import subprocess
import sys
from pathlib import Path

import pytest

from rankwise.ranks import begin_importing
from reference.cluster import ClusterError

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import sys
from rankwise.ranks import TRAINING, begin_importing

begin_importing(TRAINING)
assert "torch" not in sys.modules  # this process has yet to import it: the other one begins before

import torch
import torch.distributed as dist
from reference.cluster import Cluster
from reference.models import PRESETS
from reference.parallelize import Plan
from reference.train import TrainConfig, train

def imported():
    return {name for name in sys.modules if name.startswith(("reference", "torch._dynamo"))}

def learn(config):
    train(config, dist.group.WORLD, torch.device("cpu"), Plan())

with Cluster(2) as cluster:
    before = cluster.run(imported)
    cluster.run(learn, TrainConfig(PRESETS["tiny"], steps=1, batch=2, sequence=16))
    print([len(after - had) for after, had in zip(cluster.run(imported), before)])
"""


def test_a_rank_that_trains_finds_everything_imported():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert done.stdout.strip() == "[0, 0]", done.stderr


def test_where_there_is_no_fork_a_command_says_so_at_once(monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as elsewhere, pytest.raises(ClusterError, match="use WSL"):
        elsewhere.setattr("os.name", "nt")
        begin_importing()
