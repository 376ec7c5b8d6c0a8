"""resilience.agree_before_you_change: a load that fails on one rank fails on all, before anything has changed."""

import torch.distributed as dist

from puzzles.grading.drives.resilience import with_a_checkpoint
from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, case, cases, on_any_ranks
from reference.resilience.answers.loading import load_together

NAMES = ("weight", "bias", "exp_avg")
ALL = ("nothing", "the last tensor of the last rank", "the first of rank 0", "another model's on one rank", "all")


def a_checkpoint_and_a_state(case, rank):
    """What this rank has, and what was saved of it: None for what is damaged."""
    state = {name: case.tensor(rank, case.length, name=f"now {name}") for name in NAMES}
    saved = {name: case.tensor(rank, case.length, name=name) for name in NAMES}
    last = rank == case.n - 1
    match case.damaged:
        case "the last tensor of the last rank" if last:
            saved["exp_avg"] = None
        case "the first of rank 0" if rank == 0:
            saved["weight"] = None
        case "another model's on one rank" if last:
            saved["bias"] = case.tensor(rank, case.length + 1)
        case "all":
            saved = dict.fromkeys(NAMES)
    return {"state": state, "saved": saved}


def all_or_none(case, inputs):
    """As with one process that sees all files."""
    good = all(
        each["saved"][name] is not None and each["saved"][name].shape == each["state"][name].shape
        for each in inputs
        for name in NAMES
    )
    return [{"returns": good, "state": [*(each["saved"] if good else each["state"]).values()]} for each in inputs]


PUZZLE = Puzzle(
    name="resilience.agree_before_you_change",
    title="Agree before you change anything",
    statement="""
        All ranks load a checkpoint, each its own part. A file may be damaged, and perhaps one rank alone sees it. A
        rank that then raises leaves the others waiting; ranks that load without it continue with a mixture of two
        models. So: all load, or none does, and nothing has changed then.

        Args:
            state: tensors by name, to be loaded in place.
            read: `read(name)` gives a new tensor, what was saved under this name. It raises OSError for what is
                damaged. What it gives may have another shape, if the checkpoint is another model's: that does not fit.
            group: n ranks. Any n.

        Returns: True on every rank if all of them have loaded; False on every rank if any of them could not. Then
        every tensor of `state` is as it was, on all ranks.

        Budget: one call to torch.distributed.
        """,
    function=load_together,
    cases=cases(worlds=(3,), length=(4,), damaged=ALL)
    + cases(worlds=(2, 4, 1), length=(3,), damaged=ALL[:2])
    + cases(worlds=(5, 8), length=(2,), damaged=ALL[2:4])
    + cases(worlds=(4,), members=(0, 2, 3), length=(3,), damaged=ALL[:2]),
    drawn=on_any_ranks(length=range(1, 9), damaged=ALL),
    large=case(2, length=3_000_000, damaged="nothing"),
    inputs=a_checkpoint_and_a_state,
    oracle=all_or_none,
    tolerance=0,
    calls=(dist.all_reduce, dist.all_gather_object, dist.barrier),
    drive=with_a_checkpoint,
    budgets=(
        Budget(Measure.CALLS, target=lambda case: 1, why="one number says it: did all of mine fit?"),
        Budget(
            Measure.PEAK_BYTES,
            target=lambda case: 4 * len(NAMES) * (case.length + 1) + 64,
            why="what was read is kept aside once; the state needs no copy if it is not touched",
        ),
    ),
    hints=(
        "When may the first tensor of `state` be changed? What must a rank know by then, and of which ranks?",
        "Read everything aside first, in a `try`. Whatever came of it, each rank must come to the same call and say "
        "whether it can: also the one whose file is damaged.",
        "fits = all were read, and have the right shapes; all_reduce of int(fits) with MIN; if it is 0 return False, "
        "else copy, and return True.",
    ),
    wrong=(
        Wrong(
            "each rank for itself",
            diagnosis=r"returns: expected False, got True|result: expected False, got True|expected",
            edits=(("    dist.all_reduce(all_fit, op=dist.ReduceOp.MIN, group=group)\n", ""),),
        ),
        Wrong(
            "it raises on the rank that finds it",
            diagnosis=r"OSError",
            body="""
                loaded = {name: read(name) for name in state}
                fits = all(loaded[name].shape == x.shape for name, x in state.items())
                all_fit = torch.tensor(int(fits))
                dist.all_reduce(all_fit, op=dist.ReduceOp.MIN, group=group)
                if not all_fit:
                    return False
                for name, x in state.items():
                    x.copy_(loaded[name])
                return True
                """,
        ),
        Wrong(
            "the rank that cannot leaves before the others ask it",
            diagnosis=r"finished|waits",
            edits=(("        fits = False\n", "        return False\n"),),
        ),
        Wrong(
            "changed while reading, agreed afterwards",
            diagnosis=r"state\[0\]\[0\]: expected",
            body="""
                try:
                    for name, x in state.items():
                        x.copy_(read(name))
                    fits = True
                except (OSError, RuntimeError):
                    fits = False
                all_fit = torch.tensor(int(fits))
                dist.all_reduce(all_fit, op=dist.ReduceOp.MIN, group=group)
                return bool(all_fit)
                """,
        ),
        Wrong(
            "loaded if any rank could",
            diagnosis=r"expected False, got True|UnboundLocalError|expected",
            edits=(("dist.ReduceOp.MIN", "dist.ReduceOp.MAX"),),
        ),
        Wrong(
            "the shapes are looked at when it is too late",
            diagnosis=r"RuntimeError|expected False, got True|size of tensor",
            edits=(
                (
                    "        fits = all(loaded[name].shape == x.shape for name, x in state.items())\n",
                    "        fits = True\n",
                ),
            ),
        ),
        Wrong(
            "one tensor after another, together",
            diagnosis=r"state\[0\]\[0\]: expected",
            body="""
                for name, x in state.items():
                    try:
                        loaded = read(name)
                        fits = loaded.shape == x.shape
                    except OSError:
                        fits = False
                    all_fit = torch.tensor(int(fits))
                    dist.all_reduce(all_fit, op=dist.ReduceOp.MIN, group=group)
                    if not all_fit:
                        return False
                    x.copy_(loaded)
                return True
                """,
        ),
        Wrong(
            "asks for each tensor by itself",
            diagnosis=r"right, but a rank makes 3 calls where 1 must do.*\n.*one number says it",
            body="""
                loaded, fits = {}, True
                for name, x in state.items():
                    try:
                        loaded[name] = read(name)
                        good = loaded[name].shape == x.shape
                    except OSError:
                        good = False
                    all_good = torch.tensor(int(good))
                    dist.all_reduce(all_good, op=dist.ReduceOp.MIN, group=group)
                    fits = fits and bool(all_good)
                if fits:
                    for name, x in state.items():
                        x.copy_(loaded[name])
                return fits
                """,
        ),
        Wrong(
            "a copy of everything, to go back to",
            diagnosis=r"right, but it keeps alive [\d,]+ B where [\d,]+ must do.*\n.*no copy if it is not touched",
            edits=(
                ("    try:\n", "    before = {name: x.repeat(8) for name, x in state.items()}\n    try:\n"),
                ("        return False\n    for", "        return bool(before) and False\n    for"),
            ),
        ),
    ),
)
