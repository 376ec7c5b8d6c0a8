"""What `make setup` installs accepts every Python that the course says it runs on."""

import tomllib
from importlib.metadata import distributions
from pathlib import Path

from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[1]


def test_exact_versions_accept_the_oldest_python() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    oldest = f"{project['requires-python'].removeprefix('>=')}.0"
    accepted = {
        f"{installed.name}=={installed.version}": installed.metadata["Requires-Python"] or ""
        for installed in distributions()
    }
    exact = set((ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines())
    assert len(accepted.keys() & exact) > 50
    assert not [pin for pin in accepted.keys() & exact if oldest not in SpecifierSet(accepted[pin])]
