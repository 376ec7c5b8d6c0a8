"""tensor_parallel.which_operator: Megatron's f and g, each the backward of the other."""

import torch.distributed as dist

from puzzles.grading.drives.tensor_parallel import OPERATORS, around_two_layers
from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, cases, on_any_ranks
from reference.tensor_parallel.plain import operators

from .common import all_reduces, numbers, part

WIDTH = 3


def two_layers(case):
    """x, the weights of both layers and the gradient of y, as one process has them."""
    hidden = case.n * case.features
    shapes = {"x": (case.tokens, WIDTH), "first": (hidden, WIDTH), "second": (WIDTH, hidden)}
    return [numbers(case, name, *shape) for name, shape in (*shapes.items(), ("upstream", (case.tokens, WIDTH)))]


def parts_of_both(case, rank):
    """What every rank has, and this rank's rows of the first weight and columns of the second."""
    x, first, second, upstream = two_layers(case)
    return {"x": x, "first": part(first, case, rank, 0), "second": part(second, case, rank, 1), "upstream": upstream}


def both_layers_in_one_process(case, inputs):
    """What each operator gives there and back: whole tensors, the same on every rank."""
    x, first, second, upstream = two_layers(case)
    both = first.T @ second.T
    values = {
        "returns": OPERATORS,
        "what f gives": x,
        "what g gives": x @ both,
        "the gradient that g gives back": upstream,
        "the gradient that f gives back": upstream @ both.T,
        "x, which f was given": x,
    }
    inside = [part(first, case, rank, 0).T @ part(second, case, rank, 1).T for rank in range(case.n)]
    parts = [(x @ own, upstream @ own.T) for own in inside]
    names = "the part, which g was given", "the gradient, which f was given"
    return [values | dict(zip(names, own, strict=True)) for own in parts]


TWO_FUNCTIONS = """
    class {name}(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            {forward}

        @staticmethod
        def backward(ctx, gradient):
            {backward}
"""
SUM_OF = "total = {0}.clone()\n            dist.all_reduce(total, group=group)\n            return total"
SUM, SUM_BACK = SUM_OF.format("x"), SUM_OF.format("gradient")
SUM_IN_PLACE = "dist.all_reduce({0}, group=group)\n            return {0}"
NOTHING, NOTHING_BACK = "return x.view_as(x)", "return gradient"


def bodies(f: tuple[str, str], g: tuple[str, str]) -> str:
    """A solution with these two lines of forward and backward in f, and in g."""
    pairs = (("F", f), ("G", g))
    classes = [TWO_FUNCTIONS.format(name=name, forward=there, backward=back) for name, (there, back) in pairs]
    return "".join(classes) + "\n    return F.apply, G.apply\n"


PUZZLE = Puzzle(
    name="tensor_parallel.which_operator",
    title="Which operator on the way there, and which on the way back",
    statement="""
        A layer that is split by columns, then one that is split by rows: y = x Aᵀ Bᵀ, where rank r has some rows of A
        and the columns of B that belong to them. What ranks need of each other happens at the two ends, and Megatron
        calls it f and g:

            x ── f ── x Aᵀ, this rank's features ── · Bᵀ, a part of y ── g ── y

        Outside, every rank has the same x and the same y, and computes the same loss from it, so the gradient of y is
        the same on every rank, too. Inside, each does work of its own. f and g must see to it that this holds on the
        way there and on the way back. What does each of them do in forward, and what in backward? Four answers, and
        "nothing" is among them.

        Write them so that autograd goes through: a `torch.autograd.Function` each, with `forward(ctx, x)` and
        `backward(ctx, gradient)`, whose `apply` is the operator. Both leave the tensor that they are given as it is,
        in backward, too.

        Args:
            group: n ranks. Any n.

        Returns: two functions, f and g. Each takes a tensor and gives one of the same shape.

        Budget: two all-reduces, one on the way there and one on the way back.
        """,
    function=operators,
    answer=bodies((NOTHING, SUM_BACK), (SUM, NOTHING_BACK)),
    cases=cases(worlds=(2, 3, 4, 1, 5, 8), tokens=(2,), features=(1,))
    + cases(worlds=(3,), tokens=(1, 5), features=(2,))
    + cases(worlds=(4,), members=(0, 2, 3), tokens=(2,), features=(2,)),
    drawn=on_any_ranks(tokens=range(1, 6), features=(1, 2)),
    inputs=parts_of_both,
    oracle=both_layers_in_one_process,
    drive=around_two_layers,
    calls=(dist.all_reduce,),
    budgets=(
        Budget(
            Measure.CALLS,
            target=lambda case: 2,
            why="what is the same on every rank needs no sum: of f and g, each adds up in one direction only",
        ),
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: all_reduces(case, *[(case.tokens, WIDTH)] * 2),
            why="what is the same on every rank needs no sum: of f and g, each adds up in one direction only",
        ),
    ),
    hints=(
        "Go through the four places. At which of them have ranks different tensors of the same shape, of which the "
        "whole is the sum?",
        "y is a sum over all features, and each rank has the summands of its own. And x: each rank has used it, with "
        "other weights, so each finds a part of its gradient.",
        "f: forward gives x, backward all-reduces the gradient. g: forward all-reduces, backward gives the gradient. "
        "Sum into a copy: `total = x.clone()`.",
    ),
    wrong=(
        Wrong(
            "g adds up in both directions",
            diagnosis=r"the gradient that g gives back\[0, 0\].*\n.*off by exactly the world size, too much",
            body=bodies((NOTHING, SUM_BACK), (SUM, SUM_BACK)),
        ),
        Wrong(
            "f adds up in both directions: the output depends on the number of ranks",
            diagnosis=r"what f gives\[\d, \d\].*\n.*off by exactly the world size, too much",
            body=bodies((SUM, SUM_BACK), (SUM, NOTHING_BACK)),
        ),
        Wrong(
            "f and g are swapped",
            diagnosis=r"what f gives\[\d, \d\]: expected",
            body=bodies((SUM, NOTHING_BACK), (NOTHING, SUM_BACK)),
        ),
        Wrong(
            "f does nothing at all",
            diagnosis=r"the gradient that f gives back must be the same on every rank: rank 0 and rank 1 differ",
            body=bodies((NOTHING, NOTHING_BACK), (SUM, NOTHING_BACK)),
        ),
        Wrong(
            "g does nothing at all",
            diagnosis=r"what g gives must be the same on every rank: rank 0 and rank 1 differ",
            body=bodies((NOTHING, SUM_BACK), (NOTHING, NOTHING_BACK)),
        ),
        Wrong(
            "g is an all-reduce that autograd does not see",
            diagnosis=r"the gradient that \w gives back: expected a float64 tensor of shape \(2, 3\), got None",
            body="""
                class F(torch.autograd.Function):
                    @staticmethod
                    def forward(ctx, x):
                        return x.view_as(x)

                    @staticmethod
                    def backward(ctx, gradient):
                        total = gradient.clone()
                        dist.all_reduce(total, group=group)
                        return total

                def g(x):
                    total = x.detach().clone()
                    dist.all_reduce(total, group=group)
                    return total

                return F.apply, g
                """,
        ),
        Wrong(
            "g adds up in the tensor that it is given",
            diagnosis=r"the part, which g was given\[0, 0\]: expected",
            body=bodies((NOTHING, SUM_BACK), (SUM_IN_PLACE.format("x"), NOTHING_BACK)),
        ),
        Wrong(
            "f adds up in the gradient that it is given",
            diagnosis=r"the gradient, which f was given\[0, 0\]: expected",
            body=bodies((NOTHING, SUM_IN_PLACE.format("gradient")), (SUM, NOTHING_BACK)),
        ),
        Wrong(
            "the gradient of x is averaged",
            diagnosis=r"the gradient that f gives back.*\n.*off by exactly the world size, too little: averaged",
            body=bodies(
                (NOTHING, SUM_BACK.replace("return total", "return total / dist.get_world_size(group)")),
                (SUM, NOTHING_BACK),
            ),
        ),
        Wrong(
            "g averages on the way back what is the same already",
            diagnosis=r"right, but .* where [\d,]+ must do.*\n.*in one direction only",
            body=bodies(
                (NOTHING, SUM_BACK),
                (SUM, SUM_BACK.replace("return total", "return total / dist.get_world_size(group)")),
            ),
        ),
    ),
)
