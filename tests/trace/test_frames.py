"""An error names a line of the caller's own: no line of torch, wherever that is installed."""

import sysconfig
from pathlib import Path

import pytest
import torch

from reference.trace import frames

STDLIB = sysconfig.get_paths()["stdlib"]


@pytest.mark.parametrize(
    "file",
    [
        torch.__file__,
        "/home/me/.venv/lib/python3.12/site-packages/torch/functional.py",
        "/usr/local/lib/python3.12/dist-packages/torch/functional.py",  # Debian, Ubuntu, Colab
        f"{STDLIB}/threading.py",
    ],
)
def test_what_is_installed_is_foreign(file: str) -> None:
    assert frames.installed(file)
    assert frames.foreign(file)


@pytest.mark.parametrize("file", [__file__, "/home/me/my-packages/ring.py", f"{STDLIB}_of_mine/ring.py"])
def test_what_is_only_called_alike_is_the_callers_own(file: str) -> None:
    assert not frames.installed(file)
    assert frames.callers(file)


def test_a_file_has_a_name_also_where_the_folder_that_one_is_in_has_been_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert frames.display("/home/me/ring.py") == "ring.py"


def test_the_innermost_own_frame_is_named() -> None:
    inner = frames.Frame("/usr/local/lib/python3.12/dist-packages/torch/distributed/distributed_c10d.py", 7, "send")
    mine = frames.Frame(str(Path(__file__)), 3, "ring")
    assert frames.own([inner, mine]) == mine


DUMPS = """Stack (most recent call first):
  File "/home/me/ring.py", line 9 in before
Fatal Python error: Segmentation fault

Stack (most recent call first):
  File "/home/me/ring.py", line 3 in step
  File "/home/me/ring.py", line 7 in ring
"""
STACK_OF_C = """
Current thread's C stack trace (most recent call first):
  Binary file "/usr/bin/python3.14", at _Py_DumpStack+0x4a [0x49b2f9]
  <truncated rest of calls>
"""


@pytest.mark.parametrize("dump", [DUMPS, DUMPS + STACK_OF_C], ids=["python 3.11", "python 3.14"])
def test_a_crash_is_placed_where_python_was_last(dump: str) -> None:
    assert frames.of_dump(dump) == [
        frames.Frame("/home/me/ring.py", 3, "step"),
        frames.Frame("/home/me/ring.py", 7, "ring"),
    ]
