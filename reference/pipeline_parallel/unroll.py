"""Lines of a schedule from tables of phases, which is how papers draw them.

    [(3, "F"), (5, "F B"), (3, "B")]        3 times a forward, 5 times a forward and a backward, 3 times a backward

A word is a kind of action and, where a rank has several kinds of work, which of them: `F0`, `I1`. It takes the next
piece of that work. `W` finishes the backward that was begun first of those that are not finished, wherever it was, and
`W0` the first of that work.
"""

from collections.abc import Sequence

from reference.errors import BadInput

from .schedule import Action, Kind

Table = Sequence[tuple[int, str]]
"""How often, and a pattern of words."""

Work = Sequence[tuple[int, int]]
"""Stages and micro-batches, in the order in which they are to be done."""


def unroll(table: Table, work: Sequence[Work]) -> list[Action]:
    """The line that a table describes.

    Args:
        table: phases, in order; one that is repeated less than once is left out.
        work: what `F0`, `F1`, ... take one after the other, and `B0` and `I0`, `B1` and `I1`, ... again from its start.

    Raises:
        BadInput: if a word comes more often than there is work for it.
    """
    forward, backward = ([iter(each) for each in work] for _ in range(2))
    unfinished: list[tuple[int, tuple[int, int]]] = []
    line = []
    for word in (word for times, pattern in table for _ in range(times) for word in pattern.split()):
        kind, which = Kind(word[0]), int(word[1:] or 0)
        try:
            if kind is Kind.WEIGHT:
                at = next(at for at, (work_of, _) in enumerate(unfinished) if word == "W" or work_of == which)
                piece = unfinished.pop(at)[1]
            else:
                piece = next((forward if kind is Kind.FORWARD else backward)[which])
        except (IndexError, StopIteration):
            raise BadInput(f"{word} has no work left to take") from None
        if kind is Kind.INPUT:
            unfinished.append((which, piece))
        line.append(Action(kind, *piece))
    return line
