"""Environments of frameworks outlive the environment that made them, and those made for other versions are refused."""

import subprocess
from pathlib import Path

import pytest

from reference.errors import BadInput
from reference.frameworks import environments
from reference.frameworks.catalogue import Framework

SMALL = Framework("small", packages=("iniconfig==2.1.0",))  # a package without any other


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Such an environment, made without the registry."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return environments.create("small", Framework("small"))


def sees_torch(python: str) -> bool:
    return subprocess.run([python, "-c", "import torch"], capture_output=True, timeout=100).returncode == 0


def test_it_sees_the_packages_of_the_project_also_where_another_made_it(home: Path, tmp_path: Path) -> None:
    python = environments.python_of("small", SMALL)
    assert sees_torch(python)
    shown = next(home.glob("lib/python*/site-packages/of_the_project.pth"))
    shown.write_text(f"{tmp_path / 'gone'}\n", encoding="utf-8")
    assert not sees_torch(python)
    assert sees_torch(environments.python_of("small", SMALL))


def test_other_versions_are_refused_with_what_to_do(home: Path) -> None:
    (home / "constraints.txt").write_text("torch==1.0\n", encoding="utf-8")
    with pytest.raises(BadInput, match=f"rm -r {home}.*frameworks setup small"):
        environments.python_of("small", SMALL)


def test_what_pip_has_not_installed_to_its_end_is_not_there(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 1, "", "no network"))
    with pytest.raises(BadInput, match="could not be installed: no network"):
        environments.create("small", SMALL)
    with pytest.raises(BadInput, match="`rankwise frameworks setup small` makes it"):
        environments.python_of("small", SMALL)


def test_one_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(BadInput, match="frameworks setup small"):
        environments.python_of("small", SMALL)


def test_who_is_killed_as_it_compiles_stops_no_later_run(home: Path) -> None:
    python = str(home / "bin" / "python")
    for name, left in (("done", ["done.so"]), ("killed", ["killed.so", "lock"]), ("begun", ["begun.o"])):
        with environments.variables(python) as told:
            own = Path(told["TORCH_EXTENSIONS_DIR"])
            assert not list(own.glob("*/lock"))
            (own / name).mkdir()
            for each in left:
                (own / name / each).touch()
    (kept,) = (home / "compiled").glob("*/*")  # of this project's environment
    assert kept.name == "done"
    with environments.variables(python) as told:
        (Path(told["TORCH_EXTENSIONS_DIR"]) / "done" / "done.so").write_text("another", encoding="utf-8")
    assert (kept / "done.so").read_text(encoding="utf-8") == ""
