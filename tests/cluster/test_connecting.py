"""Ranks on nodes take a group together, or try again together."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from reference.cluster import Cluster, connecting
from reference.process_group import connect

MINUTE = timedelta(minutes=1)


def joined(file: str, fails: dict[int, int]) -> tuple[int, float]:
    """On a rank: how often it has tried, and the sum of all ranks over the group.

    Args:
        file: of a store.
        fails: by rank, how many tries of it fail, after the others have gone into theirs.
    """
    rank, size, tries = dist.get_rank(), dist.get_world_size(), 0

    def connects(backend: str, options: Any, timeout: timedelta) -> Any:
        nonlocal tries
        tries += 1
        if tries <= fails.get(rank, 0):
            raise RuntimeError("timed out connecting: SO_ERROR: No route to host")
        return connect(backend, options, timeout)

    options = SimpleNamespace(store=dist.FileStore(file, size), group_rank=rank, group_size=size)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connecting, "connect", connects)
        patch.setattr(connecting, "FIRST", 1.0)
        group = connecting.connect_in_the_end(dist.Backend.GLOO, options, MINUTE)
    said = torch.tensor([float(rank)])
    group.allreduce([said]).wait()
    return tries, said.item()


@pytest.mark.parametrize("fails", [{}, {1: 1}, {0: 1, 2: 2}], ids=["none", "one", "two, once and twice"])
def test_where_one_has_no_group_all_try_again(
    clusters: Callable[..., Cluster], tmp_path: Path, fails: dict[int, int]
) -> None:
    wanted = 1 + max(fails.values(), default=0)
    found = clusters(3).run(joined, str(tmp_path / "store"), fails)
    assert found == [(found[0][0], 3.0)] * 3  # a busy machine may let another try fail
    assert found[0][0] >= wanted


def test_one_rank_alone_has_nobody_to_ask(clusters: Callable[..., Cluster], tmp_path: Path) -> None:
    assert clusters(1).run(joined, str(tmp_path / "store"), {}) == [(1, 0.0)]
    assert not (tmp_path / "store").exists()
