"""resilience.heal_while_others_go_on: a replica that has nothing becomes equal to the others, which do not stop."""

import torch
import torch.distributed as dist

from puzzles.grading.puzzle import Budget, Claim, Measure, Puzzle, Wrong, cases, on_any_ranks
from reference.collectives import cost
from reference.collectives.all_reduce import ring
from reference.resilience.answers.heal import heal
from reference.resilience.answers.momentum import momentum_step
from reference.trace import Op

DOUBLE, RATE = 8, 0.25
NEW = {"the last": lambda n: n - 1, "the first": lambda n: 0, "in the middle": lambda n: n // 2}


def state_and_gradients(case, rank):
    """The state that all have but one, and gradients of all steps; those of the new one are of a state it has not."""
    new = NEW[case.new](case.n)
    owner = rank if rank == new else case.n  # one state for all others
    return {
        "state": [case.normal(owner, 2, case.length, name=f"state {i}") for i in range(case.pieces)],
        "gradients": [
            [case.normal(rank, case.length, name=f"gradient {step} {i}") for i in range(case.pieces)]
            for step in range(case.pieces + case.more)
        ],
        "new": new,
        "rate": RATE,
    }


def those_that_had_it(case, inputs):
    """One process trains with the gradients of the others; in the end all are equal."""
    new = inputs[0]["new"]
    others = [each for rank, each in enumerate(inputs) if rank != new]
    state = [piece.clone() for piece in others[0]["state"]]
    for step in range(case.pieces + case.more):
        for i, piece in enumerate(state):
            mean = torch.stack([each["gradients"][step][i] for each in others]).mean(0)
            piece[1] = 0.9 * piece[1] + mean
            piece[0] -= RATE * piece[1]
    return [{"state": state} for _ in inputs]


def one_piece_beside_each_step(case, inputs, outputs, trace):
    """Between two sums no rank waits for more than a piece."""
    claims, piece = [], 2 * case.length * DOUBLE
    for events in trace.events:
        sent = 0
        for event in events:
            sent = 0 if event.op is Op.ALL_REDUCE else sent + event.bytes * (event.op is Op.SEND)
            if sent > piece:
                words = f"rank {event.rank} sends {sent} B of state between two sums, and a piece has {piece}"
                return [Claim(False, f"{words}: the others wait for that")]
    return claims


def most_sent(case):
    """Bytes of the busiest rank: a sum in each step, and the state once."""
    sums = cost.of(ring).most(case.n, case.pieces * case.length, DOUBLE)
    return (case.pieces + case.more) * sums + case.pieces * 2 * case.length * DOUBLE


SEND = (
    "        if step < len(state) and rank == donor:\n            dist.send(state[step], group=group, group_dst=new)\n"
)
RECEIVE = (
    "        if step < len(state) and rank == new:\n            dist.recv(state[step], group=group, group_src=donor)\n"
)

PUZZLE = Puzzle(
    name="resilience.heal_while_others_go_on",
    title="Heal while the others continue",
    statement="""
        A replica has died and comes back with nothing. The others have the weights and the optimizer's state, P pieces
        of it; to send it all at once would make them wait, and by the time it has arrived by a slow way, they are some
        steps ahead. So send one piece in each step, and let the one that heals take part in each sum of gradients from
        the first step on: then it knows what the others update with, and can update what it has.

        Given is `momentum_step(weight, momentum, gradient, rate)`, a step in place. It treats each element by itself.

        Args:
            state: P pieces [2, N], weight and momentum, equal on all ranks but `new`, where they mean nothing. Updated
                in place: after the last step they must be equal on all ranks, to those of a training that `new` had no
                part in.
            gradients: of each step a list of P gradients [N]. There are P steps or more. A step is taken with the mean
                over all ranks but `new`, whose gradients mean nothing. They may be overwritten.
            new: group rank of the replica that heals.
            rate: of learning.
            group: n ranks, 2 or more.

        Budget: one all-reduce of P · N numbers in each step; each piece is sent once, by one rank, and between two
        all-reduces no rank sends more than one piece.
        """,
    function=heal,
    cases=cases(worlds=(4,), new=("the last", "the first"), pieces=(3,), more=(1,), length=(4,))
    + cases(worlds=(2, 3), new=("in the middle",), pieces=(2,), more=(0, 2), length=(3,))
    + cases(worlds=(5, 8), new=("in the middle",), pieces=(1, 4), more=(1,), length=(5,))
    + cases(worlds=(4,), members=(0, 2, 3), new=("the last",), pieces=(3,), more=(1,), length=(4,)),
    drawn=on_any_ranks(new=tuple(NEW), pieces=(2, 3, 4), more=(0, 1, 2), length=range(2, 7)),
    inputs=state_and_gradients,
    oracle=those_that_had_it,
    judge=one_piece_beside_each_step,
    scratch=("gradients",),
    tolerance=1e-9,
    calls=(dist.all_reduce, dist.send, dist.recv),
    given=(momentum_step,),
    budgets=(
        Budget(
            Measure.BYTES_SENT,
            target=most_sent,
            why="a sum in each step, and each piece of the state once, from one rank",
        ),
    ),
    hints=(
        "Piece i is sent in step i, as it is before this step. What must be done with it in step i, i + 1, ...? What "
        "must be known for that?",
        "The new replica brings zeros to the sum, and learns it. It updates the pieces that have come, with the same "
        "mean as the others: the sum divided by n - 1.",
        "In each step: the donor sends `state[step]`, the new one receives it; all-reduce the concatenated gradients, "
        "zeros on the new one; then momentum_step for each piece, on the new one for those up to `step`.",
    ),
    wrong=(
        Wrong(
            "what has come waits for the rest",
            diagnosis=r"state.*expected",
            edits=(("rank != new or piece <= step", "rank != new or step >= len(state)"),),
        ),
        Wrong(
            "a piece is first updated a step later",
            diagnosis=r"state.*expected",
            edits=(("piece <= step", "piece < step"),),
        ),
        Wrong(
            "the gradient of the one that heals counts",
            diagnosis=r"state.*expected",
            edits=(("        if rank == new:\n            flat.zero_()\n", ""),),
        ),
        Wrong(
            "divided by all ranks",
            diagnosis=r"state.*expected",
            edits=(("gradient / (n - 1)", "gradient / n"),),
        ),
        Wrong(
            "the one that heals stays away from sums until it has all",
            diagnosis=r"rank \d.*finished without it|deadlock|waits",
            edits=(
                (
                    "        dist.all_reduce(flat, group=group)\n",
                    "        if rank != new or step >= len(state):\n            dist.all_reduce(flat, group=group)\n",
                ),
            ),
        ),
        Wrong(
            "weights without momenta",
            diagnosis=r"state.*expected",
            edits=(
                ("dist.send(state[step], ", "dist.send(state[step][0], "),
                ("dist.recv(state[step], ", "dist.recv(state[step][0], "),
            ),
        ),
        Wrong(
            "the others stop until all has arrived",
            diagnosis=r"right, but rank \d sends [\d,]+ B of state between two sums, and a piece has",
            edits=(
                (SEND, ""),
                (RECEIVE, ""),
                (
                    "    for step, of_pieces in enumerate(gradients):\n",
                    "    for piece in state:\n"
                    "        if rank == donor:\n            dist.send(piece, group=group, group_dst=new)\n"
                    "        if rank == new:\n            dist.recv(piece, group=group, group_src=donor)\n"
                    "    for step, of_pieces in enumerate(gradients):\n",
                ),
                ("rank != new or piece <= step", "True"),
            ),
        ),
        Wrong(
            "all of the state in each step",
            diagnosis=r"right, but rank \d sen(t|ds) [\d,]+ B",
            edits=(
                (
                    "            dist.send(state[step], group=group, group_dst=new)\n",
                    "            for piece in state:\n                dist.send(piece, group=group, group_dst=new)\n",
                ),
                (
                    "            dist.recv(state[step], group=group, group_src=donor)\n",
                    "            for piece in state:\n                dist.recv(piece, group=group, group_src=donor)\n",
                ),
                ("rank != new or piece <= step", "True"),
            ),
        ),
    ),
)
