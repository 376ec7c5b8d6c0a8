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
        BadInput: if its environment is not there yet, or was made for other versions.
    """
    if not framework.packages:
        return sys.executable
    home = folder(framework.environment or name)
    python = home / "bin" / "python"
    if not python.exists():
        raise BadInput(f"{framework.title} has an environment of its own: `rankwise frameworks setup {name}` makes it")
    pinned = home / "constraints.txt"
    if not pinned.exists() or pinned.read_text(encoding="utf-8") != pins():
        made = f"{framework.title} was set up for other versions than {pins().split()}"
        raise BadInput(f"{made}: `rm -r {home}` and `rankwise frameworks setup {name}` make it anew")
    show_project(home)
    return str(python)


def pins() -> str:
    """The versions that an environment keeps, as pip's constraints."""
    return "".join(f"{name}=={version(name).partition('+')[0]}\n" for name in PINNED)


def show_project(home: Path) -> None:
    """Let an environment see the packages of the one that runs now, also where another one made it and is gone."""
    seen = next(home.glob("lib/python*/site-packages")) / "of_the_project.pth"
    ours = sysconfig.get_path("purelib") + "\n"
    if not seen.exists() or seen.read_text(encoding="utf-8") != ours:
        written = seen.with_suffix(f".{os.getpid()}")
        written.write_text(ours, encoding="utf-8")
        written.replace(seen)


def create(name: str, framework: Framework) -> Path:
    """Make the environment of a framework, from the package registry.

    Raises:
        BadInput: if pip fails, with its last line.
    """
    home = folder(framework.environment or name)
    if not (home / "bin" / "python").exists():
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    show_project(home)
    pinned = home / "constraints.txt"
    pinned.write_text(pins(), encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(home / "bin" / "python")]
    if not framework.packages:
        return home
    wanted = [*framework.flags, *framework.packages]
    done = subprocess.run([*pip, "install", "--quiet", "-c", str(pinned), *wanted], capture_output=True, text=True)
    if done.returncode:
        *_, last = done.stderr.strip().splitlines() or ["no word of why"]
        raise BadInput(f"{framework.title} could not be installed: {last}")
    return home
