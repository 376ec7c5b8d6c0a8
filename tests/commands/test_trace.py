"""`rankwise trace`, as a person meets it."""

import sys
from pathlib import Path

import pytest

from rankwise.cli import run


@pytest.fixture(autouse=True)
def own_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command puts the program's folder on it."""
    monkeypatch.setattr(sys, "path", sys.path.copy())


WRONG = {
    "def main():\n  return (\n": ":2: SyntaxError: '(' was never closed",
    "import no_such_module\n": ":1: ModuleNotFoundError: No module named 'no_such_module'",
    "\n\nraise ValueError('one\\ntwo')\n": ":3: ValueError: one",
    "import sys\nsys.exit('bye')\n": ":2: SystemExit: bye",
    "import json\njson.loads('')\n": ":2: JSONDecodeError: Expecting value",
}


@pytest.mark.parametrize("source", WRONG)
def test_a_program_that_cannot_be_run_is_refused_with_its_line(source: str, tmp_path: Path, capsys):
    (tmp_path / "program.py").write_text(source)
    assert run(["trace", str(tmp_path / "program.py"), "--out", str(tmp_path / "out")]) == 2
    err = capsys.readouterr().err
    assert (
        err.startswith(f"rankwise: {tmp_path}/program.py{WRONG[source]}")
        and "(program.py" not in err
        and err.count("\n") == 1
    )


@pytest.mark.parametrize("text", [b"\n\nname = '\xff'\n", b"a = 1\0\n"], ids=["not UTF-8", "a zero byte"])
def test_what_is_no_program_is_refused_in_one_line(text: bytes, tmp_path: Path, capsys):
    (tmp_path / "program.py").write_bytes(text)
    assert run(["trace", str(tmp_path / "program.py"), "--out", str(tmp_path / "out")]) == 2
    err = capsys.readouterr().err
    assert "program.py" in err and "Error: " in err and err.count("\n") == 1


def test_a_notebook_is_refused_with_what_works_there(tmp_path: Path, capsys):
    (tmp_path / "ring.ipynb").write_text('{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}')
    assert run(["trace", str(tmp_path / "ring.ipynb"), "--out", str(tmp_path / "out")]) == 2
    err = capsys.readouterr().err
    assert "ring.ipynb is a notebook" in err and "%%ranks 4" in err and err.count("\n") == 1


def test_a_program_finds_the_modules_beside_it(tmp_path: Path, capsys: pytest.CaptureFixture):
    source = "import torch.distributed as dist\ndef main():\n    dist.barrier()\n"
    (tmp_path / "sibling_of_program.py").write_text(source)
    (tmp_path / "program.py").write_text("from sibling_of_program import main\n")
    out = tmp_path / "out"
    assert run(["trace", str(tmp_path / "program.py"), "--ranks", "2", "--out", str(out)]) == 0
    assert "rank 1: 1 calls" in capsys.readouterr().out
    assert all((out / name).stat().st_size for name in ("timeline.png", "trace.json"))


@pytest.mark.parametrize("ranks", ["0", "-2", "33", "100000"])
def test_ranks_are_as_many_as_a_cluster_has(ranks: str, tmp_path: Path, capsys: pytest.CaptureFixture):
    (tmp_path / "program.py").write_text("def main(): ...\n")
    assert run(["trace", str(tmp_path / "program.py"), "--ranks", ranks, "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err == f"rankwise: --ranks is a number from 1 to 32, not {ranks}\n"


@pytest.mark.parametrize("out", ["program.py", "program.py/below", "taken"])
def test_pictures_that_cannot_be_written_are_refused_before_the_run(out: str, tmp_path: Path, capsys):
    (tmp_path / "taken" / "trace.json").mkdir(parents=True)
    ran = tmp_path / "ran"
    (tmp_path / "program.py").write_text(f"open({str(ran)!r}, 'w')\n")
    assert run(["trace", str(tmp_path / "program.py"), "--out", str(tmp_path / out)]) == 2
    err = capsys.readouterr().err
    assert f"cannot write {tmp_path / out}" in err and err.count("\n") == 1
    assert not ran.exists() and [path.name for path in (tmp_path / "taken").iterdir()] == ["trace.json"]
