"""Environments of their own, for frameworks whose packages the project does not have.

Each lies below a folder of the user's caches and shows the packages of the project's own environment, torch above all,
which it must not replace: so it takes what the framework itself takes, and no more.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

from reference.errors import BadInput

from .catalogue import Framework

ROOT = Path(__file__).parents[2]
PINNED = ("torch", "numpy")  # which no framework may replace


def folder(name: str) -> Path:
    """Where the environment of a framework is."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return caches / "rankwise" / "frameworks" / name


def python_of(name: str, framework: Framework) -> str:
    """The Python that runs a framework.

    Raises:
        BadInput: if its environment is not there yet, or not whole, or was made for other versions.
    """
    if not framework.packages:
        return sys.executable
    home = folder(framework.environment or name)
    python, pinned = home / "bin" / "python", home / "constraints.txt"
    if not (python.exists() and pinned.exists()):
        raise BadInput(f"{framework.title} has an environment of its own: `rankwise frameworks setup {name}` makes it")
    if pinned.read_text(encoding="utf-8") != pins():
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


@contextmanager
def variables(python: str) -> Iterator[Mapping[str, str]]:
    """What a run of that Python is told: where this course is, one thread for each rank, and where to compile.

    torch guards a folder of compiled code with a file that stays where a process is killed, and then every later run
    waits for it without end. So each run has a folder of its own, which begins as a copy of what earlier ones have
    left.
    """
    packages = sysconfig.get_path("purelib")  # what is compiled is for the torch that is there
    kept = Path(python).parents[1] / "compiled" / sha256(packages.encode()).hexdigest()[:12]
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    with TemporaryDirectory() as own:
        if kept.exists():
            shutil.copytree(kept, own, dirs_exist_ok=True)
        told = {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        yield {**os.environ, **told, "TORCH_EXTENSIONS_DIR": own}
        keep_compiled(Path(own), kept)


def keep_compiled(own: Path, kept: Path) -> None:
    """Leave to later runs what a run has compiled to its end, and they do not have yet."""
    for made in own.iterdir():
        if (made / "lock").exists() or not list(made.glob("*.so")) or (kept / made.name).exists():
            continue
        kept.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=kept.parent) as aside, suppress(OSError):  # another run was first
            shutil.copytree(made, Path(aside, made.name)).rename(kept / made.name)


def create(name: str, framework: Framework) -> Path:
    """Make the environment of a framework, from the package registry.

    Raises:
        BadInput: if pip fails, with its last line.
    """
    home = folder(framework.environment or name)
    if not (home / "bin" / "python").exists():
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    show_project(home)
    pinned, begun = home / "constraints.txt", home / "constraints.begun"
    pinned.unlink(missing_ok=True)  # it is there once all is installed
    begun.write_text(pins(), encoding="utf-8")
    if framework.packages:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(home / "bin" / "python")]
        wanted = ["install", "--quiet", "-c", str(begun), *framework.flags, *framework.packages]
        done = subprocess.run([*pip, *wanted], capture_output=True, text=True)
        if done.returncode:
            *_, last = done.stderr.strip().splitlines() or ["no word of why"]
            raise BadInput(f"{framework.title} could not be installed: {last}")
    begun.replace(pinned)
    return home
