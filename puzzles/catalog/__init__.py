'''All puzzles, each described once: `puzzles/catalog/<chapter>/<puzzle>.py` defines one `PUZZLE`.

How to write a puzzle
=====================
Start from one of the examples: `ranks/ring_shift.py` (returns a value), `collectives/ring_all_reduce.py` (changes its
argument, uses helpers), `networks/ring_time.py` (a formula, no ranks). 100 to 200 lines are enough:

    PUZZLE = Puzzle(
        name="ranks.ring_shift",              # the learner's file is puzzles/ranks/ring_shift.py
        title="Pass it on around a ring",     # first line of the stub's docstring; no full stop
        statement="""...""",                  # the rest of it: what, Args with shapes, Returns, Budget
        function=ring_shift,                  # the reference function; the learner's has its name and signature
        cases=cases(worlds=(2, 3, 4, 1, 5, 8), length=(6,)),
        inputs=lambda case, rank: {"x": case.tensor(rank, case.length)},
        oracle=lambda case, inputs: [inputs[rank - 1]["x"] for rank in range(case.n)],
        calls=POINT_TO_POINT,
        budgets=(Budget(Measure.STEPS, target=lambda case: min(1, case.n - 1), why="..."),),
        hints=("...", "..."),
        wrong=(Wrong("the wrong way around", diagnosis=r"rank 0 holds what rank 2", edits=(("+ 1", "- 1"),)), ...),
    )

Then add the file's name to `ORDER` in the chapter's `__init__.py`, run `python -m puzzles.grading.stubs` (it writes
the stub that ships, puzzles/<chapter>/<puzzle>.py) and `pytest tests/grading/test_catalog.py -k <name>`, which holds
the puzzle to everything that is asked of it below.

**function.** Lives in `reference/`. The stub is its imports, its signature, title and statement as docstring, and
`raise NotImplementedError`. The solution is its source with the private functions and constants that it uses. Helpers
that the learner gets go into `given`; the stub imports them and they may be called. Where the reference is more than a
learner needs, write the body of a simpler solution as `answer`.

**cases.** `cases(worlds=..., name=values, ...)` is every world size with every combination, each with its own seed.
Values may depend on the group's size: `root=lambda n: {0, n - 1}`. Parameters read as `case.length`; `case.n` is the
number of ranks. Cover odd world sizes, lengths that n does not divide, 1 rank, and a group that is not the world:
`cases(worlds=(4,), members=(0, 2, 3), length=(5,))`. Put the case that explains best first: the first failure is what
the learner reads. Three or four cases at each world size, and one at 8 ranks where ranks say little: what is drawn has
more of them, and the whole check must stay below a second.
`python -m tests.grading.mutants <name>` makes small mistakes by rule and shows those that no case has noticed.

**drawn.** A table of known cases must not be right, so each check draws some anew: `drawn(worlds=..., length=range(2,
40), root=lambda so_far: range(so_far.n))`, or `on_any_ranks(...)` for one case on a few ranks and one on more than any
other has. The seed of a check also changes the values of all `cases`; the verdict names it, and `--seed` repeats it.

**values.** `case.tensor` deals numbers whose sums are exact in any order, and in no narrower dtype: signs, fractions,
large ones, a zero on all ranks. `case.factors` does so for products, `case.normal` where nothing is exact. See `exact`.
Where values only move, `tolerance=0` asks for every bit; where a new tensor is asked for, `new=True` looks for one.

**scale.** A formula or a search has cases so large that only the right order of growth ends within two seconds of
processor time: `Scale(cases(worlds=(1,), ranks=(10**12,)), "the number of ranks", oracle=...)`. It sees loops in C, and
arrays with an element for each step, which a count of lines does not. Its oracle is quick; tests hold it to the other.

**inputs.** The arguments of one group rank, by name, without `group`. `case.tensor(rank, *shape, dtype=, name=)` gives
numbers whose sums are exact; `case.normal` gives normally distributed float64. Without `inputs`, the
parameters of the case are the arguments.

**oracle.** Plain code of one process, from the inputs of all ranks to what each must have: a list by group rank of
return values, or of dicts {argument: its value afterwards}. Name a returned value "returns" in such a dict. Tensors,
numbers, strings, and lists of them are compared by value, dtype and shape. Argument tensors that the oracle does not
name must stay as they are, those in lists and dicts too, unless they are listed in `scratch`. Do not call the reference
function: an oracle that shares its mistakes proves nothing. `tolerance` is relative; by default integers and whole
numbers are exact.

**judge.** For answers that cannot be known before, such as a measured latency: (case, inputs, outputs, trace) ->
[Claim(holds, "what to say otherwise"), ...]. Claim only what holds on a busy machine: messages of at least two sizes
were exchanged (`trace.messages`), a value is positive, one is larger than another, a factor of ten. Beside an oracle,
a judge is asked about right values only, and what it says is about their cost: which rank may speak when, which sends
to which.

**drive.** How the function is called on a rank, in `puzzles.grading.drives`. `plain` is the default. `there_and_back`
is for differentiable functions: inputs {"x": ..., "upstream": ...}, oracle [{"returns": ..., "x.grad": ...}, ...]. A
drive of your own goes there, too (`drives/<chapter>.py`): it runs next to the learner's code, so it must not know the
answer.

**pipe.** For schedules: the function says in which order one rank of a pipeline computes, as a list of `Action`s, and
`pipe` which rank has which stage and what an action costs (`puzzles.grading.schedules`). With `drive=in_order` the
orders of all ranks are proved to make a step, simulated, run on ranks, drawn, and their loss and gradients compared
with one process: no oracle is needed. A judge may still object to what is right. `inputs` are asked for each rank of
the pipe; where its ranks are more than the case's, it is planned and not run. An example:
`pipeline_parallel/gpipe_order.py`.

**calls.** Functions of torch.distributed. `POINT_TO_POINT`, or `(dist.all_reduce,)`. Rank, world size and translation
between group and global ranks are always allowed.

**without.** Names of torch that are the answer itself, such as `scaled_dot_product_attention`: a text that uses one is
refused.

**budgets.** What a right answer may cost. `target` is what passes and `optimum` the best that is known by this measure
alone (the target, if left out); both from a case, and best from `reference.collectives.cost`. `why` is the line to read
for a solution above it. Measures: BYTES_SENT, PEAK_BYTES and KEPT_BYTES of the worst rank, STEPS (longest chain of
messages), CALLS, LINES (of a formula), MICROSECONDS (on a modelled link, with the work that the drive notes between the
calls: what does not overlap shows, in every run alike; see `puzzles.grading.overlap`). Of schedules BUBBLE, ACTIVATIONS
of the worst rank, ALL_ACTIVATIONS, and ROOM, the messages that must find a place where sends block: to limit it refuses
orders that work with buffered sends alone. The two of memory count the tensors that are made while the solution runs,
by whatever it calls; not what its drive makes before and after. A puzzle that neither communicates nor makes tensors
has LINES as its cost.

**hints.** At least two. The first asks the question that leads on; the last is nearly the answer. Hints and title are
written out as plain strings: `facts` reads them without running anything.

**wrong.** At least four mistakes that people really make, among them one with the right answer at the wrong cost.
Small `edits` of the solution's text, (old, new) where old occurs once; or another `body`; or a whole `text`. The
`diagnosis` is a regular expression that must be found in the verdict's reason (`puzzles.grading.diagnosis` tells what
it can say). If the reason does not help, improve the cases or the diagnosis, not the regular expression.

**body.** For programs to mend: the broken body that the stub has instead of `raise NotImplementedError`. It must fail,
with a reason that is worth reading.
'''

import ast
import difflib
import functools
import importlib
import pkgutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from reference.errors import BadInput

if TYPE_CHECKING:  # a list of names needs no torch
    from ..grading.puzzle import Puzzle

CHAPTERS = (
    "ranks",
    "collectives",
    "networks",
    "memory",
    "data_parallel",
    "zero",
    "tensor_parallel",
    "sequence_parallel",
    "pipeline_parallel",
    "zero_bubble",
    "context_parallel",
    "expert_parallel",
    "composition",
    "planning",
    "resilience",
    "compression",
    "decentralized",
    "frameworks",
)


@dataclass(frozen=True)
class Facts:
    """What a list or a hint says of a puzzle."""

    title: str
    hints: tuple[str, ...]


@functools.cache
def names() -> tuple[str, ...]:
    """The names of all puzzles, in the order in which they are to be solved."""
    orders = {chapter: importlib.import_module(f"{__name__}.{chapter}").ORDER for chapter in _chapters()}
    return tuple(f"{chapter}.{puzzle}" for chapter, order in orders.items() for puzzle in order)


def find(name: str) -> "Puzzle":
    """The puzzle of this name; its last part is enough where no two puzzles share it.

    Raises BadInput with suggestions where there is none.
    """
    return importlib.import_module(f"{__name__}.{canonical(name)}").PUZZLE


def facts(name: str) -> Facts:
    """Title and hints of a puzzle, read from its description and not by running it: to run it takes torch, two seconds.

    Raises BadInput with suggestions where there is no such puzzle.
    """
    file = Path(__file__).parent.joinpath(*canonical(name).split(".")).with_suffix(".py")
    statements = ast.parse(file.read_text(encoding="utf-8")).body
    (call,) = (each.value for each in statements if isinstance(each, ast.Assign) and _names_puzzle(each))
    written = {keyword.arg: keyword.value for keyword in call.keywords}
    return Facts(*(ast.literal_eval(written[field]) for field in ("title", "hints")))


def _names_puzzle(statement: ast.Assign) -> bool:
    return any(isinstance(target, ast.Name) and target.id == "PUZZLE" for target in statement.targets)


def canonical(name: str) -> str:
    """The whole name of a puzzle. Raises BadInput with suggestions where there is none."""
    return name if name in names() else _guess(name)


def select(pattern: str) -> list[str]:
    """The names of a chapter, or the one puzzle of this name. Raises BadInput."""
    chapter = [each for each in names() if each.startswith(f"{pattern}.")]
    return chapter or [pattern if pattern in names() else _guess(pattern, CHAPTERS)]


def _chapters() -> list[str]:
    found = [each.name for each in pkgutil.iter_modules(__path__) if each.ispkg]
    return sorted(found, key=lambda chapter: (CHAPTERS.index(chapter) if chapter in CHAPTERS else 99, chapter))


def _guess(name: str, also: tuple[str, ...] = ()) -> str:
    """The one puzzle whose name ends so. Raises BadInput with what may be meant: names of puzzles, or of `also`."""
    ends = [each for each in names() if each.partition(".")[2] == name]
    if len(ends) == 1:
        return ends[0]
    short = {each.partition(".")[2]: each for each in names()}
    close = difflib.get_close_matches(name.lower(), [*also, *names(), *short], n=3, cutoff=0.5)
    meant = list(dict.fromkeys([*ends, *(short.get(each, each) for each in close)]))
    instead = f"did you mean {', '.join(meant)}?" if meant else "`rankwise puzzles` lists them"
    raise BadInput(f"there is no puzzle {name!r}: {instead}")
