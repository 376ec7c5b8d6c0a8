"""A learner's cell shows no warning of what torch will drop: neither in the kernel, nor of ranks."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# What torch itself raises today, by each of its three ways; and a warning that a learner is to see.
CELL = """
import warnings

import torch
from typing_extensions import deprecated


@deprecated("`torch.old` is deprecated", category=FutureWarning)
def old():
    pass


old()
warnings.warn("`torch.older` will go", DeprecationWarning)
warnings.warn("TypedStorage is deprecated", UserWarning)
torch.nn.init.uniform(torch.zeros(2))
warnings.warn("lr is large", UserWarning)
"""
ON_A_RANK = "import torch\n\ntorch.nn.init.uniform(torch.zeros(2))\nprint('done')"
KERNEL = """
import sys
from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance()
for cell in sys.stdin.read().split("\\0"):
    shell.run_cell(cell)
"""


def shown(*cells: str, folder: Path) -> str:
    """All that a shell shows for these cells."""
    here = os.environ | {"PYTHONPATH": str(ROOT), "IPYTHONDIR": str(folder)}
    here.pop("VIRTUAL_ENV", None)  # of another environment IPython warns
    command = [sys.executable, "-W", "default", "-c", KERNEL]
    done = subprocess.run(command, input="\0".join(cells), cwd=folder, env=here, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("loaded", [True, False])
def test_in_the_kernel(loaded: bool, tmp_path: Path) -> None:
    said = shown(*["%load_ext puzzles"] * loaded, CELL, folder=tmp_path)
    assert "lr is large" in said
    for warning in ("torch.old", "torch.older", "TypedStorage", "nn.init.uniform"):
        assert (warning in said) is not loaded, said


def test_on_ranks(tmp_path: Path) -> None:
    said = shown("%load_ext puzzles", f"%%ranks 1\n{ON_A_RANK}", folder=tmp_path)
    assert "done" in said and "Warning" not in said, said
