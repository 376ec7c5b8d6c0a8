"""Drives of the chapter `resilience`: they stand for the disk, for the thread behind training, and for the training."""

from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch import Tensor

MOST_TOLD = 64  # values of a tensor, of which a verdict is told all


class DiskLog:
    """What a rank asks of the disk that all ranks share, and after how many ticks of this rank.

    `entries` has [operation, path, other path, tick] of each, `written` the values of each write.
    """

    def __init__(self) -> None:
        self.entries: list[list[Any]] = []
        self.written: list[Tensor] = []

    def write(self, path: str, x: Tensor) -> None:
        """Write a file. Until `sync`, a power cut takes it."""
        self.note("write", path)
        self.written.append(x.detach().clone())

    def sync(self, path: str) -> None:
        """Wait until a file is on the disk."""
        self.note("sync", path)

    def rename(self, folder: str, name: str) -> None:
        """Give a folder another name, whole or not at all, and for good."""
        self.note("rename", folder, name)

    def delete(self, folder: str) -> None:
        """Delete a folder with all that is in it."""
        self.note("delete", folder)

    def note(self, operation: str, path: str, other: str = "") -> None:
        """Remember that something is asked, and when."""
        self.entries.append([operation, str(path), str(other), dist.group.WORLD.recorder.tick])


def on_a_disk(function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Give the function a disk: `write`, `sync`, `rename`, `delete`. Compare what was asked of it, and when."""
    disk = DiskLog()
    disk_calls = {"write": disk.write, "sync": disk.sync, "rename": disk.rename, "delete": disk.delete}
    function(**arguments, **disk_calls)
    disk.note("return", "")
    return {"log": disk.entries, "written": disk.written}


class Behind:
    """A thread behind training, played by this one: what it is given is done when it is waited for, or at last."""

    def __init__(self) -> None:
        self.jobs: list[Callable[[], Any]] = []
        self.spoke = False  # a job sent a message

    def begin(self, do: Callable[[], Any]) -> Callable[[], None]:
        """Let the thread do something. Returns what waits until it has."""
        self.jobs.append(do)

        def wait() -> None:
            while do in self.jobs:
                self.next()

        return wait

    def next(self) -> None:
        """Do the first job that is left."""
        recorder = dist.group.WORLD.recorder
        tick = recorder.tick
        self.jobs.pop(0)()
        self.spoke |= recorder.tick != tick

    def end(self) -> None:
        """Do all that is left."""
        while self.jobs:
            self.next()


def behind_training(function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Save after each of three steps; the next step changes everything before a byte is written.

    Compare, as "log", when this rank has written and published; as "written", each write's tensors and counters; as
    "spoke", whether the thread sent a message.
    """
    state, counters = arguments.pop("state"), arguments.pop("counters")
    room, group = {name: x.new_empty(x.shape) for name, x in state.items()}, arguments["group"]
    log, written, thread = DiskLog(), [], Behind()

    def write(tensors: dict[str, Tensor], numbers: dict[str, int]) -> None:
        log.note("write", "")
        written.append([*(tensors[name].clone() for name in state), *(numbers[name] for name in counters)])

    def publish() -> None:
        log.note("publish", "")

    for _ in range(3):
        finish = function(
            state=state, counters=counters, room=room, behind=thread.begin, write=write, publish=publish, group=group
        )
        later(state, counters)
        finish()
        thread.end()
        log.note("finished", "")
    return {"log": log.entries, "written": written, "spoke": thread.spoke}


def later(state: dict[str, Tensor], counters: dict[str, int]) -> None:
    """What a step of training does to all there is, in place."""
    for x in state.values():
        x.add_(1)
    for name in counters:
        counters[name] += 1


def told(x: Tensor) -> list[float]:
    """What was written: all values, or of a large tensor how many, the first and the last. A tensor would count as the
    caller's memory."""
    return x.tolist() if x.numel() <= MOST_TOLD else [x.numel(), float(x[0]), float(x[-1])]


def a_training(function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Give the function `update`, a thread `behind`, and `write`. Compare, as "written", what each checkpoint holds."""
    state, written, thread = arguments["state"], [], Behind()

    def update() -> None:
        for x in state.values():
            x.mul_(2).add_(1)

    def write(step: int, tensors: dict[str, Tensor]) -> None:
        written.append([step, *(told(tensors[name]) for name in state)])

    function(**arguments, update=update, behind=thread.begin, write=write)
    thread.end()
    return {"written": written, "state": [*state.values()]}


def with_rows_in_files(function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Give the function `read(rank, name, begin, end)` in place of the argument `files`, by rank and by name.

    Compare the tensors that it fills; as "read", how many rows it has read, and as "times", how often.
    """
    files, read = arguments.pop("files"), []

    def read_rows(rank: int, name: str, begin: int, end: int) -> Tensor:
        if not 0 <= rank < len(files):
            raise IndexError(f"read({rank}, {name!r}, {begin}, {end}): ranks 0 to {len(files) - 1} have saved")
        rows = len(files[rank][name])
        if not 0 <= begin <= end <= rows:
            raise IndexError(f"read({rank}, {name!r}, {begin}, {end}): this rank saved {rows} rows")
        read.append(end - begin)
        return files[rank][name][begin:end].clone()

    function(**arguments, read=read_rows)
    return {"filled": [*arguments["state"].values()], "read": sum(read), "times": len(read)}


def with_epochs(function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Give the function `order(epoch)` in place of the argument `orders`. Compare how often it asks as "asked"."""
    orders, asked = arguments.pop("orders"), []

    def order(epoch: int) -> list[int]:
        asked.append(epoch)
        return [*orders[epoch]]

    return {"returns": function(**arguments, order=order), "asked": len(asked)}


def with_a_checkpoint(function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Give the function `read(name)` in place of the argument `saved`; what is None there cannot be read."""
    saved = arguments.pop("saved")

    def read(name: str) -> Tensor:
        if saved[name] is None:
            raise OSError(f"{name} does not hold what was written")
        return saved[name].clone()

    returned = function(**arguments, read=read)
    return {"returns": returned, "state": [*arguments["state"].values()]}
