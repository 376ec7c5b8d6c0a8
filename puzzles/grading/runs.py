"""Run a solution on a warm cluster, and take the run apart into cases: values, messages, costs."""

import contextlib
import io
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

from reference.cluster import EachRank, RankError, ResultError, TimeLimit
from reference.cluster.verdict import BUSY
from reference.trace import Op, Trace

from . import driver, narrow, overlap, schedules, text, values, witness
from .drives import plain
from .pool import Pool
from .puzzle import Case, Inputs, Measure, Puzzle
from .sent import bytes_sent
from .values import Comparison

Ran = TypeVar("Ran")

_METERS = {Measure.PEAK_BYTES: "peak", Measure.KEPT_BYTES: "kept", Measure.LINES: "lines"}
_CROWDED = 4  # programs that want to run, for each processor
_GROUPS = 3  # that a rank makes in a case at most, where a drive or a solution makes groups
_OF_SCHEDULES = (Measure.BUBBLE, Measure.ACTIVATIONS, Measure.ALL_ACTIVATIONS, Measure.ROOM)


@dataclass(frozen=True)
class Solution:
    """A text to grade, and the file name that its lines go by."""

    puzzle: Puzzle
    source: str
    filename: str


@dataclass(frozen=True)
class Circumstances:
    """What is known of a call that has run cases.

    Attributes:
        output: what the ranks printed.
        patched: names that the solution has replaced in the ranks.
        left: switches of torch and the process that it has left in another state.
        loose: (operation, line) of what it asked torch.distributed for outside of every case.
        hidden: bytes that the kernel saw between the ranks, and no trace has.
    """

    output: str
    patched: tuple[str, ...]
    left: tuple[str, ...]
    loose: tuple[tuple[Op, int], ...]
    hidden: int


@dataclass(frozen=True)
class Run:
    """One case that every rank has finished.

    Attributes:
        comparison: what came of holding the values against the oracle, or the judge's claims.
        readings: by group rank, what the meters said.
        said: why the judge is not content; "" where it is, or where there is none.
        objection: the same, of values that an oracle has found right: then it is about their cost.
        step: of a schedule puzzle, the step that the orders make.
        of_call: what is known of the whole call, which may have run other cases, too.
        shared: of a puzzle that asks for new tensors, names of arguments that share memory with a result.
    """

    case: Case
    inputs: Inputs
    comparison: Comparison
    trace: Trace
    readings: tuple[dict[str, float], ...]
    said: str
    objection: str
    of_call: Circumstances
    shared: tuple[str, ...] = ()
    step: schedules.Step | None = None

    @property
    def right(self) -> bool:
        """True where values were compared, and all are right."""
        return self.comparison.right and not self.said

    @property
    def output(self) -> str:
        """What the ranks printed during the whole call."""
        return self.of_call.output

    @property
    def hidden(self) -> int:
        """Bytes that went between the ranks in the whole call, and that no trace has."""
        return self.of_call.hidden

    @cached_property
    def worst_sender(self) -> int:
        """The rank that sends the most bytes."""
        return self.bytes_sent.index(max(self.bytes_sent))

    @cached_property
    def bytes_sent(self) -> list[int]:
        """By global rank."""
        return bytes_sent(self.trace)

    @cached_property
    def microseconds(self) -> float:
        """How long it takes on a modelled network, with the work that the drive has noted."""
        notes = [overlap.notes_of(values) for values in self.comparison.got]
        return overlap.microseconds(self.trace, dict(zip(self.case.global_ranks, notes, strict=True)))

    def measured(self, measure: Measure) -> float:
        """What this case cost: the worst rank counts."""
        if measure is Measure.BYTES_SENT:
            return max(self.bytes_sent)
        if measure is Measure.STEPS:
            return self.trace.steps
        if measure is Measure.CALLS:
            return max(len(events) for events in self.trace.events)
        if measure is Measure.MICROSECONDS:
            return self.microseconds
        if measure in _OF_SCHEDULES:
            return self.step.measured(measure) if self.step else math.inf
        return max(reading.get(_METERS[measure], 0) for reading in self.readings)

    @property
    def narrowed(self) -> str:
        """That a message has fewer bits than the numbers that it brings; "" where none has."""
        event = narrow.narrowed(self.inputs, [event for events in self.trace.events for event in events])
        return narrow.sentence(self.case, self.inputs, event) if event else ""

    @property
    def cut(self) -> str:
        """That a message brings whole numbers where they are none, if values are wrong; "" where none does."""
        event = narrow.cut(self.inputs, [event for events in self.trace.events for event in events])
        return narrow.sentence(self.case, self.inputs, event) if event else ""

    def operations(self) -> Iterator[tuple[Op, str, int, int]]:
        """(operation, file, line, rank) of every call."""
        for events in self.trace.events:
            yield from ((event.op, event.file, event.line, event.rank) for event in events)


class Broken(Exception):
    """A call ended in an error: the cluster's `error`, in the first `case` of the call or later, after `output`."""

    def __init__(self, error: RankError, case: Case, output: str) -> None:
        super().__init__(str(error))
        self.error, self.case, self.output = error, case, output

    @property
    def busy(self) -> bool:
        """True where the machine was too busy, which says nothing of the solution."""
        return self.error.kind == BUSY

    @property
    def late(self) -> bool:
        """True where it took too long, whatever the reason."""
        return isinstance(self.error, TimeLimit)


def patiently(run: Callable[..., Ran], *arguments: Any) -> Ran:
    """Call `run`; once more where the machine was too busy for it. Raises Broken.

    A time limit counts no wait for a processor that the kernel writes down. It does not write down all that a crowded
    machine makes slow, such as messages that the kernel itself has no time to deliver.
    """
    try:
        return run(*arguments)
    except Broken as broken:
        if not (broken.busy or (broken.late and crowded())):
            raise
    return run(*arguments)


def crowded() -> bool:
    """Whether far more programs want to run than there are processors."""
    return os.getloadavg()[0] > _CROWDED * (os.cpu_count() or 1)


def run_cases(solution: Solution, cases: Sequence[Case], pool: Pool) -> list[Run]:
    """Run cases of one world size in one call. Raises Broken."""
    return patiently(run_once, solution, cases, pool)


def run_once(solution: Solution, cases: Sequence[Case], pool: Pool) -> list[Run]:
    """As `run_cases`, with one try: the ranks are those that stand ready now."""
    puzzle = solution.puzzle
    world_size = cases[0].world_size
    inputs = [_inputs(puzzle, case) for case in cases]
    job = driver.Job(
        source=solution.source,
        filename=solution.filename,
        entry=puzzle.entry,
        drive=puzzle.drive,
        wants_group=puzzle.takes_group,
        meters=tuple(name for budget in puzzle.budgets if (name := _METERS.get(budget.measure))),
        new=puzzle.new,
        members=tuple(case.members for case in cases),
        given=text.given(puzzle),
    )
    own = EachRank(
        [[_own(case, given, rank) for case, given in zip(cases, inputs, strict=True)] for rank in range(world_size)]
    )
    printed = io.StringIO()
    cluster = pool.cluster(world_size)
    try:
        with contextlib.redirect_stdout(printed), witness.Traffic.of(cluster) as traffic:
            reports, trace = cluster.trace(driver.run, job, own)
    except RankError as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        raise Broken(error, cases[0], printed.getvalue()) from None
    try:
        patched, left = (
            tuple(sorted({str(name) for report in reports for name in report[of]})) for of in ("patched", "left")
        )
        parts = [_part(case, [report["cases"][index] for report in reports]) for index, case in enumerate(cases)]
    except (KeyError, IndexError, TypeError, ValueError):
        tampered = ResultError("a report that makes no sense", "the solution has changed what its rank reports", rank=0)
        raise Broken(tampered, cases[0], printed.getvalue()) from None
    loose = _loose(trace, parts, solution.filename)
    hidden = traffic.hidden(trace, 0 if puzzle.drive is plain and not _makes_groups(puzzle) else _GROUPS * len(cases))
    circumstances = Circumstances(printed.getvalue(), patched, left, loose, hidden)
    return [
        _run(puzzle, case, given, part, trace, circumstances)
        for case, given, part in zip(cases, inputs, parts, strict=True)
    ]


def _makes_groups(puzzle: Puzzle) -> bool:
    """Whether a solution may make groups of its own."""
    return any(call.__name__ in ("new_group", "new_subgroups") for call in puzzle.calls)


def _loose(trace: Trace, parts: Sequence[list[Any]], filename: str) -> tuple[tuple[Op, int], ...]:
    """(operation, line) of what a text has asked for outside of every case, such as while it was loaded."""
    spans = [[part[rank]["ticks"] for part in parts if part[rank]] for rank in range(trace.world_size)]
    found = (
        (event.op, event.line)
        for events, own in zip(trace.events, spans, strict=True)
        for event in events
        if event.file == filename and not any(begin <= event.posted < end for begin, end in own)
    )
    return tuple(dict.fromkeys(found))


def _own(case: Case, inputs: Inputs, rank: int) -> dict[str, Any] | None:
    """What a global rank is given in a case; None where it is not in the group."""
    return inputs[case.global_ranks.index(rank)] if rank in case.global_ranks else None


def _inputs(puzzle: Puzzle, case: Case) -> Inputs:
    """What the drive is given on each rank; of a schedule puzzle on all the same: the arguments of every rank."""
    if puzzle.pipe is None:
        return [dict(puzzle.inputs(case, rank)) for rank in range(case.n)]
    pipe = puzzle.pipe(case)
    every = [dict(puzzle.inputs(case, rank)) for rank in range(pipe.ranks)]
    return [{"pipe": pipe, "every": every}] * case.n


def _part(case: Case, reports: list[Any]) -> list[dict[str, Any] | None]:
    """What each global rank reports of one case; None for those that are not in its group."""
    return [_checked(reports[rank]) if rank in case.global_ranks else None for rank in range(case.world_size)]


def _checked(report: Any) -> dict[str, Any]:
    """A rank's report of one case, as `driver` describes it. Raises what Python raises where it is no such thing."""
    begin, end = report["ticks"]
    meters = {name: float(report[name]) for name in _METERS.values() if name in report}
    return {"values": dict(report["values"]), "ticks": (int(begin), int(end)), "shared": _names(report), **meters}


def _names(report: Any) -> tuple[str, ...]:
    return tuple(dict.fromkeys(str(name)[:80] for name in report["shared"]))


def _run(
    puzzle: Puzzle, case: Case, inputs: Inputs, part: list[Any], whole: Trace, circumstances: Circumstances
) -> Run:
    """One case out of a call. `part` is what each global rank reports about it."""
    trace = Trace(case.world_size, tuple(map(_during, whole.events, part)), whole.returned)
    mine = [part[rank] for rank in case.global_ranks]
    said = objection = ""
    step, told = None, [report["values"] for report in mine]
    if puzzle.oracle:
        comparison = values.compare(case, told, values.expectations(puzzle, case, inputs), puzzle.tolerance)
    if puzzle.pipe:
        step, said, comparison = _step(puzzle.pipe(case), case, told)
    known = bool(puzzle.oracle or puzzle.pipe)
    if puzzle.judge and (not known or (comparison.right and not said)):
        outputs = tuple({name: values.decoded(value) for name, value in report["values"].items()} for report in mine)
        claims = puzzle.judge(case, inputs, list(outputs), trace)
        complaint = next((claim.otherwise for claim in claims if not claim.holds), "")
        if known:
            objection = complaint
        else:
            said = complaint
            comparison = Comparison(case, len(claims), (), outputs, outputs)
    shared = tuple(dict.fromkeys(name for report in mine for name in report["shared"]))
    return Run(case, inputs, comparison, trace, tuple(mine), said, objection, circumstances, shared, step)


def _step(pipe: schedules.Pipe, case: Case, told: list[Any]) -> tuple[schedules.Step | None, str, Comparison]:
    """The step that the orders of a case make, why they make none, and what came of running it."""
    comparison = values.compare(case, told, schedules.one_process(pipe, case.n), schedules.TOLERANCE)
    step, said = schedules.judged(pipe, comparison.got)
    lines = step.simulation.schedule.lines if step else ()
    return step, said, replace(comparison, compared=comparison.compared + sum(map(len, lines)))


def _during(events: tuple, report: dict[str, Any] | None) -> tuple:
    """A rank's events within one case."""
    if report is None:
        return ()
    begin, end = report["ticks"]
    return tuple(event for event in events if begin <= event.posted < end)
