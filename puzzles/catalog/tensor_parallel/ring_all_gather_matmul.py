"""tensor_parallel.ring_all_gather_matmul: multiply the rows that are there while the next ones travel."""

from functools import partial

import torch

from puzzles.grading.drives.tensor_parallel import with_products_that_take_time
from puzzles.grading.overlap import NETWORK
from puzzles.grading.puzzle import POINT_TO_POINT, Budget, Measure, Puzzle, Wrong, case, cases, on_any_ranks
from reference.tensor_parallel.answers.overlap import all_gather_matmul

from .common import ALL_GATHER, DOUBLE, by_multiply

WIDTH = 32  # of x: its rows are larger than what they are multiplied to


def width_of(case):
    """Of x."""
    return case.get("width", WIDTH)


def rows_weight_and_speed(case, rank):
    """This rank's rows and its own weight; and for the drive the operations that a rank does in a second."""
    operations = 2 * case.rows * width_of(case) * case.features
    return {
        "x": case.normal(rank, case.rows, width_of(case), name="x"),
        "weight": case.normal(rank, case.features, width_of(case), name="weight"),
        "flops": operations / case.microseconds * 1e6,
    }


def gathered_and_multiplied(case, inputs):
    """All rows in one process, times the weight of each rank."""
    x = torch.cat([each["x"] for each in inputs])
    return [{"returns": x @ each["weight"].T, "x": each["x"]} for each in inputs]


def chunk(case):
    """Bytes of a rank's rows."""
    return case.rows * width_of(case) * DOUBLE


def product(case):
    """Bytes of a rank's rows, multiplied with a weight."""
    return case.rows * case.features * DOUBLE


def overlapped(case):
    """Microseconds: in each step the longer of message and product, and the product of the rows that come last."""
    message = 1e6 * NETWORK.time(0, 1, chunk(case)) if case.n > 1 else 0.0
    return (case.n - 1) * max(case.microseconds, message) + case.microseconds


SLOW = r"right, but on a slow link it takes [\d,.]+ µs where [\d,.]+ must do.*\n.*while the rows"
LARGE = r"right, but it keeps alive [\d,]+ B where [\d,]+ must do.*\n.*rows that were multiplied"

PUZZLE = Puzzle(
    name="tensor_parallel.ring_all_gather_matmul",
    title="An all-gather that hides behind its product",
    statement="""
        Each rank has some rows of X, and needs all of them, times a weight of its own:

            y = all-gather(x) weightᵀ

        The usual way is to gather, then to multiply: while X travels no rank computes, while all compute nothing
        travels, and every rank holds all of X. But the rows of y that belong to one rank's rows of X depend on nothing
        else. And around a ring these come one rank's after another's.

        So multiply the rows that you hold, while you pass them on to the right and receive the next ones from the left.
        What has been multiplied and passed on can be forgotten.

        Args:
            x: [T / n, D], this rank's rows: rank r has the r-th n-th. Leave them as they are.
            weight: [F, D], another one on each rank.
            multiply: `multiply(a, b)` is a @ b. It takes its time: use it for all products.
            group: n ranks. Any n.

        Returns: y, [T, F].

        Budget: n-1 steps, (n-1)/n of X sent. Memory for y and its products, and for three ranks' rows of X at most
        (two are enough), never for the gathered X. On a modelled link the time of n-1 messages or products, whichever
        takes longer, and of one more product.
        """,
    function=all_gather_matmul,
    cases=cases(worlds=(4,), rows=(3,), features=(2,), microseconds=(10, 40))
    + cases(worlds=(3, 2, 1, 5), rows=(2,), features=(3,), microseconds=(20,))
    + cases(worlds=(8,), rows=(1,), features=(2,), microseconds=(20,))
    + cases(worlds=(4,), members=(0, 2, 3), rows=(2,), features=(1,), microseconds=(20,)),
    drawn=on_any_ranks(rows=(1, 2, 3), features=(1, 2), microseconds=(10, 20, 40)),
    large=case(4, rows=1500, features=2, microseconds=20, width=1000),
    inputs=rows_weight_and_speed,
    oracle=gathered_and_multiplied,
    judge=by_multiply(lambda case: case.n),
    drive=partial(with_products_that_take_time, ()),
    tolerance=1e-10,
    calls=(*POINT_TO_POINT, *ALL_GATHER),
    budgets=(
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: (case.n - 1) * chunk(case),
            why="every rank's rows go around once, and stop before they are home again",
        ),
        Budget(
            Measure.STEPS,
            target=lambda case: case.n - 1,
            why="in each of n-1 steps every rank sends and receives at once",
        ),
        Budget(
            Measure.PEAK_BYTES,
            target=lambda case: 2 * case.n * product(case) + product(case) + 3 * chunk(case),
            optimum=lambda case: case.n * product(case) + min(2, case.n - 1) * chunk(case),
            why="rows that were multiplied and passed on are of no use any more: the gathered X need not exist",
        ),
        Budget(
            Measure.MICROSECONDS,
            target=lambda case: overlapped(case) + 0.1,
            optimum=overlapped,
            why="while the rows that you hold are multiplied, they must be in flight, and the next ones, too",
        ),
    ),
    hints=(
        "After s steps around the ring, whose rows do you hold? Which rows of y come of them?",
        "In step s you hold the rows of rank (rank - s) % n. First post the send to the right and the receive from the "
        "left, then multiply, then wait. In the last step there is nothing to post.",
        "`out = x.new_empty(n * len(x), len(weight))`, `places = out.tensor_split(n)`, `held = x`. Two buffers for "
        "what comes in take turns: `incoming = buffers[step % 2]`. `places[(rank - step) % n].copy_(multiply(held, "
        "weight.T))`; after the wait `held = incoming`.",
    ),
    wrong=(
        Wrong(
            "gathers, then multiplies",
            diagnosis=LARGE,
            body="""
                parts = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
                dist.all_gather(parts, x, group=group)
                return multiply(torch.cat(parts), weight.T)
                """,
        ),
        Wrong(
            "keeps all rows that came",
            diagnosis=LARGE,
            edits=(
                ("    held = x\n", "    held, seen = x, []\n"),
                ("incoming, requests = buffers[step % 2], []", "incoming, requests = x.new_empty(x.shape), []"),
                ("        held = incoming\n", "        seen.append(held)\n        held = incoming\n"),
            ),
        ),
        Wrong(
            "waits, then multiplies",
            diagnosis=SLOW,
            edits=(
                ("        places[(rank - step) % n].copy_(multiply(held, weight.T))\n", ""),
                (
                    "        held = incoming\n",
                    "        places[(rank - step) % n].copy_(multiply(held, weight.T))\n        held = incoming\n",
                ),
            ),
        ),
        Wrong(
            "multiplies, then sends",
            diagnosis=SLOW,
            edits=(
                ("        places[(rank - step) % n].copy_(multiply(held, weight.T))\n", ""),
                (
                    "        incoming, requests = buffers",
                    "        places[(rank - step) % n].copy_(multiply(held, weight.T))\n"
                    "        incoming, requests = buffers",
                ),
            ),
        ),
        Wrong(
            "waits, then multiplies in no time",
            diagnosis=r"right, but `multiply` did 0 of 4 products: use it for all of them",
            edits=(
                ("        places[(rank - step) % n].copy_(multiply(held, weight.T))\n", ""),
                (
                    "        held = incoming\n",
                    "        places[(rank - step) % n].copy_(held @ weight.T)\n        held = incoming\n",
                ),
            ),
        ),
        Wrong(
            "rows in the order in which they come",
            diagnosis=r"result\[0, 0\]: expected .*|right values in the wrong order",
            edits=(("places[(rank - step) % n]", "places[step]"),),
        ),
        Wrong(
            "the wrong way around",
            diagnosis=r"result\[\d, 0\]: expected",
            edits=(("places[(rank - step) % n]", "places[(rank + step) % n]"),),
        ),
        Wrong(
            "sends its own rows in every step",
            diagnosis=r"result\[\d, 0\]: expected",
            edits=(("start([(held, (rank", "start([(x, (rank"),),
        ),
        Wrong(
            "receives into what it multiplies",
            diagnosis=r"result\[\d, 0\]: expected|wait\(\)|x\[0, 0\]",
            edits=(("incoming, requests = buffers[step % 2], []", "incoming, requests = held, []"),),
        ),
        Wrong(
            "once around and home again",
            diagnosis=r"right, but rank \d sent [\d,]+ B where [\d,]+ must do.*\n.*stop before they are home",
            edits=(("if step < n - 1:", "if n > 1:"),),
        ),
    ),
)
