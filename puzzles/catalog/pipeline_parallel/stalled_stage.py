"""pipeline_parallel.stalled_stage: every rank waits, and every rank has a reason."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cache

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Scale, Wrong, cases, drawn
from reference.pipeline_parallel import orders
from reference.pipeline_parallel.answers.find_stall import find_stall
from reference.pipeline_parallel.schedule import Action, Kind, Schedule
from reference.pipeline_parallel.walk import Walk


@dataclass(frozen=True)
class Scene:
    """A step that has come to a halt, and why: what only the oracle is told."""

    schedule: Schedule
    reason: str
    ranks: tuple[int, ...]
    hangs: str = ""  # the action from which its rank does not come back
    lost: str = ""  # the action whose result does not arrive


def swapped(schedule: Schedule, rank: int, one: str, other: str) -> Schedule:
    """The same, in which two actions of a rank have changed places."""
    pair = {Action.parse(one): Action.parse(other), Action.parse(other): Action.parse(one)}
    return changed(schedule, rank, lambda line: tuple(pair.get(action, action) for action in line))


def without(schedule: Schedule, rank: int, *gone: str) -> Schedule:
    """The same, in which a rank lacks some actions."""
    return changed(schedule, rank, lambda line: tuple(action for action in line if str(action) not in gone))


def changed(schedule: Schedule, rank: int, change: Callable[[tuple[Action, ...]], tuple[Action, ...]]) -> Schedule:
    lines = list(schedule.lines)
    lines[rank] = change(lines[rank])
    return Schedule(tuple(lines), schedule.placement, schedule.routes)


STEP, LONG, GPIPE = orders.one_f_one_b(4, 6), orders.one_f_one_b(8, 64), orders.gpipe(5, 3)
LIFO = Schedule(tuple(line[:3] + line[:2:-1] for line in GPIPE.lines), GPIPE.placement, GPIPE.routes)
FORWARD = orders.forward_only(orders.gpipe(3, 1), 4)
SCENES = {
    "rank 2 hangs": Scene(STEP, "computing", (2,), hangs="F2.3"),
    "an activation is lost": Scene(STEP, "message", (1, 2), lost="F1.4"),
    "a gradient is lost": Scene(STEP, "message", (3, 2), lost="B3.1"),
    "backward too early": Scene(swapped(STEP, 1, "F1.3", "B1.3"), "circle", (1, 2)),
    "one micro-batch fewer": Scene(without(STEP, 1, "F1.5", "B1.5"), "missing", (1,)),
    "one forward is forgotten": Scene(without(STEP, 2, "F2.2"), "missing", (2,)),
    "one backward is forgotten": Scene(without(STEP, 2, "B2.3"), "missing", (2,)),
    "the first rank hangs": Scene(GPIPE, "computing", (0,), hangs="F0.2"),
    "the last rank hangs": Scene(GPIPE, "computing", (4,), hangs="B4.0"),
    "last in, first out": Scene(LIFO, "computing", (4,), hangs="B4.0"),
    "the last gradient is lost": Scene(GPIPE, "message", (1, 0), lost="B1.2"),
    "lost in inference": Scene(FORWARD, "message", (1, 2), lost="F1.3"),
    "one fewer in inference": Scene(without(FORWARD, 0, "F0.3"), "missing", (0,)),
    "rank 6 of 8 hangs": Scene(LONG, "computing", (6,), hangs="B6.30"),
    "a circle far away": Scene(swapped(LONG, 6, "F6.40", "B6.40"), "circle", (6, 7)),
    "lost far away": Scene(LONG, "message", (7, 6), lost="B7.50"),
    "two stages": Scene(swapped(orders.one_f_one_b(2, 3), 0, "F0.2", "B0.2"), "circle", (0, 1)),
    "a single rank": Scene(orders.gpipe(1, 2), "computing", (0,), hangs="B0.1"),
}
OTHERS = {  # of which each check has one
    f"{kind}{stage}.{k} of {p} ranks and {m} micro-batches {'hangs' if hangs else 'is lost'}": Scene(
        orders.one_f_one_b(p, m), "computing", (stage,), hangs=f"{kind}{stage}.{k}"
    )
    if hangs
    else Scene(
        orders.one_f_one_b(p, m), "message", (stage, stage + (1 if kind == "F" else -1)), lost=f"{kind}{stage}.{k}"
    )
    for p, m in ((3, 5), (5, 7), (6, 4), (7, 9))
    for kind, stages in (("F", range(p - 1)), ("B", range(1, p)))
    for stage in stages
    for k in range(1, m)
    for hangs in (True, False)
}
MANY = {  # ranks, or micro-batches
    "the last of 10,000 ranks hangs": Scene(orders.gpipe(10_000, 1), "computing", (9999,), hangs="B9999.0"),
    "lost among 5,000 micro-batches": Scene(orders.one_f_one_b(2, 5000), "message", (1, 0), lost="B1.4800"),
}
NAMED = SCENES | OTHERS | MANY


def needed_by(scene: Scene, action: Action) -> Action | None:
    """The action of another rank whose result this one needs."""
    kind, stage, micro_batch = action
    other = stage - 1 if kind is Kind.FORWARD else stage + 1
    return Action(kind, other, micro_batch) if 0 <= other < scene.schedule.stages else None


@cache
def halted(scene: Scene) -> tuple[list[int], list[bool]]:
    """Let every rank continue that can: how much each has done, and whether it is inside an action."""
    walk, made = Walk(scene.schedule.lines), set()
    walk.go(lambda _, action: goes_on(scene, action, made), lambda _, action: made.add(action))
    return walk.at, [str(walk.next(rank)) == scene.hangs for rank in range(len(walk.lines))]


def goes_on(scene: Scene, action: Action, made: Collection[Action]) -> bool:
    """Whether an action has what it needs, and ends."""
    needed = needed_by(scene, action)
    return (needed is None or (needed in made and str(needed) != scene.lost)) and str(action) != scene.hangs


def what_the_ranks_say(case, rank):
    """Orders, and how far each rank has come."""
    scene = NAMED[case.scene]
    done, computing = halted(scene)
    return {"lines": [list(line) for line in scene.schedule.lines], "done": done, "computing": computing}


PUZZLE = Puzzle(
    name="pipeline_parallel.stalled_stage",
    title="Find the stage that stalls all ranks",
    statement="""
        A pipeline has come to a halt, and every rank that could continue has done so. You ask all, and each has an
        excuse: rank 0 waits for a gradient from rank 1, rank 1 waits for one from rank 2, ... Find out which it is that
        all ranks wait for, directly or not, and why. There is one reason:

            "computing"   a rank has what it needs, and does not come back from its action. Look at that machine.
            "message"     what a rank waits for has been computed, and so sent, but it did not come. Look at the link.
            "missing"     what a rank waits for, its neighbour never computes. Its order has a hole.
            "circle"      ranks wait for each other. Nothing is broken, but their orders cannot be followed.

        Rank r has stage r. Its next action is `lines[r][done[r]]`, unless it has done all of them. A forward needs the
        forward of the stage before on the same micro-batch, a backward needs the backward of the stage after. What the
        first stage needs forward, and the last one backward, is always there. A send returns at once.

        An action prints as F1.3: forward, stage 1, micro-batch 3. It is a tuple: `kind, stage, micro_batch = action`.
        `Action(Kind.FORWARD, 0, 3)` makes another one.

        Args:
            lines: of each rank, its actions in order.
            done: of each rank, how many of them it has finished.
            computing: of each rank, whether it is inside its next action. Else it waits, or has finished.

        Returns: the reason and the ranks that it concerns: ("computing", [rank]), ("message", [from, to]),
        ("missing", [the rank that has no such action]), or ("circle", [the ranks that wait for each other, ascending]).
        A rank that only waits for a circle is not in it.

        Budget: lines that grow with the number of ranks, not with that of micro-batches.
        """,
    function=find_stall,
    cases=cases(worlds=(1,), scene=tuple(SCENES)),
    drawn=(drawn(worlds=(1,), scene=tuple(OTHERS)), drawn(worlds=(1,), scene=tuple(OTHERS))),
    scale=Scale(cases(worlds=(1,), scene=tuple(MANY)), "the square of the number of ranks or of micro-batches"),
    inputs=what_the_ranks_say,
    oracle=lambda case, inputs: [(NAMED[case.scene].reason, list(NAMED[case.scene].ranks))],
    given=(Action, Kind),
    budgets=(
        Budget(
            Measure.LINES,
            target=lambda case: 20 + 12 * len(NAMED[case.scene].schedule.lines),
            optimum=lambda case: 10 + 10 * len(NAMED[case.scene].schedule.lines),
            why="nothing need be run again: ask a rank what it waits for, then ask that one",
        ),
    ),
    hints=(
        "Take a rank that has not finished. What does its next action need? What can you say of its sender?",
        "If what is needed is among `lines[source][:done[source]]`, it was sent. If it is nowhere in `lines[source]`, "
        "it never will be. Else it is still to be computed: then go to that rank and ask again.",
        "Remember which ranks you have asked. When you come to one of them again, those from there on are the circle.",
    ),
    wrong=(
        Wrong(
            "the rank that has done least",
            diagnosis=r"scene=an activation is lost.*result\[0\]: expected 'message', got 'computing'",
            body='return "computing", [min(range(len(done)), key=lambda rank: done[rank])]',
        ),
        Wrong(
            "the neighbour of the first rank that complains",
            diagnosis=r"scene=rank 2 hangs.*result\[1\]\[0\]: expected 2, got 1",
            edits=(("        rank = source\n", '        return "computing", [source]\n'),),
        ),
        Wrong(
            "what a rank will compute counts as sent",
            diagnosis=r"scene=rank 2 hangs.*result\[0\]: expected 'computing', got 'message'",
            edits=(("lines[source][: done[source]]", "lines[source]"),),
        ),
        Wrong(
            "what a rank is about to compute counts as sent",
            diagnosis=r"scene=rank 2 hangs.*result\[0\]: expected 'computing', got 'message'",
            edits=(("lines[source][: done[source]]", "lines[source][: done[source] + 1]"),),
        ),
        Wrong(
            "gradients come from the stage before",
            diagnosis=r"scene=.*: expected",
            edits=(("rank - 1 if kind is Kind.FORWARD else rank + 1", "(rank - 1) % len(lines)"),),
        ),
        Wrong(
            "from and to in the wrong order",
            diagnosis=r"scene=an activation is lost.*result\[1\]\[0\]: expected 1, got 2",
            edits=(("[source, rank]", "[rank, source]"),),
        ),
        Wrong(
            "a rank that waits for a circle is in it",
            diagnosis=r"scene=backward too early.*result\[1\]: expected 2 values, got 3 values",
            edits=(("sorted(asked[asked.index(rank) :])", "sorted(asked)"),),
        ),
        Wrong(
            "holes are circles",
            diagnosis=r"IndexError|scene=one micro-batch fewer.*: expected 'missing'",
            edits=(('        if needed not in lines[source]:\n            return "missing", [source]\n', ""),),
        ),
        Wrong(
            "only forwards can be missing",
            diagnosis=r"IndexError|scene=one backward is forgotten.*: expected 'missing'",
            edits=(("        if needed not in", "        if kind is Kind.FORWARD and needed not in"),),
        ),
        Wrong(
            "as many sent as the micro-batch's number says",
            diagnosis=r"scene=.*: expected 'computing', got 'message'",
            edits=(
                (
                    "        if needed in lines[source][: done[source]]:\n",
                    "        sent = [each.kind for each in lines[source][: done[source]]]\n"
                    "        if sent.count(kind) > micro_batch and needed in lines[source]:\n",
                ),
            ),
        ),
        Wrong(
            "the first rank is never through",
            diagnosis=r"IndexError.*(\n.*)*scene=lost in inference",
            edits=(("next(rank for rank, line in enumerate(lines) if done[rank] < len(line))", "0"),),
        ),
        Wrong(
            "each question goes through what all have done",
            diagnosis=r"more than 2 s of processor time for scene=the last of 10,000 ranks hangs: .*the square of",
            edits=(
                ("from reference", "from itertools import chain, islice\n\nfrom reference"),
                ("lines[source][: done[source]]:", "chain.from_iterable(map(islice, lines, done)):"),
            ),
        ),
        Wrong(
            "the step is run again",
            diagnosis=r"right, but it runs [\d,]+ lines where \d+ must do.*\n.*nothing need be run again",
            body="""
                def source_of(action):
                    return action.stage - 1 if action.kind is Kind.FORWARD else action.stage + 1

                sent = set()
                for line, finished in zip(lines, done):
                    for action in line[:finished]:
                        sent.add(action)
                waits = {}
                for rank, line in enumerate(lines):
                    if computing[rank]:
                        return "computing", [rank]
                    if done[rank] < len(line):
                        kind, stage, micro_batch = line[done[rank]]
                        source = source_of(line[done[rank]])
                        if Action(kind, source, micro_batch) in sent:
                            return "message", [source, rank]
                        if Action(kind, source, micro_batch) not in lines[source]:
                            return "missing", [source]
                        waits[rank] = source
                return "circle", [rank for rank, source in waits.items() if waits.get(source) == rank]
                """,
        ),
    ),
)
