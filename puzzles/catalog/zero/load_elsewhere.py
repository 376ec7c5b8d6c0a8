"""zero.load_elsewhere: what four ranks have saved, three can load."""

import torch

from puzzles.grading.drives.zero import with_files
from puzzles.grading.puzzle import Budget, Claim, Measure, Puzzle, Wrong, cases
from reference.zero.steps import load

from .common import DOUBLE, cut, shard_of

RUBBISH = -7777.0  # in the padding of what was saved


def files_of_the_old_ranks(case, rank):
    """What each of them has saved, its padding included."""
    files = cut(tensor(case), case.saved_by, padding=RUBBISH)
    return {"files": files, "saved_by": case.saved_by, "length": case.length, "dtype": torch.float64}


def tensor(case):
    """The whole one: different numbers."""
    return case.tensor(0, case.length, dtype=torch.float64)


def own_elements(case, rank):
    """How many of a rank's elements are not padding."""
    shard = shard_of(case.length, case.n)
    return max(0, min(shard, case.length - rank * shard))


def cut_anew(case, inputs):
    """The shards of the whole tensor at this world size."""
    return [{"returns": shard} for shard in cut(tensor(case), case.n)]


def reads_its_own_only(case, inputs, outputs, trace):
    """Nobody reads what others need."""
    claims = []
    for rank, output in enumerate(outputs):
        needed = own_elements(case, rank)
        said = f"rank {rank} reads {output['read']} elements where {needed} must do: {case.n} times the traffic on disk"
        claims.append(Claim(output["read"] <= needed, said))
    return claims


PUZZLE = Puzzle(
    name="zero.load_elsewhere",
    title="Load at another world size",
    statement="""
        Yesterday the job ran on `saved_by` ranks. Each saved its shard, an n-th of the flat tensor, rounded up, so that
        the last files may end in padding, or be nothing else. Today it runs on n ranks, and the cuts are elsewhere. Let
        every rank read what it needs, and nothing else: the whole tensor may be larger than its memory.

        Args:
            read: `read(rank, begin, end)` gives elements [begin, end) of what `rank` saved yesterday.
            saved_by: how many ranks saved.
            length: elements of the tensor, without padding.
            dtype: of the tensor.
            group: the n ranks of today. Any n.

        Returns: this rank's shard, ceil(length / n) elements, with zeros where the tensor has ended.

        Budget: a rank reads each of its elements once, and no others. Memory for two shards. No messages.
        """,
    function=load,
    cases=cases(worlds=(3,), saved_by=(4, 2), length=(12, 10))
    + cases(worlds=(2, 4), saved_by=(3, 8), length=(12, 10))
    + cases(worlds=(1, 5, 8), saved_by=(4,), length=(9,))
    + cases(worlds=(4,), saved_by=(4,), length=(5,))
    + cases(worlds=(4,), members=(0, 2, 3), saved_by=(2,), length=(7,)),
    inputs=files_of_the_old_ranks,
    oracle=cut_anew,
    judge=reads_its_own_only,
    drive=with_files,
    budgets=(
        Budget(
            Measure.PEAK_BYTES,
            target=lambda case: 2 * DOUBLE * shard_of(case.length, case.n),
            optimum=lambda case: DOUBLE * shard_of(case.length, case.n),
            why="nobody needs the whole tensor, and one day it will not fit",
        ),
    ),
    hints=(
        "Element i of the tensor: which rank saved it yesterday, and at which place? Which rank wants it today?",
        "Today's shard begins at rank * ceil(length / n), and ends at the latest where the tensor does. Yesterday's "
        "element i is in file i // old at i % old, where old = ceil(length / saved_by).",
        "Go through today's elements from `at`: owner, inside = divmod(at, old); read to the end of that file or of "
        "this shard, whichever is nearer; go on behind that.",
    ),
    wrong=(
        Wrong(
            "the file of the rank with the same number",
            diagnosis=r"IndexError: read\(|expected [\d.]+, got|shape",
            body="""
                return read(dist.get_rank(group), 0, -(-length // saved_by))
                """,
        ),
        Wrong(
            "reads everything, keeps its part",
            diagnosis=r"right, but (it keeps alive [\d,]+ B|rank \d reads \d+ elements) where \d+ must do",
            body="""
                rank, n = dist.get_rank(group), dist.get_world_size(group)
                old, new = -(-length // saved_by), -(-length // n)
                whole = torch.zeros(n * new, dtype=dtype)
                whole[:length] = torch.cat([read(owner, 0, old) for owner in range(saved_by)])[:length]
                return whole[rank * new : (rank + 1) * new].clone()
                """,
        ),
        Wrong(
            "one file after another is read whole",
            diagnosis=r"right, but (it keeps alive [\d,]+ B|rank \d reads \d+ elements) where \d+ must do",
            edits=(("read(owner, inside, inside + count)", "read(owner, 0, old)[inside : inside + count]"),),
        ),
        Wrong(
            "yesterday's padding comes along",
            diagnosis=r"expected 0, got -7777|IndexError: read\(",
            edits=(
                (
                    "begin, end = rank * new, min((rank + 1) * new, length)",
                    "begin, end = rank * new, min((rank + 1) * new, saved_by * old)",
                ),
            ),
        ),
        Wrong(
            "a shard lies in one file",
            diagnosis=r"IndexError: read\(\d, \d+, \d+\): \d ranks saved \d+ elements each",
            edits=(("        count = min(old - inside, end - at)\n", "        count = end - at\n"),),
        ),
        Wrong(
            "shards rounded down",
            diagnosis=r"a float64 tensor of shape \(\d,\), got a float64 tensor of shape \(\d,\)",
            edits=(("math.ceil(length / n)", "length // n"),),
        ),
        Wrong(
            "the old shards rounded down",
            diagnosis=r"IndexError: read\(|expected [\d.]+, got",
            edits=(("math.ceil(length / saved_by)", "length // saved_by"),),
        ),
    ),
)
