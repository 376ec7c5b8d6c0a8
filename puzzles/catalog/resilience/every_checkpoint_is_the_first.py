"""resilience.every_checkpoint_is_the_first: a run whose checkpoints all load well, and all hold the same."""

import torch.distributed as dist

from puzzles.grading.drives.resilience import a_training, told
from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, case, cases, on_any_ranks
from reference.resilience.answers.saving import train


def what_each_step_leaves(case, inputs):
    """The state after each step, by the same update, in one process."""
    found = []
    for each in inputs:
        now, written = [x.clone() for x in each["state"].values()], []
        for step in range(1, case.steps + 1):
            now = [2 * x + 1 for x in now]
            written.append([step, *map(told, now)])
        found.append({"written": written, "state": now})
    return found


BROKEN = """
    room, waits = {}, []
    for step in range(1, steps + 1):
        update()
        for name, x in state.items():
            room.setdefault(name, x.clone())  # memory for a copy, taken once
        waits.append(behind(lambda step=step: write(step, room)))
    for wait in waits:
        wait()
    dist.barrier(group)
    """

PUZZLE = Puzzle(
    name="resilience.every_checkpoint_is_the_first",
    title="Every checkpoint is the first",
    statement="""
        A run saves after each step, behind the next one. Every checkpoint is complete, has its checksums, and can be
        loaded; and a run that resumes from step 900 has the loss of step 1. Find out why, and mend it. (A second
        mistake waits behind the first.)

        Args:
            steps: how many to take; steps count from 1.
            state: tensors by name.
            update: `update()` takes a step, and changes `state` in place.
            behind: `wait = behind(do)` lets a thread call `do()`, some time from now, one such call after another;
                `wait()` returns when that is done.
            write: `write(step, tensors)` writes this rank's part of the checkpoint of a step.
            group: the ranks, which end together: one barrier, after all is written.

        Afterwards each step was written once, in order, with the values that its update has left.

        Budget: memory for one copy of the state, however many steps there are.
        """,
    function=train,
    body=BROKEN,
    cases=cases(worlds=(2, 3, 1, 4, 5), length=(4,), steps=(3,))
    + cases(worlds=(4,), members=(0, 2, 3), length=(3,), steps=(4,)),
    drawn=on_any_ranks(length=range(1, 9), steps=range(2, 6)),
    large=case(2, length=9_000_000, steps=3),
    inputs=lambda case, rank: {
        "steps": case.steps,
        "state": {"weight": case.tensor(rank, case.length), "bias": case.tensor(rank, 2, name="bias")},
    },
    oracle=what_each_step_leaves,
    tolerance=0,
    drive=a_training,
    calls=(dist.barrier,),
    budgets=(
        Budget(
            Measure.PEAK_BYTES,
            target=lambda case: 4 * (case.length + 2),
            why="a step that waits until the last copy is written can use its memory again",
        ),
        Budget(Measure.CALLS, target=lambda case: 1, why="the ranks wait for each other once, at the end"),
    ),
    hints=(
        "Print what `room` holds after the second step. Which line puts the values of the second step there?",
        "`dict.setdefault` keeps what is there. Copy into the memory that was taken: `room[name].copy_(x)`. Then check "
        "again: who else reads `room` at that moment?",
        "The thread may still be writing the last copy. Wait for it before copying over it: `if wait: wait()`, between "
        "`update()` and the copy.",
    ),
    wrong=(
        Wrong(
            "copied into, while the last copy is being written",
            diagnosis=r"written\[0\]\[1\]\[0\]: expected",
            edits=(("        if wait:\n            wait()\n        for", "        for"),),
        ),
        Wrong(
            "no copy, for the thread is quick",
            diagnosis=r"written\[0\]\[1\]\[0\]: expected",
            body="""
                waits = []
                for step in range(1, steps + 1):
                    update()
                    waits.append(behind(lambda step=step: write(step, state)))
                for wait in waits:
                    wait()
                dist.barrier(group)
                """,
        ),
        Wrong(
            "the step is read when the thread runs",
            diagnosis=r"written\[0\]\[0\]: expected 1, got",
            body="""
                waits = []
                for step in range(1, steps + 1):
                    update()
                    room = {name: x.clone() for name, x in state.items()}
                    waits.append(behind(lambda: write(step, room)))
                for wait in waits:
                    wait()
                dist.barrier(group)
                """,
        ),
        Wrong(
            "copied before the step",
            diagnosis=r"written\[0\]\[1\]\[0\]: expected",
            body="""
                room, wait = {name: x.clone() for name, x in state.items()}, None
                for step in range(1, steps + 1):
                    if wait:
                        wait()
                    for name, x in state.items():
                        room[name].copy_(x)
                    update()
                    wait = behind(lambda step=step: write(step, room))
                wait()
                dist.barrier(group)
                """,
        ),
        Wrong(
            "a save that comes too early is left out",
            diagnosis=r"written",
            body="""
                room = {name: x.new_empty(x.shape) for name, x in state.items()}
                for step in range(1, steps + 1):
                    update()
                    if step % 2:
                        for name, x in state.items():
                            room[name].copy_(x)
                        behind(lambda step=step: write(step, room))()
                dist.barrier(group)
                """,
        ),
        Wrong(
            "a copy for each step",
            diagnosis=r"right, but it keeps alive [\d,]+ B where [\d,]+ must do.*\n.*can use its memory again",
            body="""
                waits = []
                for step in range(1, steps + 1):
                    update()
                    room = {name: x.clone() for name, x in state.items()}
                    waits.append(behind(lambda step=step, room=room: write(step, room)))
                for wait in waits:
                    wait()
                dist.barrier(group)
                """,
        ),
        Wrong(
            "all ranks wait after each step",
            diagnosis=r"right, but a rank makes \d calls where 1 must do.*\n.*once, at the end",
            edits=(("        wait = behind", "        dist.barrier(group)\n        wait = behind"),),
        ),
    ),
)
