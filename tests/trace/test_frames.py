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
