"""memory.loss_scaler: as large a scale as float16 can take, found while training, on ranks that must agree."""

import torch
import torch.distributed as dist

from puzzles.grading.drives.memory import scaled_steps
from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, cases, on_any_ranks
from reference.memory.plain import scaled_step

SHAPES = ((3, 4), (7,), (5,))
SIZES = (1.0, 1.0, 1e-8)  # of the numbers in each: fp16 holds the last ones with the scale, and not without it
START = 16384.0  # times 1 to 2 fits into float16, times 100 does not
HISTORIES = {  # what befalls the gradients, step by step: (which rank's, what to multiply one of them by)
    "calm": [None] * 6,
    "spikes": [None, (0, 60.0), None, None, (-1, 60.0), (-1, 60.0), None, None, None],
    "nan": [None, None, (-1, float("nan")), None, None, (0, float("-inf")), None],
}


def slices_and_histories(case, rank):
    """This rank's slice of the weights, and its gradients for each step, some of them too large."""
    generator = torch.Generator().manual_seed(1000 * case.seed + rank)

    def numbers():
        return [(1 + torch.rand(shape, generator=generator)) * size for shape, size in zip(SHAPES, SIZES, strict=True)]

    steps = []
    for number, event in enumerate(HISTORIES[case.history]):
        gradients = numbers()
        if event and event[0] % case.n == rank:
            gradients[number % 2].view(-1)[number] *= event[1]
        steps.append(gradients)
    return {
        "masters": numbers(),
        "gradients": steps,
        "scale": START,
        "interval": case.interval,
        "learning_rate": 0.01,
    }


def all_ranks_together(case, inputs):
    """One process that sees all ranks' gradients, and knows float16's limits by heart."""
    scale, good, said = START, 0, []
    masters = [[master.double() for master in each["masters"]] for each in inputs]
    for step in range(len(HISTORIES[case.history])):
        scaled = [[(gradient * scale).half().double() for gradient in each["gradients"][step]] for each in inputs]
        overflow = any(not gradient.abs().le(65504).all() for each in scaled for gradient in each)
        if overflow:
            scale, good = scale / 2, 0
        else:
            for mine, gradients in zip(masters, scaled, strict=True):
                for master, gradient in zip(mine, gradients, strict=True):
                    master -= 0.01 * gradient / scale
            good += 1
            if good == case.interval:
                scale, good = scale * 2, 0
        said.append([scale, good])
    return [
        {"scale and good steps": said, **{f"masters {i}": master.float() for i, master in enumerate(mine)}}
        for mine in masters
    ]


def steps(case):
    """How many there are."""
    return len(HISTORIES[case.history])


PUZZLE = Puzzle(
    name="memory.loss_scaler",
    title="A scale that finds itself",
    statement="""
        float16 begins at 6e-8 and ends at 65,504. Gradients are small, so the loss is multiplied by a scale before
        backward: the larger, the fewer gradients vanish. But if one of them grows beyond 65,504, it is inf.

        So the scale finds itself. If any gradient is inf or NaN, the step is skipped: no weight moves, and the scale is
        halved. Otherwise the step is taken; and after `interval` good steps in a row, the scale is doubled. A change of
        the scale, up or down, begins a new row.

        Each rank has its own slice of the weights and of the gradients. An overflow on one rank must count on all
        ranks: if it skipped alone, its slice would be a step behind, and its scale another one, forever.

        Args:
            masters: float32, this rank's slice of the weights; updated in place, by -learning_rate times the gradient
                of the loss itself.
            gradients: float16, of the loss times `scale`; tensors of the same shapes.
            scale: the same on every rank.
            good_steps: good steps in a row until now.
            interval: after so many, the scale is doubled.
            learning_rate: what a gradient is multiplied by.
            group: n ranks. Any n.

        Returns: (scale, good_steps) to continue with, a float and an int, the same on every rank.

        Budget: one call, of one number. Send a flag and not the overflow itself: no message may hold inf or NaN.
        """,
    function=scaled_step,
    cases=cases(worlds=(3,), history=("spikes", "nan"), interval=(2,))
    + cases(worlds=(3, 1), history=("calm",), interval=(3,))
    + cases(worlds=(2, 4), history=("spikes",), interval=(3,))
    + cases(worlds=(4,), members=(0, 2, 3), history=("spikes",), interval=(2,)),
    drawn=on_any_ranks(history=("calm", "spikes"), interval=(2, 3)),
    inputs=slices_and_histories,
    oracle=all_ranks_together,
    drive=scaled_steps,
    calls=(dist.all_reduce,),
    budgets=(
        Budget(
            Measure.CALLS,
            target=steps,
            why="look at all of your gradients first, and tell the others once",
        ),
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: steps(case) * 8 * 2 * (case.n - 1),
            optimum=lambda case: steps(case) * (case.n > 1),  # a flag may have one byte
            why="one of your numbers overflows or none does; the others need not know which",
        ),
    ),
    hints=(
        "`tensor.isfinite().all()` finds inf, -inf and NaN. What does a rank that has found none still not know?",
        "Let each rank bring 1.0 if it has an overflow and 0.0 if not. Which reduction says whether any rank has one?",
        "`dist.all_reduce(overflow, dist.ReduceOp.MAX, group)`; then, if overflow: return scale / 2, 0. Otherwise "
        "update, and count: at `interval` return scale * 2, 0.",
    ),
    wrong=(
        Wrong(
            "every rank for itself",
            diagnosis=r"scale and good steps must be the same on every rank: rank 0 and rank 1 differ",
            edits=(("    dist.all_reduce(overflow, dist.ReduceOp.MAX, group)\n", ""),),
        ),
        Wrong(
            "the step is taken with inf in it",
            diagnosis=r"right with history=calm, wrong with history=nan, spikes",
            body="""
                overflow = torch.tensor(float(not all(gradient.isfinite().all() for gradient in gradients)))
                dist.all_reduce(overflow, dist.ReduceOp.MAX, group)
                for master, gradient in zip(masters, gradients):
                    master -= learning_rate * (gradient.float() / scale)
                if overflow:
                    return scale / 2, 0
                return (scale * 2, 0) if good_steps + 1 == interval else (scale, good_steps + 1)
                """,
        ),
        Wrong(
            "inf is found, and NaN is not",
            diagnosis=r"right with history=calm, spikes, wrong with history=nan",
            edits=(
                (
                    "all(gradient.isfinite().all() for gradient in gradients)",
                    "not any(gradient.isinf().any() for gradient in gradients)",
                ),
            ),
        ),
        Wrong(
            "the first tensor speaks for all",
            diagnosis=r"scale and good steps\[\d\]\[0\]: expected",
            edits=(("for gradient in gradients)", "for gradient in gradients[:1])"),),
        ),
        Wrong(
            "a skipped step counts as a good one",
            diagnosis=r"scale and good steps\[1\]\[1\]: expected 0, got 2",
            edits=(("return scale / 2, 0", "return scale / 2, good_steps + 1"),),
        ),
        Wrong(
            "the row continues after a skipped step",
            diagnosis=r"scale and good steps\[1\]\[1\]: expected 0, got 1",
            edits=(("return scale / 2, 0", "return scale / 2, good_steps"),),
        ),
        Wrong(
            "the row continues when the scale has grown",
            diagnosis=r"scale and good steps\[\d\]\[1\]: expected 0, got [23]",
            edits=(("(scale * 2, 0)", "(scale * 2, good_steps + 1)"),),
        ),
        Wrong(
            "grown one step late",
            diagnosis=r"scale and good steps\[\d\]\[0\]: expected 32768, got 16384|expected 16384, got 8192",
            edits=(("good_steps + 1 == interval", "good_steps == interval"),),
        ),
        Wrong(
            "the scale is still in the update",
            diagnosis=r"masters 0\[0, 0\]: expected",
            edits=(("(gradient.float() / scale)", "gradient.float()"),),
        ),
        Wrong(
            "divided in 16 bits, where it underflows",
            diagnosis=r"masters 2\[0\]: expected",
            edits=(("(gradient.float() / scale)", "(gradient / scale).float()"),),
        ),
        Wrong(
            "one call for each tensor",
            diagnosis=r"right, but a rank makes [\d,]+ calls where [\d,]+ must do.*\n.*tell the others once",
            body="""
                overflow = torch.zeros(())
                for gradient in gradients:
                    found = torch.tensor(float(not gradient.isfinite().all()))
                    dist.all_reduce(found, dist.ReduceOp.MAX, group)
                    overflow = overflow + found
                if overflow:
                    return scale / 2, 0
                for master, gradient in zip(masters, gradients):
                    master -= learning_rate * (gradient.float() / scale)
                return (scale * 2, 0) if good_steps + 1 == interval else (scale, good_steps + 1)
                """,
        ),
        Wrong(
            "every rank is told every element",
            diagnosis=r"right, but rank \d sent [\d,]+ B where [\d,]+ must do.*\n.*need not know which",
            body="""
                mine = torch.cat([gradient.isfinite().flatten() for gradient in gradients]).float()
                dist.all_reduce(mine, dist.ReduceOp.MIN, group)
                if not mine.all():
                    return scale / 2, 0
                for master, gradient in zip(masters, gradients):
                    master -= learning_rate * (gradient.float() / scale)
                return (scale * 2, 0) if good_steps + 1 == interval else (scale, good_steps + 1)
                """,
        ),
    ),
)
