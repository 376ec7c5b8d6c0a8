"""The wall of audit hooks by itself, without the kernel's: what it refuses, and what it lets through."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from reference.cluster.confine import hook

SCRATCH, HOME = "scratch", "home"
IN, OUT = f"{SCRATCH}/a", f"{HOME}/b"
WRITE, READ = os.O_WRONLY | os.O_CREAT, os.O_RDONLY


def told(tmp_path: Path, event: str, arguments: tuple[Any, ...]) -> str:
    """What the hook says to an event, "" for nothing. A path in its arguments begins with SCRATCH or HOME."""
    placed = [
        str(tmp_path / each) if isinstance(each, str) and each.startswith((SCRATCH, HOME)) else each
        for each in arguments
    ]
    try:
        hook(str(tmp_path / SCRATCH), PermissionError)(event, tuple(placed))
    except PermissionError as error:
        return str(error)
    return ""


REFUSED = [
    ("open", (OUT, "w", WRITE)),
    ("os.remove", (OUT, -1)),
    ("os.rmdir", (OUT, -1)),
    ("os.mkdir", (OUT, 0o777, -1)),
    ("os.truncate", (OUT, 0)),
    ("os.chmod", (OUT, 0o777, -1)),
    ("os.chown", (OUT, 0, 0, -1)),
    ("os.utime", (OUT, None, None, -1)),
    ("os.setxattr", (OUT, "user.x", b"", 0)),
    ("os.removexattr", (OUT, "user.x")),
    ("os.rename", (OUT, IN, -1, -1)),
    ("os.rename", (IN, OUT, -1, -1)),
    ("os.link", (OUT, IN, -1, -1)),
    ("os.link", (IN, OUT, -1, -1)),
    ("os.symlink", (IN, OUT, -1)),
    ("sqlite3.connect", (OUT,)),
]


@pytest.mark.parametrize(("event", "arguments"), REFUSED)
def test_nothing_outside_of_the_scratch_directory_is_changed(
    tmp_path: Path, event: str, arguments: tuple[Any, ...]
) -> None:
    said = told(tmp_path, event, arguments)
    assert said.startswith(f"this code may not {'write' if event == 'open' else 'change'} files")
    assert str(tmp_path / OUT) in said


@pytest.mark.parametrize(("event", "arguments"), REFUSED)
def test_below_the_scratch_directory_the_same_is_allowed(
    tmp_path: Path, event: str, arguments: tuple[Any, ...]
) -> None:
    assert told(tmp_path, event, tuple(IN if each == OUT else each for each in arguments)) == ""


@pytest.mark.parametrize(
    ("event", "arguments"),
    [
        ("open", (OUT, "r", READ)),
        ("open", (os.devnull, "w", WRITE)),
        ("os.symlink", (OUT, IN, -1)),  # a name for something else; to open it is checked again
        ("os.listdir", (OUT,)),
    ],
)
def test_what_changes_nothing_outside_is_allowed(tmp_path: Path, event: str, arguments: tuple[Any, ...]) -> None:
    assert told(tmp_path, event, arguments) == ""


def test_a_link_leads_where_it_points_to(tmp_path: Path) -> None:
    (tmp_path / SCRATCH).mkdir()
    (tmp_path / IN).symlink_to(tmp_path / OUT)
    assert told(tmp_path, "open", (IN, "w", WRITE)).startswith("this code may not write files")


@pytest.mark.parametrize(
    ("event", "what"),
    [
        ("os.system", "start programs"),
        ("os.fork", "start processes"),
        ("os.kill", "send signals"),
        ("socket.connect", "open connections of its own"),
        ("ctypes.dlopen", "call C functions"),
        ("gc.get_objects", "search the interpreter's memory"),
        ("sys.addaudithook", "watch the interpreter"),
    ],
)
def test_what_reaches_out_of_the_interpreter_is_refused(tmp_path: Path, event: str, what: str) -> None:
    assert told(tmp_path, event, ()) == f"this code may not {what} ({event})"


LOOKS = """
import linecache, os, sys
from importlib import metadata
from reference.cluster.confine import hook

scratch, home = sys.argv[1:]
(package,) = metadata.distributions(path=[home])
sys.addaudithook(hook(scratch, RuntimeError, [os.path.dirname(os.__file__)]))
assert package.read_text("PKG-INFO") is None
text = os.path.join(home, "a.egg-info", "PKG-INFO")
assert linecache.getlines(text) == []
try:
    open(text)
except RuntimeError as error:
    print(error)
"""


def test_python_passes_over_what_it_may_not_read(tmp_path: Path) -> None:
    """When it shows lines of a file, or looks through all packages, of which this course is one, as torch has it do."""
    (tmp_path / "a.egg-info").mkdir()
    (tmp_path / "a.egg-info" / "PKG-INFO").write_text("Name: a\n")
    command = [sys.executable, "-c", LOOKS, str(tmp_path / SCRATCH), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.stdout.startswith("this code may not read files ("), done.stderr
