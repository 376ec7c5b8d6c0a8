"""The commands that open the notebooks need a copy of the course around them."""

from pathlib import Path

import pytest

from puzzles.grading import course
from rankwise.cli import BAD_INPUT, run


@pytest.mark.parametrize("command", ["lessons", "lab"])
def test_an_installed_package_without_a_course_says_so(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr("os.execv", lambda *arguments: pytest.fail("JupyterLab was started"))
    monkeypatch.setattr(course, "__file__", str(tmp_path / "puzzles" / "grading" / "course.py"))
    assert run([command]) == BAD_INPUT
    assert f"{tmp_path} is not a copy of the course" in capsys.readouterr().err
