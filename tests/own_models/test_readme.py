"""The program of README's "On your own model" is short, runs as it stands, and learns."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def program() -> str:
    section = (ROOT / "README.md").read_text(encoding="utf-8").split("### On your own model")[1]
    return section.split("```python\n")[1].split("```")[0]


def test_the_program_has_at_most_40_lines() -> None:
    assert 20 < len(program().splitlines()) <= 40


def test_the_program_runs_and_learns(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(program(), encoding="utf-8")
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    ran = subprocess.run(
        [sys.executable, str(file)], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=240
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("loss ")
    assert "All keys matched" in ran.stdout
    assert float(ran.stdout.split()[1]) < 0.1  # 3.9 at the beginning
