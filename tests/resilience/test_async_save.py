"""A checkpoint written behind training is the one that would have been written while all wait."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from rankwise.cli import run
from reference.cluster import Cluster
from reference.data_parallel import gather_full
from reference.errors import BadInput
from reference.report import read_log
from reference.resilience.async_save import BackgroundCheckpoints
from reference.resilience.file_image import FileImage
from reference.zero import checkpoint_folder
from reference.zero.checkpoint import latest, load

from ..zero.runs import Run, begun, extra, train

KINDS = ("ddp", "zero1", "fsdp", "hsdp")


@contextmanager
def held_back(ranks: tuple[int, ...] = (0, 1, 2, 3)) -> Iterator[Callable[[], None]]:
    """These ranks write nothing until the function that this gives is called."""
    may_write, write = threading.Event(), FileImage.write

    def waiting(*arguments: Any) -> Any:
        if dist.get_rank() in ranks:
            may_write.wait()
        return write(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FileImage, "write", waiting)
        try:
            yield may_write.set
        finally:
            may_write.set()


def everything(form: Any, optimizer: Any) -> dict[str, Tensor]:
    """Masters and what the optimizer remembers of them, whole."""
    found = gather_full(form)
    for name in ("exp_avg", "exp_avg_sq"):
        state = gather_full(form, lambda part, name=name: optimizer.state[part.master][name])
        found |= {f"{name} {parameter}": value for parameter, value in state.items()}
    return found


@torch.no_grad()
def spoil(form: Any, optimizer: Any) -> None:
    """Change in place all that a rank has."""
    for part in form.parts:
        part.master.add_(1000)
        for name, value in optimizer.state[part.master].items():
            if isinstance(value, Tensor):
                optimizer.state[part.master][name] = value.add_(1000)


def saved_then_spoilt(folder: Path, run: Run) -> tuple[bool, float] | None:
    """Whether what is loaded is what was saved, and the optimizer's count of steps."""
    if (started := run.start(seed=0)) is None:
        return None
    _, form, optimizer, group = started
    train(*started, range(2))
    before, told = everything(form, optimizer), extra(2)
    background = BackgroundCheckpoints(folder, form, optimizer, group)
    with held_back() as release:
        background.save(2, told)
        spoil(form, optimizer)
        told["sampler"]["consumed"] = -1
        told["note"].append("later")
        release()
        assert background.wait() == latest(folder)
    assert load(folder, form, optimizer, group) == (2, extra(2))
    after = everything(form, optimizer)
    counts = {float(optimizer.state[part.master]["step"]) for part in form.parts}
    return all(torch.equal(after[name], value) for name, value in before.items()), max(counts, default=2.0)


@pytest.mark.parametrize("kind", KINDS)
def test_no_later_value_gets_in(eight: Cluster, tmp_path: Path, kind: str) -> None:
    """Everything changes as soon as `save` has returned, and before a byte is written (pytorch#144657, NVRx PR376)."""
    found = eight.run(saved_then_spoilt, tmp_path, Run(kind, 4))
    assert found[:4] == [(True, 2.0)] * 4


def test_a_copy_that_is_none_would_show(eight: Cluster, tmp_path: Path) -> None:
    """Otherwise the test above would prove nothing."""

    def without_a_copy(folder: Path) -> tuple[bool, float] | None:
        write, fill = FileImage.write, FileImage.fill

        def filled_late(image: FileImage, partial: Path) -> Any:
            fill(image, image.held)
            return write(image, partial)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(FileImage, "fill", lambda image, held: setattr(image, "held", held))
            patch.setattr(FileImage, "write", filled_late)
            return saved_then_spoilt(folder, Run("zero1", 2))

    assert [same for same, _ in eight.run(without_a_copy, tmp_path)[:2]] == [False, False]


def test_training_continues_and_the_name_comes_when_all_have_written(eight: Cluster, tmp_path: Path) -> None:
    """One of two ranks writes late. Until it has, the older checkpoint is there, alone, also where only 1 is kept."""

    def trains_on(folder: Path) -> tuple[list[str], list[str], list[float]] | None:
        if (started := begun(folder, steps=1)) is None:
            return None
        _, form, optimizer, group = started
        background = BackgroundCheckpoints(folder, form, optimizer, group, keep=1)
        with held_back((1,)) as release:
            background.save(1, {})
            losses = []
            for step in range(1, 5):
                losses += train(*started, [step])
                background.at_boundary()
            meanwhile = [each.name for each in checkpoint_folder.complete(folder)]
            dist.barrier(group)
            release()
            background.wait()
        return meanwhile, sorted(os.listdir(folder)), losses

    def alone(folder: Path) -> list[float] | None:
        if (started := begun(folder, steps=1)) is None:
            return None
        return train(*started, range(1, 5))

    through = eight.run(alone, tmp_path / "alone")[0]
    for meanwhile, afterwards, losses in eight.run(trains_on, tmp_path / "run")[:2]:
        assert meanwhile == ["000001-step-1"]
        assert afterwards == ["000002-step-1"]
        assert losses == through


def test_a_boundary_finishes_what_is_written(eight: Cluster, tmp_path: Path) -> None:
    """Without a wait: two acts, so two boundaries after which no thread is at work."""

    def boundaries(folder: Path) -> list[str] | None:
        if (started := begun(folder, steps=1)) is None:
            return None
        background = BackgroundCheckpoints(folder, *started[1:])
        background.save(1, {})
        found = []
        for _ in range(2):
            while background.busy:
                threading.Event().wait(0.001)
            dist.barrier(started[3])
            background.at_boundary()
            found.append(background.last and background.last.name)
        return found

    assert eight.run(boundaries, tmp_path)[:2] == [[None, "000002-step-1"]] * 2


def test_a_save_takes_three_messages_once_the_layout_is_known(eight: Cluster, tmp_path: Path) -> None:
    """To begin, when all have written, when it is sealed; one more for the plan where the optimizer has got a state."""

    def counts(folder: Path) -> list[int] | None:
        if (started := begun(folder, steps=0)) is None:
            return None
        background, send = BackgroundCheckpoints(folder, *started[1:]), dist.all_gather_object
        messages = []
        for step in range(3):
            sent: list[str] = []
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(dist, "all_gather_object", lambda *a, s=sent, **k: (s.append("gathered"), send(*a, **k)))
                patch.setattr(dist, "all_reduce", None)  # nothing else is asked
                background.save(step, {})
                background.wait()
            messages.append(len(sent))
            if step == 0:
                train(*started, [0])
        return messages

    assert eight.run(counts, tmp_path)[:2] == [[4, 4, 3]] * 2


def test_every_byte_is_on_the_disk_before_the_name_and_none_is_written_by_the_main_thread(
    eight: Cluster, tmp_path: Path
) -> None:
    def order(folder: Path) -> tuple[list[tuple[str, str]], set[str]] | None:
        if (started := begun(folder, steps=1)) is None:
            return None
        seen, threads, fsync, rename = [], set(), os.fsync, os.rename

        def noted_fsync(file: int) -> None:
            fsync(file)
            seen.append(("fsync", Path(os.readlink(f"/proc/self/fd/{file}")).name))
            threads.add(threading.current_thread().name)

        def noted_rename(source: Path, target: Path) -> None:
            rename(source, target)
            seen.append(("rename", Path(target).name))
            threads.add(threading.current_thread().name)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "fsync", noted_fsync)
            patch.setattr(os, "rename", noted_rename)
            background = BackgroundCheckpoints(folder, *started[1:])
            background.save(1, {})
            background.wait()
        return seen, threads

    (first, first_threads), (second, second_threads), *_ = eight.run(order, tmp_path)
    assert first == [
        ("fsync", "__0_0.distcp"),
        ("fsync", ".metadata.tmp"),
        ("rename", ".metadata"),
        ("fsync", "manifest.json"),
        ("fsync", "SHA256SUMS"),
        ("fsync", ".000002-partial"),
        ("rename", "000002-step-1"),
        ("fsync", tmp_path.name),
    ]
    assert second == [("fsync", "__1_0.distcp")]
    assert first_threads == second_threads == {"checkpoint"}


def test_a_save_that_is_due_too_early_waits_for_the_one_before(eight: Cluster, tmp_path: Path) -> None:
    def two_at_once(folder: Path) -> list[str] | None:
        if (started := begun(folder, steps=1)) is None:
            return None
        background = BackgroundCheckpoints(folder, *started[1:], keep=5)
        with held_back((1,)) as release:
            background.save(1, {})
            train(*started, [1])
            threading.Timer(0.2, release).start()
            background.save(2, {})  # returns when the first is there
            there = [each.name for each in checkpoint_folder.complete(folder)]
        background.wait()
        return [*there, background.last.name]

    assert eight.run(two_at_once, tmp_path)[:2] == [["000001-step-1", "000002-step-1", "000003-step-2"]] * 2


def test_the_copies_memory_is_taken_once(eight: Cluster, tmp_path: Path) -> None:
    def places(folder: Path, run: Run) -> tuple[bool, int] | None:
        if (started := run.start(seed=0)) is None:
            return None
        train(*started, [0])
        background, found = BackgroundCheckpoints(folder, *started[1:]), []
        for step in (1, 2):
            background.save(step, {})
            background.wait()
            image = background._copy.image
            found.append(image.bytes.data_ptr())
        return found[0] == found[1], sum(place.numel() for _, place in image._places)

    kept = [found for found in eight.run(places, tmp_path, Run("ddp", 4)) if found]
    assert all(same for same, _ in kept)
    elements = 3 * (7 * 3 + 7 + 7 + 1)  # masters and two moments, in float64
    assert sum(count for _, count in kept) == 8 * elements  # each replica copies its share, not everything


@pytest.mark.parametrize("culprit", [0, 1])
def test_an_error_of_the_writer_is_one_line_for_all_and_the_last_checkpoint_stays(
    eight: Cluster, tmp_path: Path, culprit: int
) -> None:
    def fails(folder: Path) -> tuple[str, list[str], str] | None:
        if (started := begun(folder, steps=1)) is None:
            return None
        _, form, optimizer, group = started
        background = BackgroundCheckpoints(folder, form, optimizer, group)

        def full(*_: Any) -> None:
            raise OSError(28, "No space left on device")

        with pytest.MonkeyPatch.context() as patch:
            if dist.get_rank() == culprit:
                patch.setattr(FileImage, "write", full)
            background.save(2, {})
            train(*started, [1])
            with pytest.raises(BadInput) as refusal:
                background.wait()
        names = os.listdir(folder)
        dist.barrier(group)  # rank 0 makes a place for the next one as soon as it begins
        background.save(3, {})  # nothing is left behind of the one that failed
        return str(refusal.value), names, background.wait().name

    one = tmp_path / "000001-step-1"
    expected = f"step 2 was not saved: rank {culprit}: [Errno 28] No space left on device; the last checkpoint is {one}"
    for found in eight.run(fails, tmp_path)[:2]:
        assert found == (expected, [one.name], "000002-step-3")


def test_a_load_right_after_sees_the_last_one_that_was_finished(eight: Cluster, tmp_path: Path) -> None:
    """torchtitan#930."""

    def loads(folder: Path) -> tuple[int, int] | None:
        if (started := begun(folder, steps=1)) is None:
            return None
        background = BackgroundCheckpoints(folder, *started[1:])
        with held_back() as release:
            background.save(7, {})
            before, _ = load(folder, *started[1:])
            release()
            background.wait()
        after, _ = load(folder, *started[1:])
        return before, after

    assert eight.run(loads, tmp_path)[:2] == [(1, 7)] * 2


@pytest.fixture(scope="module")
def losses(short_text: Path, tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """Of six steps that nothing interrupts and that save nothing."""
    log = tmp_path_factory.mktemp("through") / "log"
    assert run([*command(short_text, log), "--steps", "6"]) == 0
    return [step.loss for step in read_log(log)[0]]


def command(text: Path, log: Path) -> list[str]:
    common = ["train", "--ranks", "2", "--model", "tiny", "--batch", "4", "--sequence", "16", "--precision", "fp64"]
    return [*common, "--data", str(text), "--log", str(log)]


def test_the_command_saves_in_the_background_and_resumes(short_text: Path, tmp_path: Path, losses: list[float]) -> None:
    folder, log = tmp_path / "checkpoints", tmp_path / "log"
    options = ["--save", str(folder), "--save-every", "2", "--save-in-background"]
    assert run([*command(short_text, log), "--steps", "6", "--stop-after", "3", *options]) == 0
    assert [each.name for each in checkpoint_folder.complete(folder)] == ["000001-step-2", "000002-step-3"]
    assert run(["train", "--save", str(folder), "--resume", "--log", str(log)]) == 0
    assert [step.loss for step in read_log(log)[0]] == losses
    extra = checkpoint_folder.contents(latest(folder))["extra"]
    assert extra["options"]["save_in_background"] is True and latest(folder).name == "000004-step-6"


def test_it_needs_a_folder(capsys: pytest.CaptureFixture) -> None:
    assert run(["train", "--ranks", "2", "--save-in-background"]) == 2
    assert "--save-in-background needs --save FOLDER" in capsys.readouterr().err
