"""Disks that are full, read-only, slow or gone, and clocks that jump: one line, and nothing is lost."""

import ast
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from rankwise import on_rank
from reference.cluster import Cluster
from reference.resilience.async_save import BackgroundCheckpoints
from reference.zero import checkpoint_folder
from reference.zero.checkpoint import latest

from ..zero.runs import begun, train

ROOT = Path(on_rank.__file__).parents[1]
TRAIN = f"{sys.executable} -m reference.train --model tiny --batch 4 --sequence 16 --device cpu"


def mounts() -> bool:
    """Whether this user may mount a disk of a chosen size, in a namespace of its own."""
    return shutil.which("unshare") is not None and in_namespace("mount -t tmpfs tmpfs /mnt").returncode == 0


def in_namespace(script: str) -> subprocess.CompletedProcess:
    """Run a shell's script with mounts of its own."""
    command = ["unshare", "-Urm", "sh", "-c", script]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)


@pytest.mark.parametrize("options", ["", "--save-in-background"])
def test_a_disk_that_becomes_full_ends_the_run_with_one_line(tmp_path: Path, short_text: Path, options: str) -> None:
    """A checkpoint has some 0.4 MB, and the disk 1.1 MB: there is room for two, and not for the third."""
    require_mounts()
    done = in_namespace(
        f"mount -t tmpfs -o size=1100k tmpfs {tmp_path}; "
        f"{TRAIN} --data {short_text} --steps 6 --save {tmp_path}/run --save-every 2 {options}; "
        f"echo code $?; ls -A {tmp_path}/run"
    )
    last = tmp_path / "run" / "000002-step-4"
    expected = f"step 6 was not saved: rank 0: [Errno 28] No space left on device; the last checkpoint is {last}"
    assert said(done) == [f"reference.train: {expected}"]
    assert done.stdout.splitlines()[-3:] == ["code 2", "000001-step-2", "000002-step-4"]


@pytest.mark.parametrize("options", ["", "--save-in-background"])
def test_a_disk_that_becomes_read_only_ends_the_run_with_one_line(
    tmp_path: Path, short_text: Path, options: str
) -> None:
    require_mounts()
    done = in_namespace(
        f"mount -t tmpfs tmpfs {tmp_path}; "
        f"{TRAIN} --data {short_text} --steps 20000 --save {tmp_path}/run --save-every 5 {options} & run=$!; "
        f"while ! ls -d {tmp_path}/run/*-step-10 2> /dev/null; do sleep 0.05; done; "
        f"until mount -o remount,ro {tmp_path} 2> /dev/null; do sleep 0.01; done; "
        f"wait $run; echo code $?; ls {tmp_path}/run"
    )
    (line,) = said(done)
    assert "Read-only file system" in line and " was not saved: rank 0: " in line
    *_, code, before, last = done.stdout.splitlines()
    assert code == "code 2" and line.endswith(f"the last checkpoint is {tmp_path}/run/{last}")
    assert int(before[:6]) + 1 == int(last[:6])


def test_a_read_only_disk_is_refused_before_the_first_step(tmp_path: Path, short_text: Path) -> None:
    require_mounts()
    done = in_namespace(
        f"mount -t tmpfs -o ro tmpfs {tmp_path}; "
        f"{TRAIN} --data {short_text} --steps 2 --save {tmp_path}/run --save-in-background; echo code $?"
    )
    place = tmp_path / "run"
    expected = f"cannot save in {place}: read-only file system; take a folder that can be written"
    assert said(done) == [f"reference.train: {expected}"]
    assert done.stdout == "code 2\n"


def said(done: subprocess.CompletedProcess) -> list[str]:
    """What a run says on stderr."""
    return [line for line in done.stderr.splitlines() if line.startswith("reference.train: ")]


def require_mounts() -> None:
    if not mounts():
        pytest.skip("a disk of a chosen size takes a namespace of one's own (unshare -Urm), which is not allowed here")


def test_a_folder_that_is_removed_while_it_is_written_is_one_line(eight: Cluster, tmp_path: Path) -> None:
    def removed(folder: Path) -> tuple[str, str] | None:
        from reference.errors import BadInput

        if (started := begun(folder, steps=1)) is None:
            return None
        background = BackgroundCheckpoints(folder, *started[1:])
        background.save(2, {})
        while background.busy:
            time.sleep(0.001)
        background.group.barrier().wait()
        if background.group.rank() == 0:
            shutil.rmtree(folder)
        background.group.barrier().wait()
        with pytest.raises(BadInput) as refusal:
            background.wait()
        background.save(3, {})  # into a folder that is made again
        return str(refusal.value), background.wait().name

    partial = tmp_path / "run" / ".000002-partial"
    for line, after in eight.run(removed, tmp_path / "run")[:2]:
        assert "\n" not in line and "No such file or directory" in line and str(partial) in line
        assert line.startswith("step 2 was not saved: rank 0: ") and line.endswith("; the last checkpoint is none")
        assert after == "000001-step-3"


def test_a_slow_disk_slows_no_step(eight: Cluster, tmp_path: Path) -> None:
    """Each fsync takes half a second: a save has seven, and the twenty steps meanwhile do not wait for one."""

    def trains(folder: Path) -> tuple[float, str, str] | None:
        if (started := begun(folder, steps=1)) is None:
            return None
        fsync = os.fsync

        def slow(file: int) -> None:
            time.sleep(0.5)
            fsync(file)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "fsync", slow)
            background = BackgroundCheckpoints(folder, *started[1:])
            begin = time.perf_counter()
            background.save(1, {})
            for step in range(1, 21):
                train(*started, [step])
                background.at_boundary()
            seconds = time.perf_counter() - begin
            meanwhile = latest(folder).name
            background.wait()
        return seconds, meanwhile, background.last.name

    for seconds, meanwhile, after in eight.run(trains, tmp_path)[:2]:
        assert (meanwhile, after) == ("000001-step-1", "000002-step-1")
        assert seconds < 3.0  # of 3.5 that the disk takes


def test_clocks_that_jump_change_nothing(eight: Cluster, tmp_path: Path) -> None:
    """The newest is the one with the highest number, whatever the file system says of hours."""

    def saved(folder: Path) -> None:
        begun(folder, steps=2)

    eight.run(saved, tmp_path)
    first, second = checkpoint_folder.complete(tmp_path)
    os.utime(second, (0, 0))
    os.utime(first, (4e9, 4e9))
    assert latest(tmp_path) == second


CLOCKS = {"time", "time_ns", "localtime", "gmtime", "now", "utcnow", "today", "st_mtime", "st_ctime", "getmtime"}
SAVING = [
    "saves.py",
    *(f"resilience/{name}.py" for name in ("plain", "async_save", "incremental", "preemption")),
    *(f"zero/{name}.py" for name in ("agreement", "checkpoint", "checkpoint_folder", "checkpoint_write")),
]


@pytest.mark.parametrize("file", SAVING)
def test_nothing_that_saves_asks_what_time_it_is(file: str) -> None:
    """Neither for order nor for patience. A name is all it takes to ask."""
    nodes: list[Any] = [*ast.walk(ast.parse((ROOT / "reference" / file).read_text()))]
    used = {each.attr for each in nodes if isinstance(each, ast.Attribute)}
    imported = {alias.name for each in nodes if isinstance(each, ast.Import | ast.ImportFrom) for alias in each.names}
    assert not (used | imported) & CLOCKS
