"""resilience.resume_data_order: after a restart, on other ranks, no sample is lost and none is read twice."""

import random

from puzzles.grading.drives.resilience import with_epochs
from puzzles.grading.puzzle import Claim, Puzzle, Wrong, cases, drawn
from reference.resilience.answers.loading import samples_of_step


def orders_of(case):
    """An order for each epoch, the same on every rank."""
    epochs = (case.step + 1) * case.batch // case.samples + 2
    return [random.Random(f"{case.seed} {epoch}").sample(range(case.samples), case.samples) for epoch in range(epochs)]


def one_long_list(case, inputs):
    """All epochs one after another, cut into batches, and these into shares."""
    stream = [sample for order in inputs[0]["orders"] for sample in order]
    batch = stream[case.step * case.batch : (case.step + 1) * case.batch]
    share = case.batch // case.n
    return [{"returns": batch[rank * share : (rank + 1) * share]} for rank in range(case.n)]


def asks_for_its_own_epochs(case, inputs, outputs, trace):
    """An order of millions of samples is not made for what was read long ago."""
    claims, share = [], case.batch // case.n
    for rank, output in enumerate(outputs):
        first = case.step * case.batch + rank * share
        epochs = (first + share - 1) // case.samples - first // case.samples + 1
        asked = output["asked"]
        said = f"rank {rank} asks for the order {asked} times where {epochs} must do: a step knows its epochs"
        claims.append(Claim(asked <= epochs, said))
    return claims


PUZZLE = Puzzle(
    name="resilience.resume_data_order",
    title="Resume the order of the data",
    statement="""
        A run stops after some step and continues on fewer ranks. Each sample of an epoch must be read once: a reader
        that begins again reads the first ones twice, and one that keeps a place for each rank loses what the dead ranks
        had before them. So let what is read follow from the step alone: then the number of steps is all that a
        checkpoint must know.

        All epochs stand one after another, each in its own order. A step's batch is the next `batch` samples of that,
        across the end of an epoch if need be. The ranks take it in equal shares, rank 0 the first.

        Args:
            step: from 0, counted over all epochs; any.
            batch: samples of a step, of all ranks together; n divides it. It may be longer than an epoch.
            samples: how many an epoch has. The batch need not divide it.
            order: `order(epoch)` gives the epoch's samples in its order, a list of numbers. It is long: ask for no more
                of them than you need.
            group: n ranks. Any n.

        Returns: the list of this rank's samples of this step, in order.

        Budget: no messages; the order of each epoch that this rank reads from, once.
        """,
    function=samples_of_step,
    cases=cases(worlds=(3,), step=(0, 4, 11), batch=(6,), samples=(10,))
    + cases(worlds=(4, 2), step=(3, 20), batch=(8,), samples=(12,))
    + cases(worlds=(1, 5, 8), step=(7,), batch=(40,), samples=(11,))
    + cases(worlds=(4,), members=(0, 2, 3), step=(5,), batch=(3,), samples=(7,)),
    drawn=(
        drawn(worlds=(2, 3, 4, 6), step=range(50), batch=(12, 24), samples=range(5, 60)),
        drawn(worlds=(9, 10), step=range(50), batch=(90, 180), samples=range(5, 200)),
    ),
    inputs=lambda case, rank: {
        "step": case.step,
        "batch": case.batch,
        "samples": case.samples,
        "orders": orders_of(case),
    },
    oracle=one_long_list,
    judge=asks_for_its_own_epochs,
    drive=with_epochs,
    hints=(
        "How many samples have all ranks together read before this step? Does it depend on the number of ranks?",
        "Number all samples of all epochs in one row: the batch of a step begins at step * batch, this rank's share "
        "rank * batch // n further on. Number i is in epoch i // samples, at place i % samples of its order.",
        "A share may begin in one epoch and end in the next, or later. Ask for the orders from first // samples to "
        "last // samples, keep them by epoch, then take one number after another.",
    ),
    wrong=(
        Wrong(
            "begins again",
            diagnosis=r"expected \d+, got \d+",
            edits=(("first = step * batch + rank * share", "first = rank * share"),),
        ),
        Wrong(
            "each rank has a stride of its own through the epoch",
            diagnosis=r"expected \d+, got \d+",
            body="""
                rank, n = dist.get_rank(group), dist.get_world_size(group)
                share = batch // n
                places = [rank + n * (step * share + i) for i in range(share)]
                orders = {epoch: order(epoch) for epoch in {place // samples for place in places}}
                return [orders[place // samples][place % samples] for place in places]
                """,
        ),
        Wrong(
            "an epoch ends with its last whole batch",
            diagnosis=r"expected \d+, got \d+|ZeroDivisionError",
            body="""
                rank, n = dist.get_rank(group), dist.get_world_size(group)
                share, steps = batch // n, samples // batch
                epoch, within = divmod(step, steps)
                first = within * batch + rank * share
                return order(epoch)[first : first + share]
                """,
        ),
        Wrong(
            "the order of the epoch in which the batch begins, around and around",
            diagnosis=r"expected \d+, got \d+",
            body="""
                rank, n = dist.get_rank(group), dist.get_world_size(group)
                share = batch // n
                first = step * batch + rank * share
                now = order(step * batch // samples)
                return [now[at % samples] for at in range(first, first + share)]
                """,
        ),
        Wrong(
            "always the order of epoch 0",
            diagnosis=r"expected \d+, got \d+",
            body="""
                rank, n = dist.get_rank(group), dist.get_world_size(group)
                share = batch // n
                first = step * batch + rank * share
                now = order(0)
                return [now[at % samples] for at in range(first, first + share)]
                """,
        ),
        Wrong(
            "steps count from 1",
            diagnosis=r"expected \d+, got \d+",
            edits=(("first = step * batch", "first = (step - 1) * batch"),),
        ),
        Wrong(
            "reads again all that was read",
            diagnosis=r"right, but rank \d asks for the order \d+ times where \d must do: a step knows its epochs",
            body="""
                rank, n = dist.get_rank(group), dist.get_world_size(group)
                share, stream, epoch = batch // n, [], 0
                while len(stream) < (step + 1) * batch:
                    stream += order(epoch)
                    epoch += 1
                first = step * batch + rank * share
                return stream[first : first + share]
                """,
        ),
        Wrong(
            "asks for the order with each sample",
            diagnosis=r"right, but rank \d asks for the order \d+ times where \d must do",
            body="""
                rank, n = dist.get_rank(group), dist.get_world_size(group)
                share = batch // n
                first = step * batch + rank * share
                return [order(at // samples)[at % samples] for at in range(first, first + share)]
                """,
        ),
    ),
)
