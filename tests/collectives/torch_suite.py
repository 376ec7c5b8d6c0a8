"""PyTorch's own `DistributedTest`, which ships in its wheel, on a backend of one's choice.

    python -m tests.collectives.torch_suite handmade                  # everything that gloo is asked, 3 ranks
    python -m tests.collectives.torch_suite gloo test_gather ...      # some of it, on gloo
    RANKS=8 python -m tests.collectives.torch_suite handmade          # what PyTorch skips on less than 8 ranks, too

PyTorch starts new processes for each test, which takes seconds, and lets them poll files for a barrier. Here ranks are
forked once, and are told test after test; after a test that has failed or hangs they are forked anew. A test is asked
whatever gloo would be: what PyTorch skips by the name of the backend, it skips by gloo's.
"""

import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest import SkipTest, TestCase

import torch
import torch.distributed as dist

from reference.collectives import backend

RANKS = 3  # as PyTorch runs these tests on gloo
BY_NAME = "_no_sync"  # in the names of tests that choose their tensors by the backend's name, and know gloo's alone
LIMIT = 180.0  # seconds that one test may take; most take a tenth of one
FORK = get_context("fork")


@dataclass(frozen=True)
class Outcome:
    """How a test went."""

    passed: bool
    skipped: bool = False
    text: str = ""  # why it was skipped, or the error of a rank


PASSED = Outcome(True)


class Suite:
    """The tests, and ranks that run them one after another.

    Args:
        name: of the backend, "gloo" or "handmade".
        size: how many ranks.
    """

    def __init__(self, name: str, size: int = RANKS) -> None:
        self.name, self.size, self.ranks = name, size, []
        self.barrier = FORK.Barrier(size)
        os.environ.update(BACKEND="gloo", WORLD_SIZE=str(size))

    @cached_property
    def module(self) -> ModuleType:
        """Where the tests are. Importing it reads the environment."""
        # PyTorch's tests take a base class from this package, and these nothing more.
        sys.modules.setdefault("expecttest", SimpleNamespace(TestCase=TestCase))
        from torch.testing._internal.distributed import distributed_test

        return distributed_test

    @cached_property
    def kind(self) -> type:
        """The class of all tests."""
        tests = self.module.DistributedTest._DistTestBase

        def meet(case: TestCase, wait_for: int | None = None, timeout: float = LIMIT) -> None:
            self.barrier.wait(timeout)

        return type("TestTorch", (self.module.TestDistBackend, tests), {"_barrier": meet})

    def names(self) -> list[str]:
        """Of all tests that are not skipped on gloo without GPUs."""
        methods = {name: getattr(self.kind, name) for name in dir(self.kind) if name.startswith("test_")}
        return [name for name, method in methods.items() if not getattr(method, "__unittest_skip__", False)]

    def run(self, names: Iterable[str]) -> Iterator[tuple[str, Outcome]]:
        """Run tests: the name and the outcome of each."""
        with tempfile.TemporaryDirectory() as folder:
            try:
                for number, name in enumerate(names):
                    place = Path(folder, str(number))
                    (place / "barrier").mkdir(parents=True)
                    (place / "test_dir").mkdir()
                    outcome = self._one(name, place)
                    if not outcome.passed:
                        self._stop()
                    yield name, outcome
            finally:
                self._stop()

    def _one(self, name: str, place: Path) -> Outcome:
        if not self.ranks:
            self._start()
        pipes = [pipe for pipe, _ in self.ranks]
        for pipe in pipes:
            pipe.send((name, place))
        outcomes: list[Outcome] = []
        deadline = time.monotonic() + LIMIT
        while pipes and (ready := wait(pipes, max(0.0, deadline - time.monotonic()))):
            for pipe in ready:
                pipes.remove(pipe)
                outcomes.append(heard(pipe))
            if not all(outcome.passed for outcome in outcomes):
                deadline = min(deadline, time.monotonic() + 2)  # the others may wait for it
        if failed := [outcome for outcome in outcomes if not outcome.passed]:
            return failed[0]
        return outcomes[0] if not pipes else Outcome(False, text=f"not done after {LIMIT:g} s")

    def _start(self) -> None:
        assert self.kind, "imported once, before the fork"
        self.barrier = FORK.Barrier(self.size)
        for rank in range(self.size):
            ours, theirs = FORK.Pipe()
            process = FORK.Process(target=self._serve, args=(rank, theirs), daemon=True)
            process.start()
            theirs.close()
            self.ranks.append((ours, process))

    def _stop(self) -> None:
        for pipe, process in self.ranks:
            process.kill()
            process.join()
            pipe.close()
        self.ranks = []

    def _serve(self, rank: int, pipe: Connection) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        torch.set_num_threads(1)
        backend.register()
        while True:
            try:
                name, place = pipe.recv()
            except EOFError:
                return
            pipe.send(self._try(name, rank, place))

    def _try(self, name: str, rank: int, place: Path) -> Outcome:
        """Run one test on this rank, in a world of its own."""
        from torch.testing._internal.common_distributed import TEST_SKIPS
        from torch.testing._internal.common_utils import set_rng_seed

        self.module.BACKEND = os.environ["BACKEND"] = "gloo" if BY_NAME in name else self.name
        os.environ.update(TEMP_DIR=str(place), INIT_METHOD=f"file://{place}/again")
        os.environ.pop("TORCH_DISTRIBUTED_DEBUG", None)
        dist.set_debug_level_from_env()
        case = self.kind(name)
        case.rank, case.file_name = rank, f"{place}/init"
        self.module.Barrier.barrier_id = 0
        set_rng_seed()
        try:
            world = {"world_size": self.size, "rank": rank, "timeout": timedelta(seconds=LIMIT)}
            dist.init_process_group(self.name, init_method=case.init_method, **world)
            case._barrier()
            getattr(case, name)()
            case._barrier()
        except SkipTest as skip:
            return Outcome(True, True, str(skip))
        except SystemExit as exit:
            reasons = {skip.exit_code: skip.message for skip in TEST_SKIPS.values()}
            return Outcome(exit.code in reasons, exit.code in reasons, reasons.get(exit.code, f"exit {exit.code}"))
        except Exception:
            return Outcome(False, text=traceback.format_exc())
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()
        return PASSED


def heard(pipe: Connection) -> Outcome:
    """What a rank has answered."""
    try:
        return pipe.recv()
    except EOFError:
        return Outcome(False, text="the rank died")


def main(name: str, *tests: str) -> int:
    """Print each test and its outcome; the number of those that failed."""
    suite, failed = Suite(name, int(os.environ.get("RANKS", RANKS))), 0
    for test, outcome in suite.run(tests or suite.names()):
        failed += not outcome.passed
        word = "skipped" if outcome.skipped else "passed" if outcome.passed else "FAILED"
        print(f"{word:8}{test}  {outcome.text.strip()}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(bool(main(*sys.argv[1:])))
