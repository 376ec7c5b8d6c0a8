"""The English of this course is plain: phrases that only this course used stay away.

Read are docstrings, comments and messages of the rooms, and the prose of lessons, README and CONTRIBUTING.
"""

import ast
import io
import json
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("reference", "puzzles/catalog", "puzzles/grading", "visualizations", "rankwise")

BETTER = {
    r"\bas of\b(?! commit)": "as for `X`, or say it again",
    r"\bdear(er|est)?\b": "expensive",
    r"\bat home\b": "on this rank, locally, or on the host",
    r"\b(is|are|was|were) through\b(?! (the|a|an|all|\w+ing)\b)": "has finished",
    r"\bnone the wiser\b": "is unchanged",
    r"(^|[.:;!?] )(?-i:Who)(ever)? [^?.:;]*([.:;]|$)": "name the subject: a rank, a caller, a schedule",
    r"\bwhoever\b": "name the subject: a rank that, a caller that",
    r"\beverybody('s)?\b": "every rank, all ranks",
    r"\bsomebody('s)?\b": "a rank, a caller, a learner",
    r"\banybody('s)?\b": "any rank; a receive from any rank",
    r"\bfor ever\b": "forever",
    r"\bon (its|their) way\b(?! (to|through)\b)": "in flight",
    r"\b(goes|go|going|gone) on\b": "continues, resumes",
    r"\b(one behind the other|behind each other)\b": "one after the other",
    r"\b(told|tell|tells|telling) apart\b": "distinguished",
}
"""What a phrase says that is better, by the phrase."""

BETTER_IN_CODE = BETTER | {r"\bnobody('s)?\b": "no rank, no caller; or say it in the passive"}
"""The same, where the voice of a lesson has no place."""

ALLOWED = {
    "nobody is receiving": "a verdict of the watch, which learners' stored outputs show",
    "finished|nobody|waits": "what a puzzle expects of that verdict",
    "waits|nobody|finished": "what a puzzle expects of that verdict",
    "nobody called its wait()": "a verdict of the watch, which lesson 01's stored output shows",
    "Σ: sum of everybody's": "a legend of stored pictures",
    "; nobody waits": "a title of stored pictures",
    "dearest(c": "a name in a learner's program",
    "key=dearest": "a name in a learner's program",
    "anybody = torch.tensor": "a name in a learner's program",
    "all_reduce(anybody,": "a name in a learner's program",
    "if not anybody:": "a name in a learner's program",
}
"""Texts that stay as they are, each with the reason."""


def strings(source: str) -> Iterator[str]:
    """Docstrings, messages, statements, hints: all strings, those between the braces of an f-string one by one."""
    return (
        node.value
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def comments(source: str) -> Iterator[str]:
    """Each comment; lines of one that stand below each other are one."""
    found = [
        token for token in tokenize.generate_tokens(io.StringIO(source).readline) if token.type == tokenize.COMMENT
    ]
    text = ""
    for token, after in pairwise([*found, None]):
        text += " " + token.string.lstrip("#: ")
        if after is None or after.start != (token.start[0] + 1, token.start[1]):
            yield text.strip()
            text = ""


def prose(path: Path) -> Iterator[str]:
    """The paragraphs of a page, or of the cells of a notebook that are not code."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        text = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    return iter(text.split("\n\n"))


def without_allowed(text: str) -> str:
    text = " ".join(text.split())
    for allowed in ALLOWED:
        text = text.replace(allowed, "")
    return text


@cache
def code() -> list[tuple[Path, str]]:
    """What the rooms' modules say, each text with its file."""
    files = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]
    sources = [(path, path.read_text(encoding="utf-8")) for path in files]
    return [(path, without_allowed(text)) for path, source in sources for text in (*strings(source), *comments(source))]


@cache
def pages() -> list[tuple[Path, str]]:
    files = [*sorted((ROOT / "lessons").glob("*.ipynb")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    return [(path, without_allowed(text)) for path in files for text in prose(path)]


def said(texts: list[tuple[Path, str]], phrase: str) -> list[str]:
    """Where a phrase stands, and in which words."""
    return [
        f"{path.relative_to(ROOT)}: {text[max(0, match.start() - 30) : match.end() + 30]!r}"
        for path, text in texts
        for match in re.finditer(phrase, text, re.IGNORECASE)
    ]


@pytest.mark.parametrize("phrase", BETTER_IN_CODE)
def test_docstrings_comments_and_messages_are_plain(phrase: str) -> None:
    found = said(code(), phrase)
    assert not found, f"better: {BETTER_IN_CODE[phrase]}"


@pytest.mark.parametrize("phrase", BETTER)
def test_lessons_and_pages_are_plain(phrase: str) -> None:
    found = said(pages(), phrase)
    assert not found, f"better: {BETTER[phrase]}"


SEEN = [
    "Arguments as of `f`.",
    "the dearest one",
    "kept at home",
    "when it is through",
    "the state is none the wiser",
    "Done. Who draws, gets it.",
    "given to whoever asks",
    "the sum of everybody's",
    "somebody waits",
    "a receive from anybody",
    "it waits for ever",
    "a message on its way",
    "the run goes on",
    "chunks behind each other",
    "cannot be told apart",
    "nobody waits",
]


@pytest.mark.parametrize(("phrase", "words"), list(zip(BETTER_IN_CODE, SEEN, strict=True)))
def test_a_phrase_is_seen(phrase: str, words: str) -> None:
    assert said([(ROOT / "page", words)], phrase)


@pytest.mark.parametrize("words", ["Who sends first?", "tokens on their way to experts", "as of commit 744d01e"])
def test_plain_words_are_left_alone(words: str) -> None:
    assert not [phrase for phrase in BETTER_IN_CODE if said([(ROOT / "page", words)], phrase)]


def test_every_kind_of_text_is_read() -> None:
    source = '"""A docstring."""\n# a comment that\n# goes on\nx = f"a message {1} of two"  # beside\n'
    assert list(strings(source)) == ["A docstring.", "a message ", " of two"]
    assert list(comments(source)) == ["a comment that goes on", "beside"]
    assert {path.suffix for path, _ in pages()} == {".ipynb", ".md"}
    assert {path.relative_to(ROOT).parts[0] for path, _ in code()} == {
        "reference",
        "puzzles",
        "visualizations",
        "rankwise",
    }


@pytest.mark.parametrize("text", ALLOWED)
def test_what_is_allowed_is_still_said(text: str) -> None:
    files = [path for room in ROOMS for path in (ROOT / room).rglob("*.py")]
    assert any(text in path.read_text(encoding="utf-8") for path in files), "no exception without a use"
