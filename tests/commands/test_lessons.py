"""The commands that open the notebooks need a copy of the course around them."""

import json
import os
import re
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from puzzles.grading import course
from rankwise.cli import BAD_INPUT, run
from rankwise.commands.lessons import FIRST, opening

from ..processes import wait_until

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("command", ["lessons", "lab"])
def test_an_installed_package_without_a_course_says_so(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr("os.execv", lambda *arguments: pytest.fail("JupyterLab was started"))
    monkeypatch.setattr(course, "__file__", str(tmp_path / "puzzles" / "grading" / "course.py"))
    assert run([command]) == BAD_INPUT
    assert f"{tmp_path} is not a copy of the course" in capsys.readouterr().err


def test_each_lesson_says_what_it_is_about(capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run(["lessons"]) == 0
    lines = capsys.readouterr().out.splitlines()
    titles = [line for line in lines if not line.startswith(" ")]
    files = sorted((ROOT / "lessons").glob("*.ipynb"))
    assert [line.partition("(")[2] for line in titles] == [f"lessons/{path.name})" for path in files]
    assert max(map(len, lines)) <= 80
    for path in files:
        title, about = opening(path)
        assert re.fullmatch(r"\d\d · .+", title) and len(about.split()) > 5 and "*" not in about


def test_a_lesson_without_a_line_in_italics_has_a_title(tmp_path: Path) -> None:
    lesson = tmp_path / "lesson.ipynb"
    lesson.write_text(json.dumps({"cells": [{"source": ["# 99 · New\n", "\n", "**Why.** Because *it* is.\n"]}]}))
    assert opening(lesson) == ("99 · New", "")


@pytest.mark.parametrize("arguments", [[], ["--no-browser", "--port", "8889", "--ip", "0.0.0.0", "--allow-root", "-y"]])
def test_jupyterlab_gets_its_own_arguments_and_the_courses_root(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr("os.execv", lambda program, command: started.append(command))
    monkeypatch.setenv("JUPYTER_CONFIG_PATH", "")
    assert run(["lab", *arguments]) == 0
    ((_, *command),) = started
    assert command[:2] == ["-m", "jupyterlab"]
    assert f"--ServerApp.root_dir={ROOT}" in command
    assert f"--LabApp.default_url=/lab/tree/{FIRST}" in command and (ROOT / FIRST).is_file()
    assert command[len(command) - len(arguments) :] == arguments


def test_jupyterlab_wraps_long_lines_of_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A line has up to 100 columns, and a window of 1,000 pixels some 70 beside the list of files."""
    manager = pytest.importorskip("jupyter_server.services.config.manager")
    monkeypatch.setenv("JUPYTER_CONFIG_PATH", str(tmp_path))
    monkeypatch.setattr("os.execv", lambda program, command: None)
    assert run(["lab"]) == 0
    assert os.environ["JUPYTER_CONFIG_PATH"].split(os.pathsep)[1:] == [str(tmp_path)]
    defaults = manager.ConfigManager(config_dir_name="labconfig").get("default_setting_overrides")
    assert defaults["@jupyterlab/notebook-extension:tracker"]["codeCellConfig"]["lineWrap"] is True


def test_other_commands_know_all_their_options(capsys: pytest.CaptureFixture) -> None:
    assert run(["lessons", "--port", "8889"]) == BAD_INPUT
    assert "--port" in capsys.readouterr().err


def test_make_lab_hands_arguments_on(tmp_path: Path) -> None:
    command = ["make", "--dry-run", "--assume-old", ".venv/.installed", "lab", "ARGS=--no-browser --port 8889"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert ".venv/bin/rankwise lab --no-browser --port 8889" in done.stdout, done.stderr


def listens(address: str) -> bool:
    """True once a server takes connections at http://host:port."""
    _, host, port = address.replace("/", "").split(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


def test_jupyterlab_opens_lesson_01_and_has_puzzle_files_beside_it(tmp_path: Path) -> None:
    """What JupyterLab itself makes of what it is handed."""
    pytest.importorskip("jupyterlab")
    own_folders = {f"JUPYTER_{kind}_DIR": str(tmp_path / kind) for kind in ("CONFIG", "DATA", "RUNTIME")}
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    command = [sys.executable, "-m", "rankwise", "lab", "--no-browser", "--allow-root"]
    command += ["--ip", "127.0.0.1", "--port", address.rpartition(":")[2], "--ServerApp.token=known"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ | own_folders)
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    direct.addheaders = [("Authorization", "token known")]
    try:
        assert any(f"{address}/lab/tree/{FIRST}" in line for line in server.stderr)
        wait_until(lambda: listens(address), seconds=30)  # it says so first
        with direct.open(address, timeout=30) as page:
            assert page.url.endswith(f"/lab/tree/{FIRST}")
        for file in (FIRST, "puzzles/ranks/pair.py"):
            with direct.open(f"{address}/api/contents/{file}?content=0", timeout=30) as answer:
                assert json.load(answer)["path"] == file
    finally:
        server.kill()
        server.wait()
        server.stderr.close()
