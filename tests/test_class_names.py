"""A public class of `reference` has a name that no other has: to find the name is to find the class."""

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_names_of_public_classes_are_unique() -> None:
    files = defaultdict(list)
    for path in (ROOT / "reference").rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                files[node.name].append(str(path.relative_to(ROOT)))
    assert len(files) > 300
    assert {name: where for name, where in files.items() if len(where) > 1} == {}
