"""What torch alone does with a program: ranks forked from this process, gloo, no watch.

`python -m tests.watch.plain` compares every case with what it records, and prints those that differ. Ranks are forked
because a fresh interpreter for each of them takes seconds; the parent must therefore import torch and compute nothing.
"""

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist

from tests.watch.cases import Outcome

LEAVING = 0.2  # seconds that an interpreter takes to leave; its sockets stay open meanwhile
PEER_CLOSED = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "Connection refused")


@dataclass
class Run:
    """One program on its ranks: the processes, where they write what went wrong, and how they ended so far."""

    name: str
    folder: Path
    began: float  # on time.monotonic's clock, as is the deadline
    deadline: float
    pids: list[int]
    statuses: dict[int, int] = field(default_factory=dict)  # rank -> exit status of waitpid

    @property
    def finished(self) -> bool:
        return len(self.statuses) == len(self.pids)

    def poll(self) -> None:
        """Collect the ranks that have ended. Like torchrun, end the others soon after one has failed."""
        for rank, pid in enumerate(self.pids):
            if rank not in self.statuses:
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    self.statuses[rank] = status
                    if status:
                        self.deadline = min(self.deadline, time.monotonic() + 0.5)

    def kill(self) -> None:
        left = [pid for rank, pid in enumerate(self.pids) if rank not in self.statuses]
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        for pid in left:
            os.waitpid(pid, 0)
        shutil.rmtree(self.folder)

    def said(self) -> list[str]:
        """What the ranks raised, by rank; an empty text for those that raised nothing."""
        texts = [self.folder / str(rank) for rank in range(len(self.pids))]
        return [path.read_text() if path.exists() else "" for path in texts]

    def outcome(self) -> Outcome:
        said = [text for text in self.said() if text]
        if any(not any(phrase in text for phrase in PEER_CLOSED) for text in said):
            return Outcome.RAISES
        if any(self.statuses.values()) and len(said) < sum(map(bool, self.statuses.values())):
            return Outcome.ABORTS
        if said:
            return Outcome.CLOSED
        return Outcome.PASSES if self.finished else Outcome.HANGS


@dataclass(frozen=True)
class Result:
    """How a program ended, after how many seconds, and what its ranks raised."""

    name: str
    outcome: Outcome
    seconds: float
    said: list[str]


def run_all(cases: Iterable, *, seconds: float, at_once: int = 1) -> Iterator[Result]:
    """Run cases on plain gloo, `at_once` at a time, each for at most `seconds`. Yields results as cases end."""
    waiting, running = list(cases), []
    while waiting or running:
        while waiting and len(running) < at_once:
            case = waiting.pop(0)
            running.append(start(case.name, case.program, case.world_size, case.args, seconds))
        for run in list(running):
            run.poll()
            if run.finished or time.monotonic() > run.deadline:
                result = Result(run.name, run.outcome(), time.monotonic() - run.began, run.said())
                run.kill()
                running.remove(run)
                yield result
        time.sleep(0.005)


def start(name: str, program: Callable, world_size: int, args: tuple, seconds: float) -> Run:
    """Fork `world_size` ranks that run `program(*args)`."""
    folder = Path(tempfile.mkdtemp(prefix="plain-"))
    pids = []
    for rank in range(world_size):
        pid = os.fork()
        if pid == 0:
            _be_rank(rank, world_size, folder, program, args)
        pids.append(pid)
    return Run(name, folder, time.monotonic(), time.monotonic() + seconds, pids)


def _be_rank(rank: int, world_size: int, folder: Path, program: Callable, args: tuple) -> None:
    """Run the program as one rank and leave the process; what it raises is written to the folder."""
    status = 0
    try:
        _detach()
        store = dist.FileStore(str(folder / "store"), world_size)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
        program(*args)
        time.sleep(LEAVING)
    except SystemExit as leave:
        status = leave.code if isinstance(leave.code, int) else 1
    except BaseException:
        (folder / str(rank)).write_text(traceback.format_exc())
        status = 1
    finally:
        os._exit(status)


def _detach() -> None:
    """No terminal, no input, no interface but the loopback; yield the processor like a batch job, as gloo spins."""
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    if hasattr(os, "SCHED_BATCH"):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def main() -> int:
    """Hold every case against its record; with `--json`, print what became of each as one object instead."""
    from tests.watch import correct, zoo

    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description="what torch alone does with the cases")
    parser.add_argument("--json", action="store_true", help="print the outcome of each mistake")
    parser.add_argument("names", nargs="*", help="only cases whose names contain one of these")
    arguments = parser.parse_args()
    if arguments.json:
        print(json.dumps({result.name: result.outcome for result in run_all(zoo.CASES, seconds=5, at_once=8)}))
        return 0
    cases = [
        case
        for case in (*zoo.CASES, *correct.CASES)
        if not arguments.names or any(name in case.name for name in arguments.names)
    ]
    return compare(cases, verbose=bool(arguments.names))


def compare(cases: list, verbose: bool) -> int:
    """Run cases and print those that do not end as they record. Returns 1 if there are any."""
    expected = {case.name: getattr(case, "plain", Outcome.PASSES) for case in cases}
    wrong = 0
    for result in run_all(cases, seconds=5, at_once=4):
        differs = result.outcome != expected[result.name]
        wrong += differs
        if differs:
            print(f"{result.name}: expected {expected[result.name]}, {result.outcome} after {result.seconds:.1f} s")
        if differs or verbose:
            print("\n".join(f"  rank {rank}: {text.strip()[-700:]}" for rank, text in enumerate(result.said) if text))
    print(f"{len(cases)} cases, {wrong} differ from what they record")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
