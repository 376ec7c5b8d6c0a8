"""zero.load_elsewhere: what four ranks have saved, three can load."""

from math import ceil

import torch

from puzzles.grading.drives.zero import with_files
from puzzles.grading.puzzle import Budget, Claim, Measure, Puzzle, Wrong, case, cases, on_any_ranks
from reference.zero.answers.on_shards import load

from .common import cut, shard_of

RUBBISH = -7777.0  # in the padding of what was saved


def files_of_the_old_ranks(case, rank):
    """What each of them has saved, its padding included."""
    files = cut(tensor(case), case.saved_by, padding=RUBBISH)
    return {"files": files, "saved_by": case.saved_by, "length": case.length, "dtype": tensor(case).dtype}


def tensor(case):
    """The whole one: different numbers."""
    return case.tensor(0, case.length)


def shard_bytes(case):
    """Bytes of a shard of today."""
    return tensor(case).element_size() * shard_of(case.length, case.n)


def needed(case, rank):
    """How many of a rank's elements are not padding, and how many of yesterday's files they lie in."""
    old, new = shard_of(case.length, case.saved_by), shard_of(case.length, case.n)
    begin, end = (min(edge, case.length) for edge in (rank * new, (rank + 1) * new))
    return end - begin, ceil(end / old) - begin // old if begin < end else 0


def cut_anew(case, inputs):
    """The shards of the whole tensor at this world size."""
    return [{"returns": shard} for shard in cut(tensor(case), case.n)]


def reads_its_own_only(case, inputs, outputs, trace):
    """No rank reads what others need, nor comes twice for what lies together."""
    claims = []
    for rank, output in enumerate(outputs):
        elements, files = needed(case, rank)
        read, times = output["read"], output["times"]
        said = f"rank {rank} reads {read} elements where {elements} must do: {case.n} times the traffic on disk"
        claims.append(Claim(read <= elements, said))
        said = f"rank {rank} reads {times} times where {files} must do: what it needs of a file lies in one piece"
        claims.append(Claim(times <= files, said))
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

        Budget: a rank reads each of its elements once, and no others; of each file at most once. Memory for two shards.
        No messages.
        """,
    function=load,
    cases=cases(worlds=(3,), saved_by=(4, 2), length=(12, 10))
    + cases(worlds=(2, 4), saved_by=(3, 8), length=(12, 10))
    + cases(worlds=(1, 5, 8), saved_by=(4,), length=(9,))
    + cases(worlds=(4,), saved_by=(4,), length=(5,), dtype=(torch.int64,))
    + cases(worlds=(4,), members=(0, 2, 3), saved_by=(2,), length=(7,)),
    drawn=on_any_ranks(saved_by=range(1, 12), length=range(5, 60)),
    large=case(2, saved_by=1, length=10_000_000),
    inputs=files_of_the_old_ranks,
    oracle=cut_anew,
    tolerance=0,
    judge=reads_its_own_only,
    drive=with_files,
    budgets=(
        Budget(
            Measure.PEAK_BYTES,
            target=lambda case: 2 * shard_bytes(case),
            optimum=shard_bytes,
            why="no rank needs the whole tensor, and one day it will not fit",
        ),
    ),
    hints=(
        "Element i of the tensor: which rank saved it yesterday, and at which place? Which rank wants it today?",
        "Today's shard begins at rank * ceil(length / n), and ends at the latest where the tensor does. Yesterday's "
        "element i is in file i // old at i % old, where old = ceil(length / saved_by).",
        "Go through today's elements from `at`: owner, inside = divmod(at, old); read to the end of that file or of "
        "this shard, whichever is nearer; continue after that.",
    ),
    wrong=(
        Wrong(
            "the file of the rank with the same number",
            diagnosis=r"IndexError: read\(|expected -?[\d.]+, got|shape",
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
            "one element after another",
            diagnosis=r"right, but rank \d reads \d times where \d must do: what it needs of a file lies in one piece",
            edits=(("count = min(old - inside, end - at)", "count = 1"),),
        ),
        Wrong(
            "always in the same dtype",
            diagnosis=r"expected a int64 tensor of shape \(2,\), got a float32 tensor",
            edits=(("torch.zeros(new, dtype=dtype)", "torch.zeros(new)"),),
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
            diagnosis=r"a float32 tensor of shape \(\d,\), got a float32 tensor of shape \(\d,\)",
            edits=(("math.ceil(length / n)", "length // n"),),
        ),
        Wrong(
            "the old shards rounded down",
            diagnosis=r"IndexError: read\(|expected -?[\d.]+, got",
            edits=(("math.ceil(length / saved_by)", "length // saved_by"),),
        ),
    ),
)
