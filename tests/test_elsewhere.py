"""What docs/elsewhere.md and the container's description tell a reader's machine to run."""

import json
import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from puzzles import catalog
from puzzles.grading import text

ROOT = Path(__file__).resolve().parents[1]
CONTAINER = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text(encoding="utf-8"))
PAGE = (ROOT / "docs" / "elsewhere.md").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
KERNEL = """
import sys
from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance()
for cell in sys.stdin.read().split("\\0"):
    print(shell.run_cell(cell).result)
"""


def test_the_container_is_set_up_by_a_target_of_make_on_a_python_that_ci_tries() -> None:
    program, target = CONTAINER["postCreateCommand"].split()
    assert program == "make" and re.search(rf"^{target}:", MAKEFILE, re.M)
    python = CONTAINER["image"].rpartition(":")[2]
    assert f'"{python}"' in (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")


def test_ci_sets_up_a_clean_checkout_as_the_container_does() -> None:
    assert CONTAINER["postCreateCommand"] in (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()


def test_a_terminal_of_the_container_finds_the_commands(tmp_path: Path) -> None:
    """With the container's variables, in a fresh home: `rankwise` is that of `.venv`, which `make setup` makes."""
    (tmp_path / ".venv").symlink_to(sys.prefix)
    here = {"${containerWorkspaceFolder}": str(tmp_path), "${containerEnv:PATH}": os.defpath}
    variables = {"HOME": str(tmp_path)}
    for name, value in CONTAINER["remoteEnv"].items():
        variables[name] = re.sub(r"\$\{[^}]*\}", lambda found: here[found[0]], value)
    command = ["sh", "-c", "command -v rankwise; command -v python; rankwise --version"]
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True)
    rankwise, python, version = done.stdout.splitlines()
    assert rankwise == f"{tmp_path}/.venv/bin/rankwise" and version.startswith("rankwise "), done.stderr
    assert python == f"{tmp_path}/.venv/bin/python"
    chosen = CONTAINER["customizations"]["vscode"]["settings"]["python.defaultInterpreterPath"]
    assert chosen.replace("${containerWorkspaceFolder}", str(tmp_path)) == python


@pytest.mark.long
def test_cells_for_colab_work_in_a_kernel_that_is_older_than_the_course(tmp_path: Path) -> None:
    """In a fresh home; packages are found where we have them, for nothing is downloaded."""
    (cells,) = re.findall(r"## Colab.*?```\n(.*?)```", PAGE, re.S)
    cells = cells.replace("ADDRESS", str(ROOT)).replace("pip install", "pip install --no-deps --no-build-isolation")
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    puzzle = catalog.find("ranks.pair")
    told = [*cells.strip().splitlines()]
    told += [f"%%puzzle ranks.pair\n{body}" for body in (text.with_body(puzzle, "    ..."), text.solution(puzzle))]
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    here = kept | {"HOME": str(tmp_path), "PATH": f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    kernel = [environment / "bin" / "python", "-c", KERNEL]
    done = subprocess.run(kernel, input="\0".join(told), cwd=tmp_path, env=here, capture_output=True, text=True)
    assert "✗ ranks.pair" in done.stdout and "✓ ranks.pair" in done.stdout, done.stdout + done.stderr
    saved = (tmp_path / "rankwise" / "puzzles" / "ranks" / "pair.py").read_text(encoding="utf-8")
    assert not text.untouched(puzzle, saved)
