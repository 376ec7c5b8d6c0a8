"""Submissions that are alike, for a human to look at. That two are alike proves nothing.

Winnowing (Schleimer, Wilkerson and Aiken 2003, "Winnowing: local algorithms for document fingerprinting"; the method of
MOSS): every run of `RUN` tokens of a text is hashed, all names being equal and all numbers, and the smallest of each
`WINDOW` of these hashes is a fingerprint. Two texts that share RUN + WINDOW - 1 tokens in a row share a fingerprint,
whatever stands around them. What the stub has does not count, nor what many learners of the class have.
"""

import io
import keyword
import tokenize
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from puzzles import catalog
from puzzles.grading import text

from .submissions import Submission

RUN, WINDOW = 9, 6  # tokens in a hash, hashes in a window
ALIKE = 0.7  # of the fingerprints of the shorter text that the longer one has
FEWEST = 12  # fingerprints of a text that is long enough to say anything
COMMON = 0.3  # of the class: what more learners than this have is how one writes it
_LEFT_OUT = {tokenize.COMMENT, tokenize.NL, tokenize.ENCODING, tokenize.ENDMARKER, tokenize.NEWLINE}


@dataclass(frozen=True)
class Pair:
    """Two learners' texts of one puzzle.

    Attributes:
        shared: fingerprints that both have, and few others.
        share: these, by those of the text that has fewer.
    """

    name: str
    one: str
    other: str
    shared: int
    share: float


def pairs(handed_in: Sequence[Submission], names: Sequence[str]) -> list[Pair]:
    """All pairs of learners that are alike, the most alike first."""
    found = []
    for name in names:
        texts = {one.learner: one.texts[name] for one in handed_in if name in one.texts}
        found += _pairs(name, texts)
    return sorted(found, key=lambda pair: (-pair.share, -pair.shared, pair.name, pair.one))


def _pairs(name: str, texts: Mapping[str, str]) -> list[Pair]:
    if len(texts) < 2:
        return []
    known = fingerprints(text.stub(catalog.find(name)))
    prints = {learner: fingerprints(source) - known for learner, source in texts.items()}
    seen = Counter(each for one in prints.values() for each in one)
    most = max(2, COMMON * len(texts))
    own = {learner: {each for each in one if seen[each] <= most} for learner, one in prints.items()}
    found = []
    for one, other in combinations(own, 2):
        shorter = min(len(own[one]), len(own[other]))
        shared = len(own[one] & own[other])
        if shorter >= FEWEST and shared >= ALIKE * shorter:
            found.append(Pair(name, one, other, shared, shared / shorter))
    return found


def fingerprints(source: str) -> set[int]:
    """The fingerprints of a text; none of one that is no Python."""
    found = tokens(source)
    hashes = [zlib.crc32("\0".join(found[at : at + RUN]).encode()) for at in range(len(found) - RUN + 1)]
    return {min(hashes[at : at + WINDOW]) for at in range(max(1, len(hashes) - WINDOW + 1))} if hashes else set()


def tokens(source: str) -> list[str]:
    """The tokens of a text, as far as it is Python. Renaming, other numbers, comments and docstrings change nothing."""
    found, fresh = [], True  # fresh: at the beginning of a statement
    try:
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.STRING and fresh:
                continue
            fresh = token.type in (tokenize.NEWLINE, tokenize.NL, tokenize.INDENT, tokenize.DEDENT) or (
                fresh and token.type in (tokenize.COMMENT, tokenize.ENCODING)
            )
            if token.type not in _LEFT_OUT:
                found.append(_normal(token))
    except (tokenize.TokenError, SyntaxError):
        pass
    return found


def _normal(token: tokenize.TokenInfo) -> str:
    if token.type == tokenize.NAME:
        return token.string if keyword.iskeyword(token.string) else "name"
    kinds = {tokenize.NUMBER: "number", tokenize.STRING: "string", tokenize.INDENT: "in", tokenize.DEDENT: "out"}
    return kinds.get(token.type, token.string)
