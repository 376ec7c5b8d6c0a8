"""resilience.async_without_later_values: what is written behind training is what was there when it was asked for."""

import torch
import torch.distributed as dist

from puzzles.grading.drives.resilience import behind_training
from puzzles.grading.puzzle import Budget, Claim, Measure, Puzzle, Wrong, case, cases, on_any_ranks
from reference.resilience.answers.saving import save_behind

from .common import comes_before, logs_of

SAVES = 3  # that the drive asks for


def state_of_a_rank(case, rank):
    """A parameter, its moment, and the optimizer's count of steps, which torch keeps in a tensor; and two numbers."""
    state = {
        "weight": case.tensor(rank, case.length, name="weight"),
        "exp_avg": case.tensor(rank, case.length, name="moment"),
        "step": torch.tensor(2.0),
    }
    return {"state": state, "counters": {"step": 2, "samples": 2 * case.batch}}


def as_it_was(case, inputs, outputs, trace):
    """Each write has the values of its own moment; each name comes when all ranks have written."""
    log, claims = logs_of(case, outputs), []
    for number, rank in enumerate(case.global_ranks):
        claims += own_values(rank, inputs[number], outputs[number])
        claims.append(
            Claim(not outputs[number]["spoke"], f"the thread of rank {rank} sends a message, in the middle of a step")
        )
    if not all(claim.holds for claim in claims):
        return claims
    writes = {rank: asked(log, rank, "write") for rank in case.global_ranks}
    named = [each for each in log if each.operation == "publish"]
    otherwise = f"{len(named)} times a checkpoint gets its name, and {SAVES} are saved: one rank names each"
    claims.append(Claim(len(named) == SAVES and len({each.rank for each in named}) == 1, otherwise))
    if not all(claim.holds for claim in claims):
        return claims
    for save, naming in enumerate(named):
        for rank in case.global_ranks:
            otherwise = f"save {save + 1} may get its name before rank {rank} has written: no message makes it wait"
            claims.append(Claim(comes_before(trace, writes[rank][save], naming), otherwise))
            end = asked(log, rank, "finished")[save]
            otherwise = f"save {save + 1}: finish may return on rank {rank} before the checkpoint has its name"
            claims.append(Claim(comes_before(trace, naming, end), otherwise))
    return claims


def asked(log, rank, operation):
    return [each for each in log if each.rank == rank and each.operation == operation]


def own_values(rank, given, output):
    """Of each write, whether it has what was there when `save_behind` was called."""
    written = output["written"]
    yield Claim(len(written) == SAVES, f"rank {rank} writes {len(written)} times, and {SAVES} checkpoints are saved")
    for save, values in enumerate(written):
        names = [*given["state"], *(f"counters[{name!r}]" for name in given["counters"])]
        right = [*given["state"].values(), *given["counters"].values()]
        for name, there, before in zip(names, values, right, strict=True):
            expected, got = (float(torch.as_tensor(x).flatten()[0]) for x in (before + save, there))
            later = torch.equal(torch.as_tensor(there), torch.as_tensor(before + save))
            yield Claim(later, f"save {save + 1} of rank {rank}: {name} begins with {got:g}, and was {expected:g}")


PUZZLE = Puzzle(
    name="resilience.async_without_later_values",
    title="Write behind training, without later values",
    statement="""
        A disk is slow, and a step must not wait for it. So a thread writes the checkpoint while training continues. But
        training changes everything in place: weights, moments, counts. What is written must be what was there when
        `save_behind` was called, all of one moment. It is called again and again, always with the same `room`, and
        never before the last one was finished.

        Args:
            state: tensors by name. The next step changes them in place.
            counters: numbers by name: steps, samples. The next step changes this dict, too.
            room: tensors of the same names, shapes and dtypes as `state`, for a copy. Take no other memory.
            behind: `wait = behind(do)` lets the thread call `do()`, some time from now; `wait()` returns when that is
                done. `do` must not use `group`: the next step does, in its own thread.
            write: `write(tensors, numbers)` writes this rank's file, to the last byte.
            publish: `publish()` gives the checkpoint its name. One rank calls it, when all ranks have written.
            group: n ranks. Any n.

        Returns: `finish`, without arguments. All ranks call it together between two later steps. When it returns, the
        checkpoint has its name.

        Budget: no memory but `room`; two calls to torch.distributed for each save.
        """,
    function=save_behind,
    cases=cases(worlds=(3, 2, 4, 1, 5, 8), length=(4,), batch=(24,))
    + cases(worlds=(4,), members=(0, 2, 3), length=(3,), batch=(8,)),
    drawn=on_any_ranks(length=range(1, 9), batch=range(1, 99)),
    large=case(2, length=4_500_000, batch=24),
    inputs=state_of_a_rank,
    judge=as_it_was,
    drive=behind_training,
    calls=(dist.barrier, dist.all_reduce),
    budgets=(
        Budget(
            Measure.PEAK_BYTES,
            target=lambda case: 0,
            why="a copy of all state is as much memory as the state: `room` is there, `copy_` into it",
        ),
        Budget(
            Measure.CALLS,
            target=lambda case: 2 * SAVES,
            optimum=lambda case: 2 * SAVES if case.n > 1 else 0,
            why="all have written; it has its name: these are two things to wait for",
        ),
    ),
    hints=(
        "What does a name stand for when `do` runs: what was there when you wrote it down, or what is there now?",
        "`state[name]` and `counters` are the same objects all the time. Copy the tensors into `room`, and the numbers "
        "into a dict of your own, before `behind`.",
        "Copy; numbers = dict(counters); wait = behind(lambda: write(room, numbers)). finish: wait(), barrier, rank 0 "
        "publishes, barrier.",
    ),
    wrong=(
        Wrong(
            "no copy at all",
            diagnosis=r"save 1 of rank 0: weight begins with",
            edits=(("write(room, numbers)", "write(state, numbers)"),),
        ),
        Wrong(
            "a copy of the dict, not of the tensors",
            diagnosis=r"save 1 of rank 0: weight begins with",
            edits=(("    for name, x in state.items():\n        room[name].copy_(x)\n", "    room = dict(state)\n"),),
        ),
        Wrong(
            "detached, which is the same memory",
            diagnosis=r"save 1 of rank 0: weight begins with",
            edits=(("room[name].copy_(x)", "room[name] = x.detach()"),),
        ),
        Wrong(
            "the copy is made in the thread",
            diagnosis=r"save 1 of rank 0: weight begins with",
            body="""
                numbers = dict(counters)

                def job():
                    for name, x in state.items():
                        room[name].copy_(x)
                    write(room, numbers)

                wait = behind(job)

                def finish():
                    wait()
                    dist.barrier(group)
                    if dist.get_rank(group) == 0:
                        publish()
                    dist.barrier(group)

                return finish
                """,
        ),
        Wrong(
            "the numbers are read later",
            diagnosis=r"save 1 of rank 0: counters\['step'\] begins with 3, and was 2",
            edits=(("write(room, numbers)", "write(room, counters)"),),
        ),
        Wrong(
            "the count of steps is small enough to do without a copy",
            diagnosis=r"save 1 of rank 0: step begins with 3, and was 2",
            edits=(("room[name].copy_(x)", "room[name] = room[name].copy_(x) if x.dim() else x"),),
        ),
        Wrong(
            "copied once: the room is full already",
            diagnosis=r"save 2 of rank 0: weight begins with",
            edits=(
                (
                    "    for name, x in state.items():\n        room[name].copy_(x)\n",
                    "    if not FULL:\n"
                    "        FULL.append(1)\n"
                    "        for name, x in state.items():\n            room[name].copy_(x)\n",
                ),
                ("def save_behind(", "FULL = []\n\n\ndef save_behind("),
            ),
        ),
        Wrong(
            "named when this rank has written",
            diagnosis=r"save 1 may get its name before rank 1 has written: no message makes it wait",
            edits=(("        wait()\n        dist.barrier(group)\n", "        wait()\n"),),
        ),
        Wrong(
            "named before anything is written",
            diagnosis=r"save 1 may get its name before rank 0 has written",
            edits=(
                ("        wait()\n", ""),
                (
                    "            publish()\n        dist.barrier(group)\n",
                    "            publish()\n        dist.barrier(group)\n        wait()\n",
                ),
            ),
        ),
        Wrong(
            "the thread does it all",
            diagnosis=r"the thread of rank 0 sends a message, in the middle of a step",
            body="""
                for name, x in state.items():
                    room[name].copy_(x)
                numbers = dict(counters)

                def job():
                    write(room, numbers)
                    dist.barrier(group)
                    if dist.get_rank(group) == 0:
                        publish()
                    dist.barrier(group)

                return behind(job)
                """,
        ),
        Wrong(
            "a new copy for each save",
            diagnosis=r"right, but it keeps alive [\d,]+ B where 0 must do.*\n.*`room` is there",
            edits=(
                (
                    "    for name, x in state.items():\n        room[name].copy_(x)\n",
                    "    room = {name: x.clone() for name, x in state.items()}\n",
                ),
            ),
        ),
    ),
)
