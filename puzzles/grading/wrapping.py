"""Wrap statements of puzzles at the width of a learner's editor, and leave tables, lists and code as they are meant.

Statements are written with lines of up to 120 columns; half a laptop's screen has 80. A line that ends early ends on
purpose: it belongs to a list, a table or a program. A line that ends because the next word had no room continues.
"""

import re
import textwrap
from collections.abc import Iterator
from itertools import accumulate

FULL = 98  # columns: a line that would be longer with the next line's first word has been wrapped
GLUE = "\x00"  # stands for a space where no line may end
CODE = re.compile(r"`[^`]{1,72}`")  # stays on one line, if it is no longer than this
ITEM = r"\s*- |\s*\d+\. |\s+[a-z]\. "
"""How a line of a list begins: "- item", "1. item", "    a. item"."""

ENTRY = re.compile(rf"{ITEM}|\s+[\w.*]+(, [\w.*]+)*: |\s*\S(.*\S)?\s{{3,}}(?=\S)")
"""And of what else has a name in front: "    name: what it is", "term    words"."""

FAR = 38  # columns: where the last words of a line begin farther right, its parts stand below each other


def wrapped(text: str, width: int) -> str:
    """A text without indentation, its paragraphs filled anew to `width` columns."""
    return "\n".join(line for block in _blocks(text.splitlines()) for line in _filled(block, width))


def wrapped_header(header: str, width: int) -> str:
    """`def name(arguments) -> result:`, its arguments on lines of their own where it is wider than `width`.

    Decorators may stand before it.
    """
    if max(map(len, header.splitlines())) <= width:
        return header
    begin = header.index("(", header.rfind("\ndef ") + 1)
    end = begin + _depths(header[begin:]).index(0)
    inside = header[begin + 1 : end]
    cuts = [i for i, depth in enumerate(_depths(inside)) if inside[i] == "," and not depth]
    ends = zip([0, *(i + 1 for i in cuts)], [*cuts, len(inside)], strict=True)
    arguments = [" ".join(inside[start:stop].split()) for start, stop in ends]
    one_line = f"    {', '.join(filter(None, arguments))}"
    lines = [one_line] if len(one_line) <= width else [f"    {each}," for each in arguments if each]
    return "\n".join([header[: begin + 1], *lines, header[end:]])


def _depths(text: str) -> list[int]:
    """How many brackets are open after each character."""
    return list(accumulate((char in "([{") - (char in ")]}") for char in text))


def _blocks(lines: list[str]) -> Iterator[list[str]]:
    """The lines, those together that were one before it was wrapped."""
    block: list[str] = []
    for line in lines:
        if block and not _goes_on(block, line):
            yield block
            block = []
        block.append(line)
    yield block


def _goes_on(block: list[str], line: str) -> bool:
    """True if a line continues those before it."""
    if not line.strip() or not block[-1].strip() or re.match(ITEM, line):
        return False
    deeper = _indent(line) - _indent(block[0])
    hangs = deeper > 0 if ENTRY.match(block[0]) else deeper == 0
    if len(block) > 1:
        hangs = _indent(line) == _indent(block[1])
    return hangs and len(block[-1]) + 1 + len(line.split()[0]) > FULL


def _filled(block: list[str], width: int) -> list[str]:
    """One block, in lines of at most `width` columns where its words are short enough."""
    if len(block) == 1 and len(block[0]) <= width:
        return block
    head = ENTRY.match(block[0])
    if head and len(head.group()) > FAR:
        whole = " ".join([block[0].rstrip(), *map(str.strip, block[1:])]).strip()
        parts = [" " * _indent(block[0]) + part for part in re.split(r"\s{3,}", whole)]
        return [line for part in parts for line in _filled([part], width)]
    first = head.group() if head else " " * _indent(block[0])
    hang = _indent(block[1]) if len(block) > 1 else _hang(first)
    words = " ".join([block[0][len(first) :].strip(), *(line.strip() for line in block[1:])])
    glued = CODE.sub(lambda code: code.group().replace(" ", GLUE), words)
    look = {"break_long_words": False, "break_on_hyphens": False}
    lines = textwrap.wrap(glued, width, initial_indent=first, subsequent_indent=" " * hang, **look)
    return [line.replace(GLUE, " ") for line in lines]


def _hang(head: str) -> int:
    """Where the second line of a block begins: below the words of the first; below a name, four columns in."""
    return _indent(head) + 4 if head.rstrip().endswith(":") else len(head)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
