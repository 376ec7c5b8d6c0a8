"""Programs to run on a few ranks, and what must come of them.

A `Mistake` is a program with a bug and the words that its author must read. A `Correct` program has no bug, however
much it may look like one, and must never be accused. Both are plain data, made by decorating the program, so that
the tests and the benchmark run the same cases:

    @mistake(row=1, ranks=2, error="DeadlockError", blames=(0, 1), says="deadlock", plain=HANGS)
    def every_rank_receives_first():
        peer = 1 - dist.get_rank()
        dist.recv(torch.zeros(4), src=peer)  # <- here
        dist.send(torch.ones(4), dst=peer)

The comment `# <- here` marks the line to blame. Other marks have other names, and both `blames` and `says` can use
them: `blames={0: "here", 1: "there"}` blames rank 0 at one line or rank 1 at the other, and `says=r":{there}\\b"`
asks for the number of the other line in the message.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import ModuleType

MARK = re.compile(r"# <- (\w+)")


class Outcome(StrEnum):
    """What becomes of a program on gloo without the watch."""

    HANGS = "hangs"  # no rank says anything, some rank never returns
    PASSES = "passes"  # every rank returns, whatever it computed
    RAISES = "raises"  # some rank raises an error of its own
    CLOSED = "closed"  # all that is said is that a peer closed the connection
    ABORTS = "aborts"  # a signal, or an exit without a word


@dataclass(frozen=True)
class Mistake:
    """A program with a bug, and the error that must end it.

    `blames` maps each rank that may be blamed to the lines it may be blamed for. Every pattern of `says` must be found
    in the message. `deadline` is None where the verdict needs no time limit, else the limit in seconds to run it with.
    """

    name: str
    row: int | None  # of the bug zoo; None for a row of our own
    world_size: int
    program: Callable[..., object]
    args: tuple[object, ...]
    error: str  # a class of reference.cluster.errors
    blames: Mapping[int, frozenset[int]]
    says: tuple[str, ...]
    plain: Outcome
    deadline: float | None
    file: str


@dataclass(frozen=True)
class Correct:
    """A program without a bug. It checks its own results, so that "not accused" also means "not disturbed"."""

    name: str
    world_size: int
    program: Callable[..., object]
    args: tuple[object, ...]


def mistake(
    *,
    row: int | None = None,
    ranks: int,
    error: str,
    blames: Iterable[int] | Mapping[int, str],
    says: str | Sequence[str],
    plain: Outcome,
    args: tuple[object, ...] = (),
    deadline: float | None = None,
) -> Callable[[Callable | tuple[Mistake, ...]], tuple[Mistake, ...]]:
    """Make cases of a program. Decorators stack: each adds a case, for other `ranks` or other `args`."""

    def add(target: Callable | tuple[Mistake, ...]) -> tuple[Mistake, ...]:
        program, earlier = (target[0].program, target) if isinstance(target, tuple) else (target, ())
        marks = marked_lines(program)
        places = blames if isinstance(blames, Mapping) else dict.fromkeys(blames, "here")
        case = Mistake(
            name=_name(program, ranks, args),
            row=row,
            world_size=ranks,
            program=program,
            args=args,
            error=error,
            blames={rank: marks[mark] for rank, mark in places.items()},
            says=tuple(_fill(text, marks) for text in ([says] if isinstance(says, str) else says)),
            plain=plain,
            deadline=deadline,
            file=inspect.getsourcefile(program) or "",
        )
        return (case, *earlier)

    return add


def correct(
    *ranks: int, args: tuple[object, ...] = ()
) -> Callable[[Callable | tuple[Correct, ...]], tuple[Correct, ...]]:
    """Make correct cases of a program, one for each world size. Decorators stack."""

    def add(target: Callable | tuple[Correct, ...]) -> tuple[Correct, ...]:
        program, earlier = (target[0].program, target) if isinstance(target, tuple) else (target, ())
        return (*(Correct(_name(program, n, args), n, program, args) for n in ranks), *earlier)

    return add


def collect(*modules: ModuleType) -> tuple:
    """All cases of the modules, in the order in which they are written."""
    values = [value for module in modules for value in vars(module).values()]
    return tuple(case for value in values if isinstance(value, tuple) for case in value if _is_case(case))


def marked_lines(program: Callable) -> dict[str, frozenset[int]]:
    """The line numbers of each mark in the program's source: `{"here": {17}, "there": {21}}`."""
    lines, first = inspect.getsourcelines(program)
    marks: dict[str, set[int]] = {}
    for number, line in enumerate(lines, start=first):
        for mark in MARK.findall(line):
            marks.setdefault(mark, set()).add(number)
    return {mark: frozenset(numbers) for mark, numbers in marks.items()}


def _name(program: Callable, ranks: int, args: tuple[object, ...]) -> str:
    said = [str(ranks), *(getattr(arg, "__name__", str(arg)) for arg in args)]
    return f"{program.__name__}[{'-'.join(said)}]"


def _fill(text: str, marks: Mapping[str, frozenset[int]]) -> str:
    """Put line numbers where a pattern names a mark; the braces of regular expressions hold digits, not names."""
    return re.sub(r"\{([a-z]+)\}", lambda field: "(?:" + "|".join(map(str, sorted(marks[field[1]]))) + ")", text)


def _is_case(value: object) -> bool:
    return isinstance(value, (Mistake, Correct))
