"""Kill a rank at each moment of a save, one run after another, and look at what is left: see `test_killed`.

    python -m tests.resilience.kills FOLDER VICTIM [background]

The ranks are forks of this process, which has imported everything and started nothing: a run takes a tenth of a second.
"""

import io
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # what an optimizer imports: here, and not in each rank
import torch.distributed as dist
from torch.distributed.checkpoint.filesystem import FileSystem

from reference.data_parallel import gather_full
from reference.resilience.async_save import BackgroundCheckpoints
from reference.zero.checkpoint import load, save
from reference.zero.checkpoint_folder import complete, files, latest, verify
from tests.zero.runs import Run, begin, train

EACH = 1024  # bytes of a file, after which writing may stop: an archive of a small tensor has a few more


class HalfWritten(io.RawIOBase):
    """A file that may end after any whole number of `EACH` bytes, however many are written at once."""

    def __init__(self, file: io.IOBase, moment: Callable[[], bool]) -> None:
        self.file, self.moment, self.end = file, moment, 0

    def write(self, data: Any) -> int:
        left = memoryview(data).cast("B")
        while left:
            room = EACH - self.end % EACH
            self.end += self.file.write(left[:room])
            left = left[room:]
            if self.end % EACH == 0 and self.moment():
                self.file.flush()
                os.kill(os.getpid(), signal.SIGKILL)
        return memoryview(data).nbytes

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
def killed_at(folder: Path, moment: int) -> Iterator[None]:
    """Let this process be killed at its `moment`-th operation on the folder; -1 for none.

    Operations are what Python's audit hooks see (open, mkdir, rename, unlink, ...), fsync before and after, and writes
    of elements, by the kibibyte.
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
    os.fsync, FileSystem.create_stream = deadly_fsync, deadly_stream
    yield
    active = False


def save_a_third(folder: Path, victim: int, moment: int, in_background: bool) -> None:
    """A run that loads the second checkpoint, takes a step, and is killed while it saves."""
    _, form, optimizer, group = started = Run("zero1", 2).start(seed=5)
    load(folder, form, optimizer, group)
    train(*started, [2])
    with killed_at(folder, moment if dist.get_rank() == victim else -1):
        if in_background:
            background = BackgroundCheckpoints(folder, form, optimizer, group)
            background.save(3, {})
            train(*started, [3])
            background.wait()
        else:
            save(folder, form, optimizer, 3, {}, group)


def continues(folder: Path) -> None:
    """Load, compare with a run that nothing has interrupted, and save once more."""
    _, form, optimizer, group = Run("fsdp", 1).start(seed=9)
    step, _ = load(folder, form, optimizer, group)
    through = Run("naive", 1).start(seed=0)
    train(*through, range(step))
    right, found = gather_full(through[1]), gather_full(form)
    assert all(torch.allclose(found[name], value, rtol=1e-12, atol=0) for name, value in right.items())
    assert step == int(latest(folder).name.rpartition("-")[2])
    save(folder, form, optimizer, step + 1, {}, group)


def on_ranks(ranks: int, do: Callable[[], None], folder: Path) -> list[int]:
    """Run on forked ranks. As soon as one is killed, so are the others. Returns how each has ended."""
    store = folder.with_name(f"{folder.name} store")
    pids = []
    for rank in range(ranks):
        if not (pid := os.fork()):
            be_rank(rank, ranks, store, do)
        pids.append(pid)
    left, ended = set(pids), {}
    while left:
        pid, status = os.wait()
        left.discard(pid)
        ended[pid] = os.waitstatus_to_exitcode(status)
        if ended[pid]:
            for other in left:
                os.kill(other, signal.SIGKILL)
    store.unlink(missing_ok=True)
    return [ended[pid] for pid in pids]


def be_rank(rank: int, ranks: int, store: Path, do: Callable[[], None]) -> None:
    """Do it as one rank of a job, and end this process."""
    try:
        dist.init_process_group("gloo", store=dist.FileStore(str(store), ranks), rank=rank, world_size=ranks)
        do()
        code = 0
    except BaseException as error:
        print(f"rank {rank}: {error!r}", file=sys.stderr, flush=True)
        code = 1
    os._exit(code)


def main(place: Path, victim: int, in_background: bool) -> None:
    """Print, for each moment, the step that is there afterwards."""
    torch.set_num_threads(1)
    before = place / "before"
    assert on_ranks(2, lambda: begin(before, 2), before) == [0, 0]
    for moment in range(1, 200):
        folder = place / str(moment)
        shutil.copytree(before, folder)
        ended = on_ranks(2, lambda: save_a_third(folder, victim, moment, in_background), folder)  # noqa: B023
        if ended == [0, 0]:
            return
        assert ended[victim] == -signal.SIGKILL, ended
        good = complete(folder)
        for checkpoint in good:
            verify(checkpoint, files(checkpoint))
        assert len(good) >= 2
        print(moment, good[-1].name.rpartition("-")[2], flush=True)
        assert on_ranks(1, lambda: continues(folder), folder) == [0]  # noqa: B023
        shutil.rmtree(folder)
    raise AssertionError("so many moments?")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), "background" in sys.argv)
