"""What commands answer that need no torch: one Python answers them all, for each that starts takes half a second."""

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import contextlib, io, json, sys
from rankwise import cli
for line in sys.stdin:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = cli.run(json.loads(line))
    print(json.dumps([code, said.getvalue(), "torch" in sys.modules]))
"""


class Answer(NamedTuple):
    """What a command has ended with and said; and whether torch was imported by then."""

    code: int
    said: str
    torch: bool


def answers(commands: Iterable[str], *more: str) -> dict[str, Answer]:
    """What a new process answers to these commands, one after the other; `more` stands after the words of each."""
    commands = list(commands)
    asked = "".join(json.dumps([*command.split(), *more]) + "\n" for command in commands)
    done = subprocess.run([sys.executable, "-c", PROGRAM], input=asked, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    return {command: Answer(*json.loads(line)) for command, line in zip(commands, lines, strict=True)}
