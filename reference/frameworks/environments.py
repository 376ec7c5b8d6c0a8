"""Environments of their own, for frameworks whose packages the project does not have.

Each lies below a folder of the user's caches and shows the packages of the project's own environment, torch above all,
which it must not replace: so it takes what the framework itself takes, and no more.
"""

import os
import subprocess
import sys
import sysconfig
from importlib.metadata import version
from pathlib import Path

from reference.errors import BadInput

from .catalogue import Framework

PINNED = ("torch", "numpy")  # which no framework may replace


def folder(name: str) -> Path:
    """Where the environment of a framework is."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return caches / "rankwise" / "frameworks" / name


def python_of(name: str, framework: Framework) -> str:
    """The Python that runs a framework.

    Raises:
        BadInput: if its environment is not there yet.
    """
    if not framework.packages:
        return sys.executable
    python = folder(framework.environment or name) / "bin" / "python"
    if not python.exists():
        raise BadInput(f"{framework.title} has an environment of its own: `rankwise frameworks setup {name}` makes it")
    return str(python)


def create(name: str, framework: Framework) -> Path:
    """Make the environment of a framework, from the package registry.

    Raises:
        BadInput: if pip fails, with its last line.
    """
    home = folder(framework.environment or name)
    if not (home / "bin" / "python").exists():
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    packages = next(home.glob("lib/python*/site-packages"))
    (packages / "of_the_project.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    pinned = home / "constraints.txt"
    pinned.write_text("".join(f"{name}=={version(name).partition('+')[0]}\n" for name in PINNED), encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(home / "bin" / "python")]
    wanted = [*framework.flags, *framework.packages]
    done = subprocess.run([*pip, "install", "--quiet", "-c", str(pinned), *wanted], capture_output=True, text=True)
    if done.returncode:
        *_, last = done.stderr.strip().splitlines() or ["no word of why"]
        raise BadInput(f"{framework.title} could not be installed: {last}")
    return home
