"""A rank that is killed at any moment of a save leaves a checkpoint that is right: the new one, or the one before."""

import io
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.filesystem import FileSystem

from reference.cluster import Cluster, RankDied
from reference.data_parallel import gather_full
from reference.resilience.async_save import BackgroundCheckpoints
from reference.zero.checkpoint import load, save
from reference.zero.checkpoint_folder import complete, files, latest, verify

from ..zero.runs import Run, begin, train

LEAST = {(0, False): 40, (0, True): 40, (1, False): 6, (1, True): 6}
"""How many moments there are at least, of a save with two checkpoints before it; by victim and by kind of save."""


class HalfWritten(io.RawIOBase):
    """A file of which one write may stop in the middle."""

    def __init__(self, file: io.IOBase, moment: Callable[[], bool]) -> None:
        self.file, self.moment = file, moment

    def write(self, data: Any) -> int:
        if self.moment():
            self.file.write(bytes(data)[: len(data) // 2])
            self.file.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        return self.file.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def tell(self) -> int:
        return self.file.tell()

    def flush(self) -> None:
        self.file.flush()

    def fileno(self) -> int:
        return self.file.fileno()

    def close(self) -> None:
        self.file.close()

    def writable(self) -> bool:
        return True


@contextmanager
def killed_at(folder: Path, moment: int) -> Iterator[Callable[[], int]]:
    """Let this process be killed at its `moment`-th operation on the folder; -1 for none. Gives how many there were.

    Operations are what Python's audit hooks see (open, mkdir, rename, unlink, ...), fsync before and after, and each
    write of elements, half of which is done.
    """
    count, active, fsync, create_stream = 0, True, os.fsync, FileSystem.create_stream

    def now() -> bool:
        nonlocal count
        count += 1
        return count == moment

    def perhaps_die() -> None:
        if now():
            os.kill(os.getpid(), signal.SIGKILL)

    def audit(event: str, arguments: tuple) -> None:
        if active and event.startswith(("open", "os.", "shutil.")) and str(folder) in str(arguments):
            perhaps_die()

    def deadly_fsync(file: int) -> None:
        perhaps_die()
        fsync(file)
        perhaps_die()

    @contextmanager
    def deadly_stream(self: FileSystem, path: Path, mode: str) -> Iterator[io.IOBase]:
        with create_stream(self, path, mode) as stream:
            yield HalfWritten(stream, now) if "w" in mode else stream

    sys.addaudithook(audit)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", deadly_fsync)
        patch.setattr(FileSystem, "create_stream", deadly_stream)
        try:
            yield lambda: count
        finally:
            active = False


def saved_by(folder: Path, victim: int, moment: int, in_background: bool) -> int | None:
    """A run that loads the second checkpoint, takes a step, and is killed while it saves. Returns how many moments."""
    _, form, optimizer, group = started = Run("zero1", 2).start(seed=5)
    load(folder, form, optimizer, group)
    train(*started, [2])
    with killed_at(folder, moment if dist.get_rank() == victim else -1) as moments:
        if in_background:
            background = BackgroundCheckpoints(folder, form, optimizer, group)
            background.save(3, {})
            train(*started, [3])
            background.wait()
        else:
            save(folder, form, optimizer, 3, {}, group)
        return moments()


def is_right(folder: Path) -> int:
    """Load, compare with a run that nothing has interrupted, and save once more. Returns the step that was loaded."""
    _, form, optimizer, group = Run("fsdp", 2).start(seed=9)
    step, _ = load(folder, form, optimizer, group)
    through = Run("zero1", 2).start(seed=0)
    train(*through, range(step))
    right, found = gather_full(through[1]), gather_full(form)
    assert all(torch.equal(found[name], value) for name, value in right.items())
    save(folder, form, optimizer, step + 1, {}, group)
    return step


@pytest.fixture(scope="module")
def before(clusters: Callable[..., Cluster], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the checkpoints of two steps."""
    folder = tmp_path_factory.mktemp("before") / "run"
    clusters(2, watch=True).run(begin, folder, 2)
    return folder


@pytest.mark.parametrize("in_background", [False, True], ids=["at once", "in the background"])
@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_killed_at_any_moment_leaves_a_checkpoint_that_is_right(
    two: Cluster, before: Path, tmp_path: Path, victim: int, in_background: bool
) -> None:
    found: list[int] = []
    for moment in range(1, 200):
        folder = tmp_path / str(moment)
        shutil.copytree(before, folder)
        try:
            two.run(saved_by, folder, victim, moment, in_background)
        except RankDied:
            pass
        else:
            break
        for checkpoint in complete(folder):
            verify(checkpoint, files(checkpoint))
        assert len(complete(folder)) >= 2
        expected = int(latest(folder).name.rpartition("-")[2])
        found.append(two.run(is_right, folder)[0])
        assert found[-1] == expected
        shutil.rmtree(folder)
    assert len(found) >= LEAST[victim, in_background]
    assert found == sorted(found) and set(found) <= {2, 3}  # from some moment on the new one is there
    assert 2 in found and (victim == 1 or 3 in found)
