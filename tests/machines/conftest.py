"""Nodes for what people start on several machines, a short text, and one process to compare with."""

import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from reference.cluster import Nodes
from reference.cluster.nodes import NodeProcess
from reference.config import TrainConfig
from reference.memory.precision import PRECISIONS
from reference.models import PRESETS
from reference.models.data import python_text
from reference.oracle import one_process

ROOT = Path(__file__).resolve().parents[2]
RECORDED = str(Path(__file__).with_name("recorded.py"))
OPTIONS = ("--model", "tiny", "--steps", "3", "--batch", "4", "--sequence", "16", "--precision", "fp64")
LIMIT = 240  # seconds: Python and torch start in several processes


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first 20 KB of the default text, as a file."""
    path = tmp_path_factory.mktemp("text") / "short.txt"
    path.write_bytes(python_text()[:20_000].tobytes())
    return path


@pytest.fixture(scope="session")
def right(text: Path) -> list[float]:
    """The losses of one process."""
    config = TrainConfig(PRESETS["tiny"], steps=3, batch=4, sequence=16, data=str(text), precision=PRECISIONS["fp64"])
    return one_process(config).losses


@pytest.fixture(scope="module")
def two() -> Iterator[Nodes]:
    """Two machines."""
    if not (found := Nodes.available()):
        pytest.skip(found.why_not)
    with Nodes(2, "1 Gb/s") as nodes:
        yield nodes


def ended(runs: Sequence[NodeProcess], said: Path) -> str:
    """What they have written, once all have ended well. One that fails leaves others waiting: it is found at once, and
    they are killed, so that what is tested next on these nodes finds them free.
    """
    deadline = time.monotonic() + LIMIT
    while None in (codes := [run.poll() for run in runs]) and not any(codes) and time.monotonic() < deadline:
        time.sleep(0.1)
    for run in runs:
        run.kill()
    assert codes == [0] * len(runs), said.read_text()
    return said.read_text()


def losses(log: Path) -> list[float]:
    """Of each step, all digits."""
    return [json.loads(line)["loss"] for line in log.read_text().splitlines()]
