"""The cluster in a real notebook: functions of `__main__`, prints in the cell, the stop button."""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest


class Notebook:
    """A kernel, and cells that run in it."""

    def __init__(self) -> None:
        from nbclient import NotebookClient  # takes longer than torch
        from nbformat.v4 import new_notebook

        self.book = new_notebook()
        self.client = NotebookClient(self.book, timeout=50, allow_errors=True, kernel_name="python3")
        self.client.km = self.client.create_kernel_manager()
        self.client.km.kernel_cmd = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        self.client.start_new_kernel()
        self.client.start_new_kernel_client()

    def run(self, source: str) -> list[Any]:
        """The outputs of a new cell."""
        from nbformat.v4 import new_code_cell

        cell = new_code_cell(source)
        self.book.cells.append(cell)
        self.client.execute_cell(cell, len(self.book.cells) - 1)
        return cell.outputs

    def prints(self, source: str) -> str:
        """What a new cell prints. Fails where the cell fails."""
        outputs = self.run(source)
        assert all(output.output_type == "stream" for output in outputs), outputs
        return "".join(output.text for output in outputs)

    def fails(self, source: str) -> Any:
        """The error of a new cell."""
        (error,) = [output for output in self.run(source) if output.output_type == "error"]
        return error

    def stop(self, seconds: float) -> None:
        """Press the stop button a little later."""
        threading.Timer(seconds, self.interrupt).start()

    def interrupt(self) -> None:
        os.kill(self.client.km.provisioner.pid, signal.SIGINT)


@pytest.fixture(scope="module")
def notebook() -> Iterator[Notebook]:
    run_sync = pytest.importorskip("nbclient.util").run_sync
    book = Notebook()
    book.run(f"import sys; sys.path[:] = {sys.path!r}")
    book.prints("from reference.cluster import Cluster\ncluster = Cluster(2)")
    book.prints("import torch\nimport torch.distributed as dist")
    yield book
    book.prints("cluster.close()")
    run_sync(book.client.km.shutdown_kernel)(now=True)


def test_functions_and_classes_of_cells_travel_and_results_are_theirs(notebook):
    notebook.prints("""
        from dataclasses import dataclass
        OFFSET = 10
        @dataclass
        class Point:
            x: int
            def shifted(self): return self.x + OFFSET
        def inner(): return Point(dist.get_rank())
        def points(): return inner()
    """)
    assert notebook.prints("print([isinstance(p, Point) for p in cluster.run(points)])") == "[True, True]\n"
    assert notebook.prints("OFFSET = 20; print([p.shifted() for p in cluster.run(points)])") == "[20, 21]\n"


def test_a_cell_that_is_run_again_is_what_runs(notebook):
    notebook.prints("def version(): return 1")
    assert notebook.prints("print(cluster.run(version))") == "[1, 1]\n"
    notebook.prints("def version(): return 2")
    assert notebook.prints("print(cluster.run(version))") == "[2, 2]\n"


def test_prints_arrive_in_the_cell(notebook):
    text = notebook.prints("cluster.run(lambda: print('hello')); print('after')")
    assert sorted(text.splitlines()[:2]) == ["[rank 0] hello", "[rank 1] hello"]
    assert text.splitlines()[2] == "after"


def test_an_error_is_its_message_and_nothing_else(notebook):
    error = notebook.fails("def wrong():\n    x = 1\n    raise ValueError('no')\ncluster.run(wrong)")
    assert error.ename == "RemoteException"
    assert len(error.traceback) <= 6
    assert "rank 0 · cell [" in error.traceback[0]
    assert "]:3 · exception" in error.traceback[0]


def test_the_stop_button_ends_the_call_and_the_next_cell_works(notebook):
    notebook.stop(1.0)
    begin = time.monotonic()
    error = notebook.fails("def endless():\n    while True: pass\ncluster.run(endless)")
    assert error.ename == "Interrupted"
    assert "]:2 · interrupted" in error.traceback[0]
    assert len(error.traceback) <= 6
    assert time.monotonic() - begin < 20
    assert notebook.prints("print(cluster.run(dist.get_rank))") == "[0, 1]\n"
