"""resilience.reshard_4_to_3: weights and moments in rows, saved by four ranks, loaded by three."""

from math import ceil

import torch

from puzzles.grading.drives.resilience import with_rows_in_files
from puzzles.grading.puzzle import Budget, Claim, Measure, Puzzle, Wrong, case, cases, on_any_ranks
from reference.resilience.answers.loading import reshard

WIDTH = 3
NAMES = ("weight", "exp_avg", "exp_avg_sq")


def rows_of(case):
    """Rows of each tensor: a weight and its moments have equally many, another weight fewer."""
    return dict.fromkeys(NAMES, case.rows) | {"head": case.head}


def whole(case, name):
    return case.tensor(0, rows_of(case)[name], WIDTH, name=name)


def cut(x, ranks):
    """As torch.chunk cuts, and FSDP: ceil(rows / ranks) to each until there are none; the last may have none."""
    share = max(1, ceil(len(x) / ranks))
    return [x[min(rank * share, len(x)) : min((rank + 1) * share, len(x))].clone() for rank in range(ranks)]


def files_of_the_old_ranks(case, rank):
    files = [dict(zip(rows_of(case), each, strict=True)) for each in zip(*all_cuts(case, case.saved_by), strict=True)]
    mine = {name: parts[rank].fill_(-7) for name, parts in zip(rows_of(case), all_cuts(case, case.n), strict=True)}
    return {"files": files, "state": mine, "rows": rows_of(case), "saved_by": case.saved_by}


def all_cuts(case, ranks):
    return [cut(whole(case, name), ranks) for name in rows_of(case)]


def cut_anew(case, inputs):
    cuts = all_cuts(case, case.n)
    return [{"filled": [parts[rank] for parts in cuts]} for rank in range(case.n)]


def needed(case, rank):
    """How many rows a rank has, and in how many pieces of old files they lie."""
    rows = pieces = 0
    for total in rows_of(case).values():
        old, new = ceil(total / case.saved_by), ceil(total / case.n)
        begin, end = (min(edge, total) for edge in (rank * new, (rank + 1) * new))
        rows += end - begin
        pieces += ceil(end / old) - begin // old if begin < end else 0
    return rows, pieces


def reads_its_own_only(case, inputs, outputs, trace):
    claims = []
    for rank, output in enumerate(outputs):
        rows, pieces = needed(case, rank)
        said = f"rank {rank} reads {output['read']} rows where {rows} must do: all ranks together read the file n times"
        claims.append(Claim(output["read"] <= rows, said))
        said = f"rank {rank} reads {output['times']} times where {pieces} must do: rows of one file lie together"
        claims.append(Claim(output["times"] <= pieces, said))
    return claims


PUZZLE = Puzzle(
    name="resilience.reshard_4_to_3",
    title="Saved by four, loaded by three",
    statement="""
        A machine is gone, and training continues on fewer ranks. What four have saved, three must load: not only the
        weights, but all that the optimizer remembers of them, row by row. (A run whose moments were left out learns,
        worse, and says nothing.)

        A tensor of R rows is cut as `torch.chunk` cuts: each of n ranks has ceil(R / n) rows, until there are none
        left. So 6 rows on 4 ranks are 2, 2, 2 and 0. Nothing is padded.

        Args:
            state: this rank's rows of each tensor, by name; the right number of them, with anything in them. A rank may
                have none.
            rows: R of each whole tensor, by name; they differ.
            saved_by: how many ranks have saved, cut in the same way.
            read: `read(rank, name, begin, end)` gives rows [begin, end) of those that `rank` has saved, counted from
                its own first row. More than it has is an error.
            group: the n ranks of today. Any n.

        Afterwards each tensor of `state` holds this rank's rows, in place.

        Budget: a rank reads each of its rows once, and no others; of each file and tensor at most once. Memory for the
        rows that are read at once. No messages.
        """,
    function=reshard,
    cases=cases(worlds=(3,), saved_by=(4, 2), rows=(6, 10), head=(4,))
    + cases(worlds=(2, 4), saved_by=(3, 8), rows=(6,), head=(5,))
    + cases(worlds=(1, 5, 8), saved_by=(4,), rows=(9,), head=(2,))
    + cases(worlds=(4,), saved_by=(4,), rows=(6,), head=(3,), dtype=(torch.int64,))
    + cases(worlds=(4,), members=(0, 2, 3), saved_by=(4,), rows=(7,), head=(1,)),
    drawn=on_any_ranks(saved_by=range(1, 9), rows=range(3, 40), head=range(1, 9)),
    large=case(3, saved_by=4, rows=900_000, head=4),
    inputs=files_of_the_old_ranks,
    oracle=cut_anew,
    tolerance=0,
    judge=reads_its_own_only,
    drive=with_rows_in_files,
    budgets=(
        Budget(
            Measure.PEAK_BYTES,
            target=lambda case: 8 * WIDTH * ceil(max(case.rows, case.head) / case.n),
            optimum=lambda case: 0,
            why="the rows of a rank are in `state`: nothing else needs to be kept",
        ),
    ),
    hints=(
        "Row i of a tensor: which rank saved it, and as which of its rows? Where does your first row stand?",
        "Yesterday each rank had old = ceil(R / saved_by) rows: row i is in the file of i // old, at i % old. Today "
        "yours begin at rank * ceil(R / n), and there are len(state[name]) of them, perhaps none.",
        "For each name: from `at`, owner, inside = divmod(at, old); read to the end of that rank's rows or of yours, "
        "whichever comes first; copy; continue after that.",
    ),
    wrong=(
        Wrong(
            "the moments are not weights",
            diagnosis=r"filled\[1\]\[0, 0\]: expected",
            edits=(
                (
                    "    for name, mine in state.items():\n",
                    "    for name, mine in state.items():\n        if name.startswith('exp'):\n            continue\n",
                ),
            ),
        ),
        Wrong(
            "the file of the rank with the same number",
            diagnosis=r"IndexError: read\(|expected|shape",
            body="""
                rank = dist.get_rank(group)
                for name, mine in state.items():
                    if len(mine):
                        mine.copy_(read(rank, name, 0, len(mine)))
                """,
        ),
        Wrong(
            "rows rounded down, the last rank has the rest",
            diagnosis=r"IndexError: read\(|ZeroDivisionError|expected",
            edits=(("math.ceil(rows[name] / saved_by)", "rows[name] // saved_by"),),
        ),
        Wrong(
            "all tensors have as many rows as the first",
            diagnosis=r"IndexError: read\(|filled\[3\]",
            edits=(
                ("    for name, mine", "    first = next(iter(rows.values()))\n    for name, mine"),
                (
                    "old, new = math.ceil(rows[name] / saved_by), math.ceil(rows[name] / n)",
                    "old, new = math.ceil(first / saved_by), math.ceil(first / n)",
                ),
            ),
        ),
        Wrong(
            "where rows begin, by how many this rank has",
            diagnosis=r"IndexError: read\(|filled\[\d\]\[0, 0\]: expected",
            edits=(("begin = min(rank * new, rows[name])", "begin = rank * len(mine)"),),
        ),
        Wrong(
            "my rows lie in one file",
            diagnosis=r"IndexError: read\(\d, '\w+', \d, \d+\): this rank saved \d rows",
            edits=(("count = min(old - inside, end - at)", "count = end - at"),),
        ),
        Wrong(
            "one row after another",
            diagnosis=r"right, but rank \d reads \d+ times where \d+ must do: rows of one file lie together",
            edits=(("count = min(old - inside, end - at)", "count = 1"),),
        ),
        Wrong(
            "everything is read, and a part kept",
            diagnosis=r"right, but (it keeps alive|rank \d reads \d+ rows)",
            body="""
                rank, n = dist.get_rank(group), dist.get_world_size(group)
                for name, mine in state.items():
                    old, parts, left = -(-rows[name] // saved_by), [], rows[name]
                    for owner in range(saved_by):
                        has = min(old, left)
                        left -= has
                        parts.append(read(owner, name, 0, has))
                    whole = torch.cat(parts)
                    begin = min(rank * -(-rows[name] // n), rows[name])
                    mine.copy_(whole[begin : begin + len(mine)])
                """,
        ),
        Wrong(
            "other tensors in their places",
            diagnosis=r"filled\[0\]\[0, 0\]: expected -?[\d.]+, got -7",
            edits=(("        at, end = begin", "        mine = mine.clone()\n        at, end = begin"),),
        ),
    ),
)
