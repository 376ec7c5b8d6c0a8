"""expert_parallel.counts_first: how many rows will come, before they do."""

from functools import partial

import torch
import torch.distributed as dist

from puzzles.grading.drives.tensor_parallel import named
from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, cases, on_any_ranks
from reference.collectives.compat import all_gather_single
from reference.expert_parallel.answers.exchange import counts_first

from .over_ranks import ANY, INTEGER, choices_of

RETURNED = ("sent", "received", "counts")


def choice_by_choice(case, inputs):
    """Each choice is a row from its rank to the rank of its expert."""
    counts = [[[0] * case.each for _ in range(case.n)] for _ in range(case.n)]  # [to, from, expert of the former]
    for source, given in enumerate(inputs):
        for expert in given["chosen"].flatten().tolist():
            counts[expert // case.each][source][expert % case.each] += 1
    return [
        {
            "returns": "3 tensors",
            "sent": [sum(counts[to][rank]) for to in range(case.n)],
            "received": [sum(of_source) for of_source in counts[rank]],
            "counts": torch.tensor(counts[rank]),
        }
        for rank in range(case.n)
    ]


PUZZLE = Puzzle(
    name="expert_parallel.counts_first",
    title="Counts before rows",
    statement="""
        Rank r has the experts from r · E/n to (r+1) · E/n - 1. Each choice of a token is a row that travels to the rank
        of its expert. But a receiver must make room for what comes, so it must know how many rows that are. No rank
        knows this of another one: which experts tokens choose is seen when the router has run, and differs in each
        layer and step.

        So ranks tell each other first, in an all-to-all of counts. It is small; what it costs is latency, and that
        nothing more can be sent until it is there. Let each rank say at once how many rows come for *each expert*:
        rows that arrive have to be regrouped by expert, and for that the number of rows from each rank is not enough.

        `dist.all_to_all_single(out, x, group=group)` gives the j-th n-th of the rows (dim 0) of `x` to rank j, and puts
        what comes from rank i into the i-th n-th of `out`. Both are contiguous.

        Args:
            chosen: [T, k] of int64, the experts of this rank's tokens. T may be 0, and differ from rank to rank.
            experts: E; n divides it.
            group: n ranks. Any n.

        Returns: three things.
            sent: n ints, how many rows this rank sends to each rank, itself included.
            received: n ints, how many rows it receives from each.
            counts: [n, E/n] of int64, how many rows come from each rank for each expert of this rank.

        Budget: one collective, and E/n whole numbers to each other rank.
        """,
    function=counts_first,
    cases=cases(worlds=(2, 4), tokens=("different",), liked=("few", "all"), each=(2,), k=(2,))
    + cases(worlds=(4,), tokens=("none on the first", "the same", "none"), liked=("all",), each=(2,), k=(2,))
    + cases(worlds=(3,), tokens=("different",), liked=("not the last rank's", "all"), each=(1, 3), k=(2,))
    + cases(worlds=(1, 5), tokens=("different",), liked=("few",), each=(4,), k=(3,))
    + cases(worlds=(8,), tokens=("all on the last",), liked=("all",), each=(2,), k=(2,))
    + cases(worlds=(4,), members=(0, 2, 3), tokens=("different",), liked=("few",), each=(2,), k=(2,)),
    drawn=on_any_ranks(**ANY),
    inputs=lambda case, rank: {"chosen": choices_of(case, rank), "experts": case.n * case.each},
    oracle=choice_by_choice,
    drive=partial(named, RETURNED),
    calls=(
        dist.all_to_all_single,
        dist.all_to_all,
        all_gather_single,
        dist.all_gather_into_tensor,
        dist.all_gather,
    ),
    budgets=(
        Budget(
            Measure.CALLS,
            target=lambda case: 1,
            why="how many rows come for each expert says how many come: counts of experts are enough, in one call",
        ),
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: (case.n - 1) * case.each * INTEGER,
            why="a rank needs to know of its own experts only: what other ranks receive does not concern it",
        ),
    ),
    hints=(
        "How often was each expert chosen here? Which of these numbers does rank j need, and where do they stand?",
        "`torch.bincount(chosen.flatten(), minlength=experts)` has E numbers, in the order of experts, so in that of "
        "ranks. Rank j needs the j-th n-th of them: that is what an all-to-all does.",
        "`wanted = torch.bincount(...).view(n, -1)`; `counts = torch.empty_like(wanted)`; "
        "`dist.all_to_all_single(counts, wanted, group=group)`. Sums over dim 1, as lists of ints (`.tolist()`), are "
        "`sent` and `received`.",
    ),
    wrong=(
        Wrong(
            "sent and received are exchanged",
            diagnosis=r"sent\[\d\]: expected \d+, got \d+",
            edits=(
                (
                    "wanted.sum(1).tolist(), counts.sum(1).tolist(), counts",
                    "counts.sum(1).tolist(), wanted.sum(1).tolist(), counts",
                ),
            ),
        ),
        Wrong(
            "what this rank sends is taken for what it receives",
            diagnosis=r"(received|counts)\[\d(, \d)?\]: expected \d+, got \d+",
            edits=(("    dist.all_to_all_single(counts, wanted, group=group)\n", "    counts.copy_(wanted)\n"),),
        ),
        Wrong(
            "summed over ranks: how many come for each expert, and not from each rank",
            diagnosis=r"received\[\d\]: expected \d+, got \d+",
            edits=((" counts.sum(1).tolist(), counts", " counts.sum(0).tolist(), counts"),),
        ),
        Wrong(
            "experts are dealt out in turn",
            diagnosis=r"sent\[\d\]: expected \d+, got \d+",
            edits=((".view(n, -1)", ".view(-1, n).T.contiguous()"),),
        ),
        Wrong(
            "tokens are counted, and not their choices",
            diagnosis=r"sent\[\d\]: expected \d+, got \d+",
            edits=(("torch.bincount(chosen.flatten(),", "torch.bincount(chosen[:, 0],"),),
        ),
        Wrong(
            "experts that no token chose are not counted",
            diagnosis=r"shape '\[\d, -1\]' is invalid|sends \d+ elements|expected|size",
            edits=(("minlength=experts", "minlength=0"),),
        ),
        Wrong(
            "tensors, where lists are asked for",
            diagnosis=r"sent: expected \d values, got a int64 tensor",
            edits=(("wanted.sum(1).tolist(), counts.sum(1).tolist()", "wanted.sum(1), counts.sum(1)"),),
        ),
        Wrong(
            "how many rows come, but not for which expert",
            diagnosis=r"counts: expected a int64 tensor of shape \(\d, \d\), got a int64 tensor",
            body="""
                n = dist.get_world_size(group)
                sent = torch.bincount(chosen.flatten() // (experts // n), minlength=n)
                received = torch.empty_like(sent)
                dist.all_to_all_single(received, sent, group=group)
                return sent.tolist(), received.tolist(), received
                """,
        ),
        Wrong(
            "ranks of the world, not of the group",
            diagnosis=r"in the group \[0, 2, 3\]",
            edits=(("    n = dist.get_world_size(group)\n", "    n = dist.get_world_size()\n"),),
        ),
        Wrong(
            "a rank without tokens stays away",
            diagnosis=r"finished without it|rank \d never|deadlock|waits",
            edits=(
                (
                    "    counts = torch.empty_like(wanted)\n",
                    "    counts = torch.zeros_like(wanted)\n"
                    "    if not len(chosen):\n        return [0] * n, [0] * n, counts\n",
                ),
            ),
        ),
        Wrong(
            "all counts to all ranks",
            diagnosis=r"right, but rank \d sent [\d,]+ B where [\d,]+ must do.*\n.*does not concern it",
            edits=(
                (
                    "    dist.all_to_all_single(counts, wanted, group=group)\n",
                    "    of_all = wanted.new_empty(n, *wanted.shape)\n"
                    "    dist.all_gather_single(of_all.flatten(0, 1), wanted, group=group)\n"
                    "    counts.copy_(of_all[:, dist.get_rank(group)])\n",
                ),
            ),
        ),
        Wrong(
            "rows from each rank, then rows for each expert",
            diagnosis=r"right, but a rank makes 2 calls where 1 must do.*\n.*in one call",
            edits=(
                (
                    "    return wanted.sum(1).tolist(), counts.sum(1).tolist(), counts\n",
                    "    sent = wanted.sum(1)\n    received = torch.empty_like(sent)\n"
                    "    dist.all_to_all_single(received, sent, group=group)\n"
                    "    return sent.tolist(), received.tolist(), counts\n",
                ),
            ),
        ),
    ),
)
