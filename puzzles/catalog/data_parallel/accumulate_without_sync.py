"""data_parallel.accumulate_without_sync: many micro-batches, and one sum."""

import torch
import torch.distributed as dist

from puzzles.grading.drives.data_parallel import FUNCTION, ONE_STEP, Layered, in_micro_batches, part_of_loss, taken
from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, cases, on_any_ranks
from reference.data_parallel.answers.reduce_on_last import reduce_on_last

from .common import STEPS, samples_of, sent, sizes_of, weights_of


def micro_batches_of(case, rank):
    """For each step, this rank's micro-batches, of different sizes."""
    return [
        [
            case.normal(rank, samples_of(case, rank, part), case.widths[0], name=f"{step} {part}")
            for part in range(case.micro_batches)
        ]
        for step in range(STEPS)
    ]


def model_and_micro_batches(case, rank):
    parts = range(case.micro_batches)
    everybody = sum(samples_of(case, each, part) for each in range(case.n) for part in parts)
    return {
        "weights": weights_of(case),
        "batches": micro_batches_of(case, rank),
        "samples": [everybody] * STEPS,
    }


def gradients_of_one_process(case, inputs):
    """The gradients of every step, where one process has all samples, and they fit."""
    model, found = Layered(inputs[0]["weights"]), {"returns": FUNCTION, "gradients held": ONE_STEP}
    for step in range(STEPS):
        x = torch.cat([part for each in inputs for part in each["batches"][step]])
        part_of_loss(model, x, len(x)).backward()
        found |= taken(model, step)
    return [found] * case.n


TOTALS = """
    from contextlib import contextmanager

    totals, count = [torch.zeros_like(each) for each in model.parameters()], [0]

    @contextmanager
    def micro_batch(last):
        yield
        count[0] += 1
        for total, parameter in zip(totals, model.parameters()):
            SUM
            parameter.grad = None
        if last:
            for total, parameter in zip(totals, model.parameters()):
                parameter.grad = total.clone()
                END
                total.zero_()
            count[0] = 0

    return micro_batch
    """


def with_totals(each, end):
    """A program that keeps totals of its own: what it does to one in each micro-batch, and in the end."""
    return TOTALS.replace("SUM", each).replace("END", end)


PUZZLE = Puzzle(
    name="data_parallel.accumulate_without_sync",
    title="Accumulate without communicating",
    statement="""
        A batch that does not fit into memory is cut into micro-batches. Each goes forward and backward alone, and
        autograd adds what it finds to `.grad`. Only the sum over all of them is of use to others: so let nothing
        travel before the last micro-batch.

        A hook (`parameter.register_post_accumulate_grad_hook(hook)`) is called in every backward. It has to know
        whether this is the last one. The loop tells you:

            for k, x in enumerate(micro_batches):
                with micro_batch(k == len(micro_batches) - 1):
                    loss(model(x)).backward()
            optimizer.step()

        What is before the `yield` in a function under `@contextmanager` happens when the block is entered, what is
        after it when the block is left.

        The loss is divided by the number of samples of all micro-batches of all ranks already: gradients add up.

        Args:
            model: an `nn.Module`, the same on every rank. Each backward gives all of its parameters a gradient.
            group: n ranks. Any n.

        Returns: `micro_batch`, a function of `last` that returns what to put around a micro-batch. At the end of the
        last one, every `.grad` must be the sum over all micro-batches of all ranks. So also in the second step, when
        nothing may hold the gradients of the first any more.

        Budget: every gradient is sent once in each step, however many micro-batches it has.
        """,
    function=reduce_on_last,
    cases=cases(worlds=(2, 3, 4, 1, 5), widths=((4, 3, 2),), micro_batches=(3,))
    + cases(worlds=(3,), widths=((5, 5),), micro_batches=(1, 2, 5))
    + cases(worlds=(4,), members=(0, 2, 3), widths=((4, 3, 2),), micro_batches=(2,)),
    drawn=on_any_ranks(widths=((3, 5, 2), (6, 1, 4), (2, 7, 3)), micro_batches=range(1, 5)),
    inputs=model_and_micro_batches,
    oracle=gradients_of_one_process,
    drive=in_micro_batches,
    tolerance=1e-10,
    calls=(dist.all_reduce,),
    budgets=(
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: STEPS * sent(case),
            why="of a step's micro-batches only the last one may send: the sum of all",
        ),
        Budget(
            Measure.CALLS,
            target=lambda case: STEPS * len(sizes_of(case)),
            optimum=lambda case: STEPS,
            why="one message for each parameter and step",
        ),
    ),
    hints=(
        "When is a hook called, and when must it know that this is the last micro-batch?",
        "Remember `last` in a variable that the hook sees (`nonlocal`), before the `yield`. The hook looks at it.",
        "In the last backward `.grad` already holds the sum of all micro-batches when the hook is called: sum it over "
        "the group as it is, and wait after the `yield`.",
    ),
    wrong=(
        Wrong(
            "the sync flag set too late",
            diagnosis=r"must be the same on every rank: rank 0 and rank 1 differ",
            edits=(("        is_last = last\n        yield\n", "        yield\n        is_last = last\n"),),
        ),
        Wrong(
            "once on, always on",
            diagnosis=r"step 1, layers\.0\.weight\.grad",
            edits=(("        is_last = last\n", "        is_last = is_last or last\n"),),
        ),
        Wrong(
            "the sum so far, summed in every micro-batch",
            diagnosis=r"layers\.0\.weight\.grad.*expected",
            edits=(("        if is_last:\n            works", "        if True:\n            works"),),
        ),
        Wrong(
            "an exponential average over micro-batches",
            diagnosis=r"layers\.0\.weight\.grad.*expected",
            body=with_totals(
                "total.copy_((total + parameter.grad) / 2)", "dist.all_reduce(parameter.grad, group=group)"
            ),
        ),
        Wrong(
            "the mean over micro-batches",
            diagnosis=r"off by a factor of|layers\.0\.weight\.grad.*expected",
            body=with_totals("total += parameter.grad", "dist.all_reduce(parameter.grad.div_(count[0]), group=group)"),
        ),
        Wrong(
            "only the last micro-batch",
            diagnosis=r"layers\.0\.weight\.grad.*expected",
            body=with_totals("total.copy_(parameter.grad)", "dist.all_reduce(parameter.grad, group=group)"),
        ),
        Wrong(
            "no rank communicates",
            diagnosis=r"must be the same on every rank: rank 0 and rank 1 differ",
            edits=(("        is_last = last\n", ""),),
        ),
        Wrong(
            "every micro-batch is summed over ranks",
            diagnosis=r"right, but rank \d sent [\d,]+ B where [\d,]+ must do.*\n.*only the last one may send",
            body=with_totals(
                "dist.all_reduce(parameter.grad, group=group)\n            total += parameter.grad", "pass"
            ),
        ),
        Wrong(
            "requests that are never forgotten",
            diagnosis=r"gradients held: expected 'of one step at most', got '(\d+) of \1 in 2 steps'",
            edits=(("        works.clear()\n", ""),),
        ),
        Wrong(
            "not waited for",
            diagnosis=r"wait\(\)|never waited",
            edits=(("        for work in works:\n            work.wait()\n", ""),),
        ),
    ),
)
