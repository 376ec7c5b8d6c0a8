"""No kill, full disk or power cut spoils the last good checkpoint."""

import errno
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch.distributed as dist

from reference.cluster import Cluster, RankDied
from reference.errors import BadInput
from reference.zero.checkpoint import latest, load, save
from reference.zero.checkpoint_folder import complete, contents, files, verify

from .runs import Run, begin, begun


def test_every_byte_is_on_the_disk_before_a_checkpoint_has_its_name(eight: Cluster, tmp_path: Path) -> None:
    """What a power cut would show, and no test can."""

    def order(folder: Path) -> list[tuple[str, str]] | None:
        if (started := begun(folder, steps=1)) is None:
            return None
        seen, fsync, rename = [], os.fsync, os.rename

        def noted_fsync(file: int) -> None:
            fsync(file)
            seen.append(("fsync", Path(os.readlink(f"/proc/self/fd/{file}")).name))

        def noted_rename(source: Path, target: Path) -> None:
            rename(source, target)
            seen.append(("rename", Path(target).name))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "fsync", noted_fsync)
            patch.setattr(os, "rename", noted_rename)
            save(folder, *started[1:3], 2, {}, started[3])
        return seen

    first, second, *_ = eight.run(order, tmp_path)
    assert first == [
        ("fsync", "__0_0.distcp"),
        ("fsync", ".metadata.tmp"),
        ("rename", ".metadata"),
        ("fsync", "manifest.json"),
        ("fsync", "SHA256SUMS"),
        ("fsync", ".000002-partial"),
        ("rename", "000002-step-2"),
        ("fsync", tmp_path.name),
    ]
    assert second == [("fsync", "__1_0.distcp")]


def failures(folder: Path, culprit: int) -> list[tuple[int, list[str], list[str]]] | None:
    """Let the disk be full at one moment after the other: at each call to the file system that names the folder.

    Returns:
        For each moment how many ranks heard of it, what they heard, and what is in the folder afterwards.
    """
    if (started := begun(folder, steps=2)) is None:
        return None
    _, form, optimizer, group = started
    left = -1  # calls until the disk is full; negative: it is not

    def audit(event: str, arguments: tuple) -> None:
        nonlocal left
        if left >= 0 and event.startswith(("open", "os.", "shutil.")) and str(folder) in str(arguments):
            left -= 1
            if left < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    sys.addaudithook(audit)
    found = []
    for moment in range(100):
        left, error = moment if dist.get_rank() == culprit else -1, ""
        try:
            save(folder, form, optimizer, 3 + moment, {}, group)
        except BadInput as caught:
            error = str(caught)
        over, left = left >= 0, -1
        everyone: list = [None, None]
        dist.all_gather_object(everyone, (error, over), group=group)
        found.append((sum(bool(each) for each, _ in everyone), [each for each, _ in everyone], os.listdir(folder)))
        dist.barrier(group)  # rank 0 makes a place for the next one as soon as it begins
        if any(over for _, over in everyone):
            return found
    raise AssertionError("so many calls?")


@pytest.mark.parametrize("culprit", [0, 1])
def test_a_full_disk_at_any_moment_leaves_the_last_checkpoints(eight: Cluster, tmp_path: Path, culprit: int) -> None:
    moments = eight.run(failures, tmp_path, culprit)[0]
    assert len(moments) > (20, 3)[culprit]  # the last is the one in which nothing happened
    before = {"000001-step-1", "000002-step-2"}
    refused = 0
    for heard, errors, names in moments[:-1]:
        assert heard in (0, 2) and len(set(errors)) == 1
        if heard:
            refused += 1
            assert f"rank {culprit}: [Errno 28] No space left on device" in errors[0] and "\n" not in errors[0]
        good = {name for name in names if not name.startswith(".")}
        assert len(good) >= 2
        assert good >= before or not heard or "was saved, but an old one" in errors[0]
        before = good
    assert refused > len(moments) // 2
    assert moments[-1][0] == 0
    for checkpoint in complete(tmp_path):
        verify(checkpoint, files(checkpoint))


def test_a_file_that_may_not_grow_any_further_is_a_full_disk(eight: Cluster, tmp_path: Path) -> None:
    """The kernel itself stops the write, in the middle of what torch.save writes."""

    def limited(folder: Path) -> str | None:
        if (started := begun(folder, steps=1)) is None:
            return None
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        if dist.get_rank() == 1:
            resource.setrlimit(resource.RLIMIT_FSIZE, (3000, limits[1]))
        try:
            with pytest.raises(BadInput) as refusal:
                save(folder, *started[1:3], 2, {}, started[3])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        return str(refusal.value)

    first, second, *_ = eight.run(limited, tmp_path)
    one = tmp_path / "000001-step-1"
    assert first == second == f"step 2 was not saved: rank 1: [Errno 27] File too large; the last checkpoint is {one}"
    assert os.listdir(tmp_path) == [one.name]  # what was written of the other has made room


KILLS = {
    "before anything is written": (0, "os.mkdir", ".000003-partial"),
    "before the elements": (0, "open", "__0_0.distcp"),
    "before the elements of another rank": (1, "open", "__1_0.distcp"),
    "before .metadata has its name": (0, "os.rename", ".metadata.tmp"),
    "before the manifest": (0, "open", ".000003-partial/manifest.json"),
    "before the checksums": (0, "open", "SHA256SUMS"),
    "before it has its name": (0, "os.rename", "000003-step-3"),
}


@pytest.mark.parametrize("moment", KILLS)
def test_a_rank_killed_while_it_saves_leaves_the_last_checkpoint(two: Cluster, tmp_path: Path, moment: str) -> None:
    victim, event, name = KILLS[moment]
    with pytest.raises(RankDied):
        two.run(killed, tmp_path, victim, event, name)
    assert latest(tmp_path).name == "000002-step-2"
    two.run(goes_on, tmp_path, 2)
    number = 3 if event == "os.mkdir" else 4  # one that was begun is not used again
    assert sorted(os.listdir(tmp_path)) == ["000002-step-2", f"00000{number}-step-3"]


def test_a_rank_killed_while_it_deletes_leaves_the_new_checkpoint(two: Cluster, tmp_path: Path) -> None:
    with pytest.raises(RankDied):
        two.run(killed, tmp_path, 0, "os.rmdir", "000001-step-1")
    assert [one.name for one in complete(tmp_path)] == ["000002-step-2", "000003-step-3"]
    two.run(goes_on, tmp_path, 3)
    assert sorted(os.listdir(tmp_path)) == ["000003-step-3", "000004-step-4"]


def killed(folder: Path, victim: int, event: str, name: str) -> None:
    started = begun(folder, steps=2)

    def audit(now: str, arguments: tuple) -> None:
        if now == event and name in str(arguments) and dist.get_rank() == victim:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(audit)
    save(folder, *started[1:3], 3, {}, started[3])


def goes_on(folder: Path, step: int) -> None:
    _, form, optimizer, group = Run("fsdp", 2).start(seed=9)
    assert load(folder, form, optimizer, group) == (step, {})
    save(folder, form, optimizer, step + 1, {}, group)


@pytest.mark.parametrize("checkpoints", [1, 2, 5])
def test_a_job_killed_at_any_moment_leaves_its_last_checkpoint(two: Cluster, tmp_path: Path, checkpoints: int) -> None:
    def kill_all(pids: list[int]) -> None:
        wait_until(lambda: (last := latest(tmp_path)) is not None and int(last.name[:6]) >= checkpoints)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)

    two.run(dist.get_rank)  # the ranks are up
    killer = threading.Thread(target=kill_all, args=(two.pids,))
    killer.start()
    with pytest.raises(RankDied):
        two.run(begin, tmp_path, 1000)
    killer.join()
    last = latest(tmp_path)
    assert contents(last)["step"] >= checkpoints
    verify(last, files(last))
    two.run(goes_on, tmp_path, contents(last)["step"])


def wait_until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not happened() and time.monotonic() < deadline:
        time.sleep(0.01)
