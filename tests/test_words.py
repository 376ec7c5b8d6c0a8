"""The English of docstrings is plain: phrases that only this course used stay away."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BETTER = {
    r"\bas of (`|the (form|layer|stage))": "as for `X`, or say it again",
    r"\bdear(er|est)?\b": "expensive",
    r"\bat home\b": "on this rank, or on the host",
    r"\bis through\b": "has finished",
    r"none the wiser": "is unchanged",
    r"(^|\. )Who(ever)? [a-z]": "name the subject: a rank, a caller, a schedule",
}
"""What a phrase says that is better, by the phrase."""


def docstrings(path: Path) -> list[str]:
    """Of a module and all that it defines."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    tree = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return [text for node in tree if isinstance(node, kinds) and (text := ast.get_docstring(node))]


@pytest.mark.parametrize("phrase", BETTER)
def test_docstrings_of_the_reference_are_plain(phrase: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}: {match[0]!r}; better: {BETTER[phrase]}"
        for path in sorted((ROOT / "reference").rglob("*.py"))
        for text in docstrings(path)
        for match in [re.search(phrase, " ".join(text.split()))]
        if match
    ]
    assert found == []


def test_a_phrase_is_seen() -> None:
    said = [
        "Arguments as of `f`.",
        "the dearest one",
        "kept at home",
        "when it is through",
        "Who draws",
        "Done. Whoever asks",
    ]
    assert all(any(re.search(phrase, words) for phrase in BETTER) for words in said)
