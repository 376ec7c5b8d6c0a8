"""tensor_parallel.overlap_input_gradient: one of two gradients travels while the other is computed."""

from functools import partial

import torch.distributed as dist

from puzzles.grading.drives.tensor_parallel import with_products_that_take_time
from puzzles.grading.overlap import NETWORK
from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, cases, on_any_ranks
from reference.networks.plain import ring_time
from reference.tensor_parallel.answers.overlap import column_backward

from .common import ALL_GATHER, DOUBLE, all_reduces, by_multiply, part, whole

NAMES = ("gradient of x", "gradient of weight")
WIDTH, FEATURES = 6, 3  # of x, and of y on a rank


def a_whole_layer(case):
    """x, weight and the gradient of y, as one process has them."""
    features = case.n * FEATURES
    shapes = {"x": (case.tokens, WIDTH), "weight": (features, WIDTH), "upstream": (case.tokens, features)}
    return [whole(case, name, *shape) for name, shape in shapes.items()]


def features_and_speed(case, rank):
    """The whole x, this rank's features; and for the drive the operations that a rank does in a second."""
    x, weight, upstream = a_whole_layer(case)
    operations = 2 * case.tokens * WIDTH * FEATURES
    return {
        "x": x,
        "weight": part(weight, case, rank, 0),
        "upstream": part(upstream, case, rank, 1),
        "flops": operations / case.microseconds * 1e6,
    }


def in_one_process(case, inputs):
    """Backward of the whole layer, by autograd."""
    x, weight, upstream = a_whole_layer(case)
    leaves = [x.requires_grad_(), weight.requires_grad_()]
    (x @ weight.T * upstream).sum().backward()
    of_x, of_weight = (leaf.grad for leaf in leaves)
    shards = [part(of_weight, case, rank, 0) for rank in range(case.n)]
    return [{"returns": "2 tensors", **dict(zip(NAMES, (of_x, each), strict=True))} for each in shards]


def overlapped(case):
    """Microseconds: one product, then the all-reduce and the other product side by side."""
    largest_chunk = -(-case.tokens * WIDTH // case.n) * DOUBLE
    message = 1e6 * ring_time(case.n, case.n * largest_chunk, NETWORK.intra.alpha, NETWORK.intra.beta)
    return case.microseconds + max(case.microseconds, message)


PUZZLE = Puzzle(
    name="tensor_parallel.overlap_input_gradient",
    title="Hide the all-reduce of the input's gradient",
    statement="""
        Backward of a column-parallel layer y = x Aᵀ is two products of the same size:

            gradient of x = u A, summed over ranks        gradient of A = uᵀ x, of this rank's rows alone

        One of them has to travel, the other has not. So the one can travel while the other is computed.

        `dist.all_reduce(tensor, group=group, async_op=True)` returns at once, and gives you a request. Until
        that is done, no code may read or write the tensor: `request.wait()` returns when it is.

        Args:
            x: [T, D], the same on every rank.
            weight: [F / n, D], this rank's rows of A.
            upstream: [T, F / n], u: gradient of the loss with respect to this rank's features of y.
            multiply: `multiply(a, b)` is a @ b. It takes its time: use it for both products.
            group: n ranks. Any n.

        Returns: two tensors: the gradient of x, [T, D], the same on every rank; the gradient of this rank's weight,
        [F / n, D].

        Budget: on a modelled link the time of one product, and of a second one or of the all-reduce, whichever takes
        longer. One all-reduce of T D numbers.
        """,
    function=column_backward,
    cases=cases(worlds=(4, 2, 3), tokens=(5,), microseconds=(20, 100))
    + cases(worlds=(1, 5), tokens=(4,), microseconds=(40,))
    + cases(worlds=(8,), tokens=(3,), microseconds=(100,))
    + cases(worlds=(4,), members=(0, 2, 3), tokens=(1,), microseconds=(40,)),
    drawn=on_any_ranks(tokens=range(2, 7), microseconds=(20, 50, 100)),
    inputs=features_and_speed,
    oracle=in_one_process,
    judge=by_multiply(lambda case: 2),
    drive=partial(with_products_that_take_time, NAMES),
    tolerance=1e-10,
    calls=(dist.all_reduce, *ALL_GATHER),
    budgets=(
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: all_reduces(case, (case.tokens, WIDTH)),
            why="one all-reduce of the gradient of x is all that travels",
        ),
        Budget(
            Measure.MICROSECONDS,
            target=lambda case: overlapped(case) + 0.1,
            optimum=overlapped,
            why="the all-reduce must be under way while the other product is computed: begun before, waited for after",
        ),
    ),
    hints=(
        "Which of the two products must come first, and what can be done with it at once?",
        "Compute the gradient of x, begin its all-reduce with `async_op=True`, compute the gradient of the weight. "
        "When must the request have been waited for?",
        "`work = dist.all_reduce(of_x, group=group, async_op=True)`, then `multiply(upstream.T, x)`, then "
        "`work.wait()`, then return.",
    ),
    wrong=(
        Wrong(
            "all-reduces when both are there",
            diagnosis=r"right, but on a slow link it takes [\d,.]+ µs where [\d,.]+ must do.*\n.*begun before, waited",
            body="""
                of_x, of_weight = multiply(upstream, weight), multiply(upstream.T, x)
                dist.all_reduce(of_x, group=group)
                return of_x, of_weight
                """,
        ),
        Wrong(
            "the weight's gradient first",
            diagnosis=r"right, but on a slow link it takes [\d,.]+ µs where [\d,.]+ must do.*\n.*begun before, waited",
            body="""
                of_weight = multiply(upstream.T, x)
                of_x = multiply(upstream, weight)
                work = dist.all_reduce(of_x, group=group, async_op=True)
                work.wait()
                return of_x, of_weight
                """,
        ),
        Wrong(
            "asynchronous, and waited for at once",
            diagnosis=r"right, but on a slow link it takes [\d,.]+ µs where [\d,.]+ must do.*\n.*waited for after",
            edits=(
                ("async_op=True)\n", "async_op=True)\n    work.wait()\n"),
                ("x)\n    work.wait()\n", "x)\n"),
            ),
        ),
        Wrong(
            "an all-reduce for each token",
            diagnosis=r"right, but on a slow link it takes [\d,.]+ µs where [\d,.]+ must do"
            r"|right, but rank \d sent",
            edits=(
                (
                    "work = dist.all_reduce(of_x, group=group, async_op=True)",
                    "works = [dist.all_reduce(token, group=group, async_op=True) for token in of_x]",
                ),
                ("    work.wait()\n", "    for work in works:\n        work.wait()\n"),
            ),
        ),
        Wrong(
            "in a row, by products that take no time",
            diagnosis=r"right, but `multiply` did 0 of 2 products: use it for all of them",
            body="""
                of_x = upstream @ weight
                dist.all_reduce(of_x, group=group)
                return of_x, upstream.T @ x
                """,
        ),
        Wrong(
            "no rank waits",
            diagnosis=r"wait\(\)",
            edits=(("    work.wait()\n", ""),),
        ),
        Wrong(
            "the weight's gradient travels",
            diagnosis=r"gradient of x\[0, 0\]: expected",
            body="""
                of_weight = multiply(upstream.T, x)
                work = dist.all_reduce(of_weight, group=group, async_op=True)
                of_x = multiply(upstream, weight)
                work.wait()
                return of_x, of_weight
                """,
        ),
        Wrong(
            "both travel",
            diagnosis=r"gradient of weight\[0, 0\]: expected",
            edits=(
                (
                    "    work.wait()\n",
                    "    other = dist.all_reduce(of_weight, group=group, async_op=True)\n"
                    "    work.wait()\n    other.wait()\n",
                ),
            ),
        ),
        Wrong(
            "gathers what each rank has, and adds it up",
            diagnosis=r"right, but rank \d sent [\d,]+ B where [\d,]+ must do.*\n.*one all-reduce",
            edits=(
                (
                    "work = dist.all_reduce(of_x, group=group, async_op=True)",
                    "parts = [of_x.clone() for _ in range(dist.get_world_size(group))]\n"
                    "    work = dist.all_gather(parts, of_x, group=group, async_op=True)",
                ),
                ("    return of_x, of_weight", "    return sum(parts), of_weight"),
            ),
        ),
    ),
)
