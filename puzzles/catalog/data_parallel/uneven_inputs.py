"""data_parallel.uneven_inputs: a rank without data continues for the sake of the others."""

import torch
import torch.distributed as dist

from puzzles.grading.drives.data_parallel import step_after_step
from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, cases, on_any_ranks
from reference.collectives import cost
from reference.collectives.all_reduce import ring
from reference.collectives.compat import device_of
from reference.data_parallel.uneven import joined

WIDTH = 2
BATCHES = {
    "one more each": lambda rank, n: 1 + rank,
    "all alike": lambda rank, n: 2,
    "the first has none": lambda rank, n: 2 * (rank > 0),
    "the second is empty": lambda rank, n: 3,
}


def batches_of_a_rank(case, rank):
    """Batches of different sizes, as many as the parameter `batches` says; their second row is padding."""
    batches = []
    for step in range(BATCHES[case.batches](rank, case.n)):
        batch = case.normal(rank, 1 + (rank + 2 * step) % 3, WIDTH, name=f"batch {step}")
        batch[1:2] = 0
        batches.append(batch[:0] if case.batches == "the second is empty" and step == 1 else batch)
    return {"batches": batches, "width": WIDTH}


def means_of_all_that_there_is(case, inputs):
    """In each step, one process takes the mean over all ranks' samples, as long as any rank has a batch."""
    everybody, found = [each["batches"] for each in inputs], []
    for step in range(max(map(len, everybody))):
        rows = torch.cat([own[step] for own in everybody if step < len(own)])
        samples = rows[rows.any(dim=1)]
        found.append(samples.sum(0) / max(len(samples), 1))
    return [{"the means": found}] * case.n


def steps_of(case):
    return max(BATCHES[case.batches](rank, case.n) for rank in range(case.n))


def sent(case):
    """Two numbers a step and in the end, and in each step what the loop itself sums."""
    of_step, end = [(2, 8), (WIDTH, 8)], [(2, 8)]
    return max(
        sum(cost.of(ring).bytes(rank, case.n, *each) for each in of_step * steps_of(case) + end)
        for rank in range(case.n)
    )


PUZZLE = Puzzle(
    name="data_parallel.uneven_inputs",
    title="Join when the data runs out",
    statement="""
        Ranks have different numbers of batches, and none of them knows how many the others have. A rank that simply
        stops when it has none leaves the others waiting in the next all-reduce, forever. It has to continue, with
        zeros, until no rank has any.

        Yield, step by step, this rank's next batch, or None once it has no more; and with it the number of samples
        that all ranks have in this step. The loop that you serve does this with it, on every rank:

            for batch, samples in joined(batches, group, tokens_of):
                total = torch.zeros(width) if batch is None else batch.sum(0)
                dist.all_reduce(total, group=group)
                mean = total / max(samples, 1)

        Args:
            batches: this rank's; tensors [B, width]. It can be gone through once. B may be 0, and some rows are
                padding: zeros, which are no samples.
            group: n ranks. Any n.
            tokens_of: how many samples a batch has.

        Yields: (batch or None, samples of all ranks in this step), equally often on every rank: as often as the rank
        with the most batches has one.

        Budget: one all-reduce of yours for each step, and one more at the end.
        """,
    function=joined,
    cases=cases(worlds=(3, 2, 4, 1, 5, 8), batches=("one more each",))
    + cases(worlds=(2, 3), batches=("all alike", "the first has none"))
    + cases(worlds=(3,), batches=("the second is empty",))
    + cases(worlds=(4,), members=(0, 2, 3), batches=("one more each",)),
    drawn=on_any_ranks(batches=tuple(BATCHES)),
    inputs=batches_of_a_rank,
    oracle=means_of_all_that_there_is,
    drive=step_after_step,
    tolerance=1e-12,
    calls=(dist.all_reduce,),
    given=(device_of,),
    budgets=(
        Budget(
            Measure.CALLS,
            target=lambda case: 2 * steps_of(case) + 1,
            why="how many samples there are, and whether any rank has a batch, fits into one message",
        ),
        Budget(Measure.BYTES_SENT, target=sent, why="two numbers are enough for both"),
    ),
    hints=(
        "When may a rank leave the loop? Who knows that?",
        "In each step, all ranks add up how many of them have a batch. Where the sum is zero, all are done, and all "
        "know it in the same step.",
        "`batch = next(rest, None)`; a tensor of (1 or 0, samples), on the `device_of(group)` so that it can travel; "
        "`dist.all_reduce`; `return` if the first number is 0, else `yield batch, samples`.",
    ),
    wrong=(
        Wrong(
            "leaves when it has no more",
            diagnosis=r"rank \d finished without it|never|deadlock",
            body="""
                for batch in batches:
                    samples = torch.tensor(tokens_of(batch))
                    dist.all_reduce(samples, group=group)
                    yield batch, samples.item()
                """,
        ),
        Wrong(
            "all stop when the first has no more",
            diagnosis=r"the means: expected \d values, got \d values",
            edits=(("if ranks == 0:", "if ranks < dist.get_world_size(group):"),),
        ),
        Wrong(
            "begins again to keep up",
            diagnosis=r"the means\[\d\]\[0\]: expected|the means: expected",
            body="""
                own = list(batches)
                most = torch.tensor(len(own))
                dist.all_reduce(most, dist.ReduceOp.MAX, group)
                for step in range(most.item()):
                    batch = own[step % len(own)] if own else None
                    samples = torch.tensor(0 if batch is None else tokens_of(batch))
                    dist.all_reduce(samples, group=group)
                    yield batch, samples.item()
                """,
        ),
        Wrong(
            "counts its own samples only",
            diagnosis=r"the means\[0\]\[0\]: expected",
            edits=(("yield batch, tokens", "yield batch, tokens_of(batch) if batch is not None else 1"),),
        ),
        Wrong(
            "counts batches, not samples",
            diagnosis=r"the means\[\d\]\[0\]: expected",
            edits=(("yield batch, tokens", "yield batch, ranks"),),
        ),
        Wrong(
            "counts padding",
            diagnosis=r"the means\[\d\]\[0\]: expected",
            edits=(("(1, tokens_of(batch))", "(1, len(batch))"),),
        ),
        Wrong(
            "done where no rank has a sample",
            diagnosis=r"wrong with batches=the second is empty",
            edits=(("if ranks == 0:", "if tokens == 0:"),),
        ),
        Wrong(
            "an empty batch for the end",
            diagnosis=r"wrong with batches=the second is empty",
            edits=(("(0, 0) if batch is None else", "(0, 0) if batch is None or not len(batch) else"),),
        ),
        Wrong(
            "the last batch once more",
            diagnosis=r"the means\[\d\]\[0\]: expected|exception",
            body="""
                rest, batch = iter(batches), None
                while True:
                    upcoming = next(rest, None)
                    batch = batch if upcoming is None else upcoming
                    mine = (upcoming is not None, 0 if batch is None else tokens_of(batch))
                    ranks_and_tokens = torch.tensor(mine).long()
                    dist.all_reduce(ranks_and_tokens, group=group)
                    ranks, tokens = ranks_and_tokens.tolist()
                    if ranks == 0:
                        return
                    yield batch, tokens
                """,
        ),
        Wrong(
            "two messages a step",
            diagnosis=r"right, but a rank makes \d+ calls where \d+ must do.*\n.*fits into one message",
            body="""
                rest = iter(batches)
                while True:
                    batch = next(rest, None)
                    anybody = torch.tensor(int(batch is not None))
                    samples = torch.tensor(0 if batch is None else tokens_of(batch))
                    dist.all_reduce(anybody, dist.ReduceOp.MAX, group)
                    if not anybody:
                        return
                    dist.all_reduce(samples, group=group)
                    yield batch, samples.item()
                """,
        ),
    ),
)
