"""zero.own_a_slice: ZeRO-1, where each rank is Adam for an n-th of the parameters."""

import torch

from puzzles.grading.drives.zero import with_backward
from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, case, cases, on_any_ranks
from reference.zero import cost
from reference.zero.plain import BETA_1, BETA_2, EPSILON, RATE, adam, zero_1

from .common import ALL_GATHER, DOUBLE, REDUCE_SCATTER, gradient, sample


def parameters_and_data(case, rank):
    """The same parameters on every rank, and data of its own."""
    numel = case.n * case.slice
    return {"parameters": case.normal(0, numel, name="w"), "steps": case.steps, **sample(case, rank, numel)}


def one_process_with_all_data(case, inputs):
    """Adam as the paper writes it, on everything."""
    w = inputs[0]["parameters"]
    m, v = torch.zeros_like(w), torch.zeros_like(w)
    for step in range(1, case.steps + 1):
        g = gradient(inputs, w)
        m = BETA_1 * m + (1 - BETA_1) * g
        v = BETA_2 * v + (1 - BETA_2) * g * g
        unbiased, square = m / (1 - BETA_1**step), v / (1 - BETA_2**step)
        w = w - RATE * unbiased / (square.sqrt() + EPSILON)
    moments = zip(m.split(case.slice), v.split(case.slice), strict=True)
    return [{"returns": pair, "parameters": w} for pair in moments]


def memory(case, slices):
    """Bytes of one whole gradient, of so many slices, and of the number that backward looks at."""
    return DOUBLE * (case.n * case.slice + slices * case.slice + 1)


PUZZLE = Puzzle(
    name="zero.own_a_slice",
    title="Own a slice of Adam (ZeRO-1)",
    statement="""
        Train for some steps. In plain data parallelism every rank keeps Adam's two moments of all parameters, only to
        do the same arithmetic as every other rank. Share the work instead: rank r owns the r-th slice of the
        parameters, keeps the moments of that slice, and no other rank does.

        The gradient of a step is the sum over ranks: each has divided its loss by the number of tokens of all ranks, so
        sum, and never average. Which part of that sum does a rank need? And what must every rank have before the next
        step begins?

        Given is `adam(parameters, gradient, m, v, step)`: one step, in place on its first argument and on both moments.
        All four tensors have one shape; `step` counts from 1. Moments begin at zero.

        What you need of torch.distributed is called `reduce_scatter_single(out, x, group=group)` and
        `all_gather_single(out, x, group=group)`, before torch 2.13 `reduce_scatter_tensor` and
        `all_gather_into_tensor`. In an all-gather `x` may be its own place in `out`.

        Args:
            parameters: flat, the same on every rank, and n divides their number. Update them in place.
            backward: `backward(parameters)` is the gradient of this rank's part of the loss, of the same shape.
            steps: how many.
            group: n ranks. Any n.

        Returns: (m, v) of this rank's slice, elements [rank * length / n, (rank + 1) * length / n).

        Budget: 2(n-1)/n of the parameters sent in each step, as much as one all-reduce. Memory for one whole gradient
        and six slices: a name that still stands for the last step's gradient keeps a second one.
        """,
    function=zero_1,
    cases=cases(worlds=(4,), slice=(8, 5), steps=(3,))
    + cases(worlds=(3, 2, 1, 5), slice=(7,), steps=(2,))
    + cases(worlds=(4,), members=(0, 2, 3), slice=(4,), steps=(2,)),
    drawn=on_any_ranks(slice=range(2, 9), steps=(2, 3)),
    large=case(4, slice=250_000, steps=2),
    inputs=parameters_and_data,
    oracle=one_process_with_all_data,
    drive=with_backward,
    tolerance=1e-10,
    calls=(*REDUCE_SCATTER, *ALL_GATHER),
    given=(adam,),
    budgets=(
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: case.steps * DOUBLE * cost.elements_sent(1, case.n * case.slice, case.n, 1),
            why="a rank needs the sum of its slice alone: a reduce-scatter, not an all-reduce",
        ),
        Budget(
            Measure.PEAK_BYTES,
            target=lambda case: memory(case, slices=6) + DOUBLE,
            optimum=lambda case: memory(case, slices=3),
            why="a rank needs moments of its slice alone, and the last step's gradient must be gone before the next is "
            "made: `del` it",
        ),
    ),
    hints=(
        "An all-reduce is a reduce-scatter and an all-gather. What could a rank do between the two?",
        "`mine = parameters.view(n, -1)[rank]` is a view: what changes there has changed in `parameters`. Make m and v "
        "with `torch.zeros_like(mine)`, once, before the first step.",
        "Each step: `dist.reduce_scatter_single(gradient, backward(parameters), group=group)` into a gradient of the "
        "shape of `mine`; adam on `mine`; `dist.all_gather_single(parameters, mine, group=group)`.",
    ),
    wrong=(
        Wrong(
            "a full Adam on every rank",
            diagnosis=r"right, but it keeps alive [\d,]+ B where [\d,]+ must do.*\n.*moments of its slice",
            body="""
                rank, n = dist.get_rank(group), dist.get_world_size(group)
                m, v = torch.zeros_like(parameters), torch.zeros_like(parameters)
                for step in range(1, steps + 1):
                    mine = torch.empty_like(parameters.view(n, -1)[rank])
                    gradient = torch.empty_like(parameters)
                    dist.reduce_scatter_single(mine, backward(parameters), group=group)
                    dist.all_gather_single(gradient, mine, group=group)
                    adam(parameters, gradient, m, v, step)
                return m.view(n, -1)[rank].clone(), v.view(n, -1)[rank].clone()
                """,
        ),
        Wrong(
            "the last step's gradient is still there when backward makes the next",
            diagnosis=r"right, but it keeps alive [\d,]+ B where [\d,]+ must do.*\n.*`del` it",
            edits=(
                (
                    "        reduce_scatter_single(gradient, backward(parameters), group=group)\n",
                    "        whole = backward(parameters)\n"
                    "        reduce_scatter_single(gradient, whole, group=group)\n",
                ),
            ),
        ),
        Wrong(
            "every rank gets the whole sum, and uses a slice of it",
            diagnosis=r"right, but rank \d sent [\d,]+ B where [\d,]+ must do.*\n.*sum of its slice alone",
            edits=(
                (
                    "        reduce_scatter_single(gradient, backward(parameters), group=group)\n",
                    "        whole = torch.empty_like(parameters)\n"
                    "        reduce_scatter_single(gradient, backward(parameters), group=group)\n"
                    "        all_gather_single(whole, gradient, group=group)\n"
                    "        gradient = whole.view(n, -1)[rank]\n",
                ),
            ),
        ),
        Wrong(
            "an all-reduce of gradients",
            diagnosis=r"uses dist.all_reduce; allowed here: reduce_scatter|sum of its slice alone",
            body="""
                rank, n = dist.get_rank(group), dist.get_world_size(group)
                mine = parameters.view(n, -1)[rank]
                m, v = torch.zeros_like(mine), torch.zeros_like(mine)
                for step in range(1, steps + 1):
                    gradient = backward(parameters)
                    dist.all_reduce(gradient, group=group)
                    adam(mine, gradient.view(n, -1)[rank], m, v, step)
                    dist.all_gather_single(parameters, mine, group=group)
                return m, v
                """,
        ),
        Wrong(
            "the gradient is averaged",
            diagnosis=r"result\[0\]\[0\]: expected -?[\d.]+, got -?[\d.]+",
            edits=(("    adam(mine, gradient, m", "    gradient /= n\n        adam(mine, gradient, m"),),
        ),
        Wrong(
            "no rank is told the others' updates",
            diagnosis=r"parameters must be the same on every rank: rank 0 and rank 1 differ",
            edits=(("        all_gather_single(parameters, mine, group=group)\n", ""),),
        ),
        Wrong(
            "shared once, at the end",
            diagnosis=r"result\[0\]\[\d\]: expected -?[\d.]+, got",
            edits=(("        all_gather_single(", "    all_gather_single("),),
        ),
        Wrong(
            "moments begin anew in each step",
            diagnosis=r"result\[0\]\[0\]: expected -?[\d.]+, got",
            edits=(
                (
                    "        adam(mine",
                    "        m, v = torch.zeros_like(mine), torch.zeros_like(mine)\n        adam(mine",
                ),
            ),
        ),
        Wrong(
            "each updates with its own gradient",
            diagnosis=r"result\[0\]\[0\]: expected -?[\d.]+, got",
            edits=(
                (
                    "reduce_scatter_single(gradient, backward(parameters), group=group)",
                    "gradient = backward(parameters).view(n, -1)[rank]",
                ),
            ),
        ),
    ),
)
