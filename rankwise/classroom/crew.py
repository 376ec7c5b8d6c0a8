"""As many workers as there are cores and memory for. Each has its share, and one that takes more is ended.

A worker that dies, takes too much or does not answer costs the text that it was at a second try, alone; if that ends
the same way, this is the verdict on the text. All other texts get theirs.
"""

import json
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from puzzles.grading.verdict import Stage
from reference.errors import BadInput

from .journal import Graded

HOUSE = Path(__file__).resolve().parents[2]
LEAST = 2 << 30  # bytes that a worker with its ranks has room for
PATIENCE = 600.0  # seconds for the verdict on one text: each of its calls has a limit of its own
_LOOK = 0.1  # seconds between two looks at the memory of the workers
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


@dataclass(frozen=True)
class Task:
    """A text to grade.

    Attributes:
        key: what its verdict is known by, see `journal`.
        secret: the seed is not to be told.
        card: make its card, too.
    """

    key: str
    name: str
    source: str
    seed: int
    secret: bool = False
    card: bool = False


Done = Callable[[Task, Graded, str | None], None]


@dataclass(frozen=True)
class Limits:
    """What all workers together may use: cores, and bytes of memory."""

    cores: int
    memory: int

    @property
    def workers(self) -> int:
        """How many there is room for; at least one."""
        return max(1, min(self.cores, self.memory // LEAST))


def usual_limits(cores: int | None, gigabytes: float | None) -> Limits:
    """All cores that this process may use, and four fifths of the memory that is free. Raises BadInput."""
    have = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    if cores is not None and not 1 <= cores <= len(have):
        raise BadInput(f"--cores is a number from 1 to {len(have)}, which this process may use, not {cores}")
    if gigabytes is not None and not 0 < gigabytes < math.inf:
        raise BadInput(f"--memory is a number of GB above 0, not {gigabytes:g}")
    return Limits(cores or len(have), int(gigabytes * 1e9) if gigabytes else _free() * 4 // 5)


def _free() -> int:
    """Bytes of memory that programs can have now; very many where the system does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        return 1 << 60


def grade(batches: Sequence[Sequence[Task]], limits: Limits, done: Done) -> None:
    """Grade batches of texts, each of one learner; `done` hears of every verdict as soon as it is there.

    A text that took too long is graded again when all others have been, with nothing beside it: the machine may have
    been too busy for it.
    """
    crew = _Crew(limits, sorted({task.name for batch in batches for task in batch}), done)
    crew.work(batches, limits.workers)
    crew.work([[task] for task in crew.again], 1, last=True)


@dataclass
class _Crew:
    limits: Limits
    names: list[str]
    done: Done
    again: list[Task] = field(default_factory=list)  # took too long

    def work(self, batches: Sequence[Sequence[Task]], workers: int, last: bool = False) -> None:
        """Have so many workers grade all of these."""
        self.queue: deque[tuple[list[Task], int]] = deque((list(batch), 1) for batch in batches)  # and which try it is
        self.last, self.stopped, self.error = last, False, None
        self.workers = [_Worker(self) for _ in range(min(workers, len(batches)))]
        threads = [threading.Thread(target=self._run, args=(worker,), daemon=True) for worker in self.workers]
        for thread in threads:
            thread.start()
        try:
            most_free = 0
            while any(thread.is_alive() for thread in threads):
                share, free = self.limits.memory // len(self.workers), _free()
                most_free = max(most_free, free)
                for worker in self.workers:
                    worker.look(share, may_exceed=most_free - free > share)
                time.sleep(_LOOK)
        finally:
            self.stopped = True
            for worker in self.workers:
                worker.end("stopped")
            for thread in threads:
                thread.join()
        if self.error:
            raise self.error

    def _run(self, worker: "_Worker") -> None:
        """What the thread of one worker does."""
        try:
            while not self.stopped:
                try:
                    batch, attempt = self.queue.popleft()
                except IndexError:
                    return
                rest = worker.grade(batch, self._heard)
                if rest and not self.stopped:
                    self._failed(rest, attempt, worker)
        except BaseException as error:  # it is raised where the crew is called
            self.error, self.stopped = error, True
        finally:
            worker.end("no more to do")

    def _heard(self, task: Task, graded: Graded, card: str | None) -> None:
        if graded.of_machine and not self.last:
            self.again.append(task)
        else:
            self.done(task, graded, card)

    def _failed(self, rest: list[Task], attempt: int, worker: "_Worker") -> None:
        """A worker is gone: the text that it was at gets one more try, alone; the rest of the batch another worker."""
        task, *others = rest
        if attempt < 2:
            self.queue.append(([task], attempt + 1))
        else:
            reason = f"the process that graded it was lost twice: {worker.why}"
            lines = f"✗ {task.name}: {reason}"
            self.done(task, Graded(task.name, str(Stage.ERROR), reason, False, lines=lines, of_machine=True), None)
        if others:
            self.queue.append((others, 1))


class _Worker:
    """A process that grades, started when it is first needed and again after it was lost."""

    def __init__(self, crew: _Crew) -> None:
        self.crew, self.why = crew, ""
        self.process: subprocess.Popen | None = None
        self.since = 0.0  # when it was given what it is at; 0 where it is at nothing

    def grade(self, batch: list[Task], heard: Callable[..., None]) -> list[Task]:
        """Grade a batch. Returns those tasks of it that have no verdict because the process was lost."""
        rest = list(batch)
        try:
            self._start()
            self._say([asdict(task) for task in batch])
            while rest:
                self.since = time.monotonic()
                line = self.process.stdout.readline()
                if not line.endswith("\n"):
                    break
                answer = json.loads(line)
                heard(rest.pop(0), Graded(**answer["graded"]), answer["card"])
        except (BrokenPipeError, json.JSONDecodeError):
            pass
        self.since = 0.0
        if rest:
            self._lost()
        return rest

    def _start(self) -> None:
        if self.process is None:
            path = os.pathsep.join(filter(None, [str(HOUSE), os.environ.get("PYTHONPATH")]))
            self.errors = tempfile.TemporaryFile()  # noqa: SIM115, it lives as long as the process
            self.why = ""
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "rankwise.classroom.worker"],  # -P: not from the learner's folder
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.errors,
                text=True,
                encoding="utf-8",
                env=os.environ | {"PYTHONPATH": path},
                start_new_session=True,  # Ctrl-C is for the crew
            )
            if hasattr(os, "sched_setaffinity"):
                os.sched_setaffinity(self.process.pid, sorted(os.sched_getaffinity(0))[: self.crew.limits.cores])
            self._say(self.crew.names)

    def _say(self, what: list) -> None:
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()

    def look(self, share: int, may_exceed: bool) -> None:
        """End it where it has more memory than its share, or has been at one text for too long.

        Args:
            share: bytes.
            may_exceed: whether as much is gone of what was free: to look at each process takes a while.
        """
        process = self.process
        if process is None or not self.since:
            return
        if may_exceed and (used := memory(process.pid)) > share:
            self.end(f"it took {used / 1e9:.1f} GB of memory, and its share is {share / 1e9:.1f} GB: see --memory")
        elif time.monotonic() - self.since > PATIENCE:
            self.end(f"no verdict came in {PATIENCE:g} s")

    def end(self, why: str) -> None:
        """Kill the process, and with it its ranks. The thread that waits for an answer learns it by that."""
        process = self.process
        if process is not None and process.poll() is None:
            self.why = self.why or why
            process.kill()
            process.wait()

    def _lost(self) -> None:
        self.end("it answered nothing")
        self.errors.seek(0)
        said = self.errors.read()[-2000:].decode("utf-8", "replace").strip().splitlines()
        self.why = self.why or (said[-1] if said else f"exit code {self.process.poll()}")
        self.process = None


def memory(pid: int) -> int:
    """Bytes that a worker and its ranks have to themselves; 0 where the system does not tell.

    Ranks are forked from a server and share its memory until they write: of each counts what it has beyond that.
    """
    children = _children()
    server = max((_own(child) for child in children.get(pid, ())), default=0)
    below, found = list(children.get(pid, ())), []
    while below:
        found.append(below.pop())
        below += children.get(found[-1], ())
    return _own(pid) + server + sum(max(0, _own(each) - server) for each in found)


def _children() -> dict[int, list[int]]:
    """By process, its children."""
    found: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError, ValueError):
            continue
        found.setdefault(parent, []).append(int(folder.name))
    return found


def _own(pid: int) -> int:
    """Bytes of a process in memory that come from no file."""
    try:
        _, resident, shared, *_ = map(int, Path(f"/proc/{pid}/statm").read_text().split())
    except (OSError, ValueError):
        return 0
    return (resident - shared) * _PAGE
