"""Warm clusters that all tests share."""

import contextlib
import gc
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from reference.cluster import Cluster
from tests.turns import long_first, long_functions, out_of_turn

torch.set_num_threads(1)  # for small tensors a second thread saves nothing, and costs seconds where all cores are busy

with contextlib.suppress(ImportError):  # `tests/gpu` does without it
    from hypothesis import HealthCheck, settings

    # how long an example takes says how busy the machine is
    settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("untimed")


PRELOAD = ("torch._dynamo", "torch.distributed.checkpoint", "pytest", "reference.train")
"""What an optimizer, a checkpoint, a file of tests and a training import: more than a second for each rank."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--turn", type=int, help="run what has its turn on this day: see `tests/turns.py`")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):  # one of several processes
        items[:] = long_first(items)
    if (turn := config.getoption("turn")) is not None and (left := out_of_turn(items, turn, long_functions())):
        passed_over = set(left)
        items[:] = [item for item in items if item not in passed_over]
        config.hook.pytest_deselected(items=left)


def pytest_collection_finish() -> None:
    """Have the collector of garbage pass over what is imported and collected: it takes a tenth of the time."""
    gc.freeze()
    gc.set_threshold(20_000)


@pytest.fixture
def patience() -> float:
    """How much longer than on a quiet machine things may take here."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


@pytest.fixture(scope="session")
def clusters() -> Iterator[Callable[..., Cluster]]:
    """`clusters(4)` and `clusters(4, watch=True)`: one warm cluster for each description, for the whole session."""
    warm: dict[Any, Cluster] = {}

    def cluster(world_size: int, **options: Any) -> Cluster:
        options = {"timeout": 300} | options
        options["preload"] = tuple(dict.fromkeys((*PRELOAD, *options.get("preload", ()))))
        key = (world_size, *sorted(options.items()))
        if key not in warm:
            warm[key] = Cluster(world_size, **options)
        return warm[key]

    yield cluster
    for one in warm.values():
        one.close()
