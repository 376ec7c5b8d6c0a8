"""decentralized.parameter_server: gradients of weights that are late, in a known order."""

import random

import torch.distributed as dist

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, cases, on_any_ranks
from reference.decentralized.answers.server import parameter_server

RATE, DOUBLE = 0.25, 8


def order_of(case):
    """Whose gradients come, one after another: any worker, some of them never."""
    chance = random.Random(case.seed)
    return [chance.randrange(1, case.n) for _ in range(case.pushes)] if case.n > 1 else []


def a_rank(case, rank):
    """The first weights are the server's; a worker has room for some, and a target."""
    return {
        "weight": case.normal(rank, case.length, name="weight"),
        "target": case.normal(rank, case.length, name="target"),
        "order": order_of(case),
        "rate": RATE,
    }


def late_gradients(case, inputs):
    """Each worker has the weights that it was last sent."""
    weight = inputs[0]["weight"]
    has = [weight] * case.n
    for worker in order_of(case):
        weight = weight - RATE * (has[worker] - inputs[worker]["target"])
        has[worker] = weight
    return [{"weight": each} for each in [weight, *has[1:]]]


def pushes_and_first(case):
    """What the server sends: the first weights to each worker, and an answer to each gradient."""
    return case.n - 1 + len(order_of(case))


PUSH = "            dist.send(weight - target, group=group, group_dst=0)\n"

PUZZLE = Puzzle(
    name="decentralized.parameter_server",
    title="A parameter server",
    statement="""
        Rank 0 is a server: it has the weights, and computes nothing. All others are workers: each gets the weights from
        the server, computes a gradient, sends it, and gets new weights as the answer. No worker waits for another one,
        so most gradients are of weights that have changed meanwhile. They are applied all the same.

        Which gradient comes first is chance, so that no run is like the one before. Here `order` says whose is the
        next that the server applies; that is how a run is repeated from its log.

        Args:
            weight: [N] in float64. On rank 0 the first weights, updated in place: weight -= rate * gradient. On a
                worker it means nothing at first; afterwards it must hold the last weights that the server has sent it.
            target: [N], of this worker: its gradient is `weight - target`, with the weights that it has. On rank 0 it
                means nothing.
            order: group ranks of workers, as often as each pushes. The same on all ranks. A worker that is not in it
                only gets the first weights.
            rate: of learning.
            group: n ranks. Any n; with one there is no worker.

        Budget: the server sends its weights once to each worker, and once for each gradient.
        """,
    function=parameter_server,
    cases=cases(worlds=(3, 4, 2, 5), pushes=(5,), length=(3,))
    + cases(worlds=(1,), pushes=(0,), length=(3,))
    + cases(worlds=(8,), pushes=(9,), length=(4,))
    + cases(worlds=(4,), members=(0, 2, 3), pushes=(6,), length=(4,)),
    drawn=on_any_ranks(pushes=(3, 5, 8), length=range(2, 9)),
    inputs=a_rank,
    oracle=late_gradients,
    tolerance=1e-12,
    calls=(dist.send, dist.recv, dist.isend, dist.irecv),
    budgets=(
        Budget(
            Measure.CALLS,
            target=lambda case: pushes_and_first(case) + len(order_of(case)),
            why="the answer to a gradient carries new weights: they need not be asked for",
        ),
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: DOUBLE * case.length * pushes_and_first(case),
            why="only the worker whose gradient was applied gets new weights",
        ),
    ),
    hints=(
        "Write the worker first: what does it receive, before its first gradient and after each? How often is it in "
        "`order`?",
        "The server: the first weights to each worker; then, for each in `order`, receive, update, answer.",
        "`order.count(rank)` is how many gradients a worker sends. The server's `dist.recv` names the worker: "
        "`group_src=worker`.",
    ),
    wrong=(
        Wrong(
            "workers compute with the first weights all the time",
            diagnosis=r"weight.*expected",
            edits=(
                (
                    "        for _ in range(order.count(rank)):\n",
                    "        first = weight.clone()\n        for _ in range(order.count(rank)):\n",
                ),
                ("dist.send(weight - target", "dist.send(first - target"),
            ),
        ),
        Wrong(
            "one worker after another",
            diagnosis=r"expected",
            edits=(("    for worker in order:\n", "    for worker in sorted(order):\n"),),
        ),
        Wrong(
            "answers before it updates",
            diagnosis=r"weight.*expected",
            edits=(
                (
                    "        weight -= rate * gradient\n        dist.send(weight, group=group, group_dst=worker)\n",
                    "        dist.send(weight, group=group, group_dst=worker)\n        weight -= rate * gradient\n",
                ),
            ),
        ),
        Wrong(
            "the mean over workers",
            diagnosis=r"weight.*expected",
            edits=(("rate * gradient", "rate * gradient / (n - 1)"),),
        ),
        Wrong(
            "every worker pushes equally often",
            diagnosis=r"deadlock|waits|finished|expected",
            edits=(("range(order.count(rank))", "range(len(order) // (n - 1))"),),
        ),
        Wrong(
            "no answer to the last gradient",
            diagnosis=r"deadlock|waits|finished|expected",
            edits=(
                (
                    "            dist.recv(weight, group=group, group_src=0)\n        return",
                    "            if _ + 1 < order.count(rank):\n"
                    "                dist.recv(weight, group=group, group_src=0)\n        return",
                ),
            ),
        ),
        Wrong(
            "weights have to be asked for",
            diagnosis=r"right, but rank 0 makes \d+ calls where \d+ must do|right, but a rank makes \d+ calls",
            edits=(
                (PUSH, PUSH + "            dist.send(target[:1].clone(), group=group, group_dst=0)\n"),
                (
                    "        weight -= rate * gradient\n",
                    "        weight -= rate * gradient\n"
                    "        dist.recv(torch.empty_like(weight[:1]), group=group, group_src=worker)\n",
                ),
            ),
        ),
    ),
)
