"""tensor_parallel.dropout: inside the split each rank drops its own features, outside all drop the same."""

from functools import partial

import torch
import torch.distributed as dist

from puzzles.grading.drives.tensor_parallel import named
from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, case, cases, on_any_ranks
from reference.models.dropout import dropped, token_seeds
from reference.tensor_parallel.answers.dropout import drop_and_sum

from .common import DOUBLE, all_reduces, part, whole

NAMES = ("output", "gradient of hidden", "gradient of weight")
WIDTH = 4


def a_whole_layer(case):
    """Hidden features, weight and upstream gradient, as one process has them."""
    features = case.n * case.features
    shapes = {"hidden": (case.tokens, features), "weight": (WIDTH, features), "upstream": (case.tokens, WIDTH)}
    return [whole(case, name, *shape) for name, shape in shapes.items()]


def features_of_it(case, rank):
    """This rank's features, and for every token its seed."""
    hidden, weight, upstream = a_whole_layer(case)
    return {
        "hidden": part(hidden, case, rank, 1),
        "weight": part(weight, case, rank, 1),
        "upstream": upstream,
        "probability": case.probability,
        "seeds": token_seeds(case.seed, 0, torch.arange(case.tokens)),
    }


def dropped_in_one_process(case, inputs):
    """Both masks over all features, by autograd; then every rank's part of the gradients."""
    hidden, weight, upstream = a_whole_layer(case)
    seeds, p = inputs[0]["seeds"], case.probability
    inside, outside = dropped(p, seeds, 0, 0, hidden.shape[1]), dropped(p, seeds, 1, 0, WIDTH)
    leaves = [hidden.requires_grad_(), weight.requires_grad_()]
    output = ((hidden / (1 - p)).masked_fill(inside, 0.0) @ weight.T / (1 - p)).masked_fill(outside, 0.0)
    (output * upstream).sum().backward()
    return [
        {"returns": "3 tensors"}
        | dict(zip(NAMES, (output.detach(), *(part(leaf.grad, case, rank, 1) for leaf in leaves)), strict=True))
        for rank in range(case.n)
    ]


def memory(case):
    """Bytes of a few tensors like `hidden` and like the output; a mask takes two of them while it is made."""
    return DOUBLE * (case.tokens * (6 * max(case.features, WIDTH) + 4 * WIDTH) + WIDTH * case.features)


PUZZLE = Puzzle(
    name="tensor_parallel.dropout",
    title="Dropout inside and outside the split",
    statement="""
        A row-parallel layer with two dropouts, one before it, where each rank has other features, and one after it,
        where all have the same:

            output = drop(sum over ranks of drop(hidden) weightᵀ)

        Dropout sets an element to zero with probability p, and multiplies the others with 1 / (1 - p). Which elements
        these are must not depend on the number of ranks: the layer must give what one process gives. A generator with
        one seed on all ranks drops the first feature of every rank together; with a seed for each rank, the outputs
        differ from rank to rank.

        So no number is drawn here. Given is `dropped(probability, seeds, site, first, features)`: True for what one
        process drops of the features [first, first + features), a bool of [T, features]. It follows from the seed of
        the token, from the number of the feature in the whole, and from `site`: 0 for the dropout inside, 1 for the one
        outside.

        Args:
            hidden: [T, F / n]: rank r has the r-th n-th of the features.
            weight: [D, F / n], this rank's columns.
            upstream: [T, D], gradient of the loss with respect to the output, the same on every rank.
            probability: p.
            seeds: [T] of integers, one for each token, the same on every rank.
            group: n ranks. Any n.

        Returns: three tensors: the output, [T, D], the same on every rank; the gradients of this rank's `hidden` and of
        its `weight`.

        Budget: one all-reduce of T D numbers, and nothing that tells of masks. No masks of others' features.
        """,
    function=drop_and_sum,
    cases=cases(worlds=(2, 3, 4, 1, 5), probability=(0.5,), tokens=(6,), features=(5,))
    + cases(worlds=(8,), probability=(0.5,), tokens=(6,), features=(16,))
    + cases(worlds=(3,), probability=(0.0, 0.25), tokens=(4,), features=(3,))
    + cases(worlds=(4,), members=(0, 2, 3), probability=(0.25,), tokens=(5,), features=(4,)),
    drawn=on_any_ranks(probability=(0.25, 0.5), tokens=range(3, 8), features=range(3, 8)),
    large=case(4, probability=0.5, tokens=800, features=1000),
    inputs=features_of_it,
    oracle=dropped_in_one_process,
    drive=partial(named, NAMES),
    tolerance=1e-10,
    calls=(dist.all_reduce, dist.broadcast),
    given=(dropped,),
    budgets=(
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: all_reduces(case, (case.tokens, WIDTH)),
            why="every rank finds its masks by itself, in backward too: only the sum must travel",
        ),
        Budget(
            Measure.PEAK_BYTES,
            target=memory,
            optimum=lambda case: DOUBLE * (case.tokens * (2 * case.features + WIDTH) + WIDTH * case.features),
            why="of the features inside a rank needs the mask of its own alone: see `first`",
        ),
    ),
    hints=(
        "What number in the whole has this rank's first hidden feature? And its first feature of the output?",
        "Inside: `dropped(probability, seeds, 0, rank * features, features)`. Outside, after the sum, all ranks have "
        "all features: `dropped(probability, seeds, 1, 0, len(weight))`.",
        "`x.masked_fill(mask, 0.0)` sets to zero. Backward: upstream goes through the outer mask and scale, times "
        "weight through the inner ones. The gradient of weight is of what the inner dropout has kept.",
    ),
    wrong=(
        Wrong(
            "every rank drops the first of its own features",
            diagnosis=r"output\[\d, \d\]: expected",
            edits=(("INSIDE, dist.get_rank(group) * features, features)", "INSIDE, 0, features)"),),
        ),
        Wrong(
            "outside, each rank drops others",
            diagnosis=r"output\[\d, \d\]: expected .*\n(.*\n)*right on rank 0, wrong on rank 1",
            edits=(("OUTSIDE, 0, width)", "OUTSIDE, dist.get_rank(group) * width, width)"),),
        ),
        Wrong(
            "a generator on each rank",
            diagnosis=r"output\[\d, \d\]: expected",
            edits=(
                (
                    "inside = dropped(",
                    "inside = hidden.clone().uniform_() < probability\n    unused = dropped(",
                ),
            ),
        ),
        Wrong(
            "the same numbers inside and outside",
            diagnosis=r"output\[\d, \d\]: expected",
            edits=(("probability, seeds, OUTSIDE", "probability, seeds, INSIDE"),),
        ),
        Wrong(
            "what is kept is not scaled up",
            diagnosis=r"output\[\d, \d\]: expected .*\n.*right with probability=0, wrong with probability=0\.25, 0\.5",
            edits=(("1 / (1 - probability)", "1.0"),),
        ),
        Wrong(
            "scaled by p",
            diagnosis=r"ZeroDivisionError|output\[\d, \d\]: expected",
            edits=(("1 / (1 - probability)", "1 / probability"),),
        ),
        Wrong(
            "backward goes through no inner mask",
            diagnosis=r"gradient of hidden\[\d, \d\]: expected 0, got",
            edits=(("(of_total @ weight * scale).masked_fill_(inside, 0.0)", "of_total @ weight * scale"),),
        ),
        Wrong(
            "the weight's gradient is of what went into the dropout",
            diagnosis=r"gradient of weight\[0, 0\]: expected",
            edits=(("of_total.T @ kept", "of_total.T @ hidden"),),
        ),
        Wrong(
            "gradients are summed, as if the hidden features were the same",
            diagnosis=r"gradient of hidden\[\d, \d\]: expected",
            edits=(
                (
                    "    return output, of_hidden,",
                    "    dist.all_reduce(of_hidden, group=group)\n    return output, of_hidden,",
                ),
            ),
        ),
        Wrong(
            "rank 0 tells the others what it drops",
            diagnosis=r"right, but rank \d sent [\d,]+ B where [\d,]+ must do.*\n.*finds its masks by itself",
            edits=(
                (
                    "    kept = (hidden",
                    "    told = outside.byte()\n    dist.broadcast(told, group=group, group_src=0)\n"
                    "    outside = told.bool()\n    kept = (hidden",
                ),
            ),
        ),
        Wrong(
            "cuts its mask out of that of all features",
            diagnosis=r"right, but it keeps alive [\d,]+ B where [\d,]+ must do.*\n.*see `first`",
            edits=(
                (
                    "dropped(probability, seeds, INSIDE, dist.get_rank(group) * features, features)",
                    "dropped(probability, seeds, INSIDE, 0, dist.get_world_size(group) * features)\n"
                    "    inside = inside.split(features, dim=1)[dist.get_rank(group)]",
                ),
            ),
        ),
    ),
)
