"""The map of the chapter names every file."""

from pathlib import Path
from types import ModuleType

import pytest

from reference import collectives
from reference.collectives import fast


def modules_in(text: str) -> list[str]:
    """The column `module` of the table in a docstring."""
    head, _, *rows = [[cell.strip() for cell in line.split("|")] for line in text.splitlines() if line.startswith("|")]
    return [row[head.index("module")] for row in rows]


@pytest.mark.parametrize("folder", [collectives, fast], ids=["collectives", "fast"])
def test_the_map_names_every_file_once(folder: ModuleType) -> None:
    place = Path(folder.__file__).parent
    there = [path.stem for path in place.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()]
    assert sorted([*modules_in(folder.__doc__), "__init__"]) == sorted(there)
