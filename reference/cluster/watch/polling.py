"""Loops that look again and again whether something has happened, as one reads them in a function's instructions."""

import dis
import functools
from types import CodeType
from typing import NamedTuple

_SAYS = {"dist", "distributed", "is_completed"}  # names by which a program speaks to other ranks
_SHORT = 5  # lines of a loop that only looks
_LOOKS = {"is_set", "is_alive", "done"}  # of events, threads and futures


class Loop(NamedTuple):
    """A short `while` loop that says nothing to other ranks.

    Attributes:
        start: offset of its first instruction; `end`: that of its jump back.
        lines: of the file.
        looks: whether it does nothing but look at one event, thread or future, and sleep.
    """

    start: int
    end: int
    lines: frozenset[int]
    looks: bool


@functools.lru_cache(maxsize=256)
def polls(code: CodeType) -> list[Loop]:
    """Those of a function."""
    instructions = list(dis.get_instructions(code))
    found = []
    for jump in instructions:
        if "JUMP_BACKWARD" in jump.opname:
            loop = [each for each in instructions if jump.argval <= each.offset <= jump.offset]
            lines = frozenset(each.positions.lineno for each in loop if each.positions and each.positions.lineno)
            says = any(each.opname == "FOR_ITER" or each.argval in _SAYS for each in loop)
            if len(lines) <= _SHORT and not says:
                found.append(Loop(jump.argval, jump.offset, lines, _looks(loop)))
    return found


def _looks(loop: list[dis.Instruction]) -> bool:
    names = [each.argval for each in loop if each.opname.startswith("LOAD") and isinstance(each.argval, str)]
    looks, sleeps = sum(name in _LOOKS for name in names), names.count("sleep")
    calls = sum(each.opname.startswith("CALL") for each in loop)
    decides = sum("IF" in each.opname for each in loop)
    keeps = any(each.opname.startswith("STORE") for each in loop)
    return looks == decides == 1 and calls <= looks + sleeps and not keeps
