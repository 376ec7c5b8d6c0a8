"""zero_bubble.dual_pipe_overlap: a forward and a backward in turn, so that messages hide behind work."""

from functools import partial

import torch
import torch.distributed as dist

from puzzles.grading.drives.zero_bubble import in_pieces
from puzzles.grading.overlap import NETWORK
from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, cases, on_any_ranks
from reference.zero_bubble.answers.overlap import overlapped_pair

from .common import DOUBLE

NAMES = ("x", "gradient")
WIDTH = 3


def two_micro_batches(case, rank):
    """x and gradient of a rank; for the drive what each piece computes, and its seconds."""
    kinds = {"forward": (1, case.forward), "backward": (3, case.backward)}
    pieces = {
        kind: [(first + 0.5 * rank + i, 0.25 * (i + first), microseconds / 1e6) for i in range(case.pieces)]
        for kind, (first, microseconds) in kinds.items()
    }
    return {**pieces, **{name: case.normal(rank, case.n, WIDTH, name=name) for name in NAMES}}


def one_after_the_other(case, inputs):
    """All pieces of the one, then all of the other, with a transpose of all ranks' rows for the all-to-all."""
    found = {}
    for name, kind in zip(NAMES, ("forward", "backward"), strict=True):
        rows = torch.stack([each[name] for each in inputs])
        for i in range(case.pieces):
            pieces = [each[kind][i] for each in inputs]
            rows = torch.stack([x * factor + summand for x, (factor, summand, _) in zip(rows, pieces, strict=True)])
            rows = rows.transpose(0, 1)
        found[name] = rows
    return [
        {"returns": "2 tensors", **{name: rows[rank].clone() for name, rows in found.items()}} for rank in range(case.n)
    ]


def hidden(case):
    """Microseconds: all work, and the last message, behind which there is no work left."""
    one = 1e6 * NETWORK.time(0, 1, WIDTH * DOUBLE)
    return case.pieces * (case.forward + case.backward) + (case.n - 1) * one


def row_bytes(case):
    """Bytes that a rank sends in all: of each all-to-all all rows but its own."""
    return 2 * case.pieces * (case.n - 1) * WIDTH * DOUBLE


PUZZLE = Puzzle(
    name="zero_bubble.dual_pipe_overlap",
    title="Hide messages behind the other direction",
    statement="""
        In a large mixture of experts every piece of a layer ends in an all-to-all: tokens go to their experts, and
        come back. A forward alone is a chain: a piece, its message, the next piece, its message. So is a backward. In
        DeepSeek-V3 the messages took as long as the work.

        DualPipe gives each rank two micro-batches at a time, one that goes forward and one that comes back. They know
        nothing of each other. While the message of the one is in flight, compute a piece of the other.

        `dist.all_to_all_single(received, x, group=group, async_op=True)` returns at once, and gives you a request. Row
        i of x goes to rank i; row i of `received` comes from rank i. Until `request.wait()` has returned, no code may
        read or write either of them.

        Args:
            forward: a list of functions: `x = piece(x)`, then an all-to-all of x, then the next one. Each takes its
                time.
            backward: as many for the gradient, each followed by an all-to-all, too.
            x, gradient: [n, D].
            group: n ranks. Any n.

        Returns: two tensors, x and gradient, after the all-to-all that follows their last pieces.

        Budget: on a modelled link the time of all pieces and of one message, if a message takes no longer than a
        piece. What must travel, travels once.
        """,
    function=overlapped_pair,
    cases=cases(worlds=(4,), pieces=(3,), forward=(40,), backward=(80, 40))
    + cases(worlds=(3, 2, 1, 5), pieces=(2,), forward=(50,), backward=(70,))
    + cases(worlds=(8,), pieces=(4,), forward=(100,), backward=(100,))
    + cases(worlds=(4,), members=(0, 2, 3), pieces=(1,), forward=(30,), backward=(60,)),
    drawn=on_any_ranks(pieces=(1, 2, 3), forward=(150, 170), backward=(160, 200)),
    inputs=two_micro_batches,
    oracle=one_after_the_other,
    drive=partial(in_pieces, NAMES),
    tolerance=1e-10,
    calls=(dist.all_to_all_single,),
    budgets=(
        Budget(
            Measure.BYTES_SENT,
            target=row_bytes,
            why="an all-to-all of n rows after each piece is all that travels",
        ),
        Budget(
            Measure.MICROSECONDS,
            target=lambda case: hidden(case) + 0.1,
            optimum=hidden,
            why="a message is begun before a piece of the other direction, and waited for after it",
        ),
    ),
    hints=(
        "When the first message is in flight, what can be computed? And when that is done, which message must be "
        "there?",
        "In turn: a forward piece, begin its message, wait for the gradient's last one; a backward piece, begin its "
        "message, wait for that of x.",
        "`received = torch.empty_like(x)` for each message. Keep the gradient's request from one turn of the loop to "
        "the next; in the first turn there is none, and after the loop there is one left.",
    ),
    wrong=(
        Wrong(
            "one after the other",
            diagnosis=r"right, but on a slow link it takes [\d,.]+ µs where [\d,.]+ must do.*\n.*begun before a piece",
            body="""
                for pieces in (forward, backward):
                    for piece in pieces:
                        y = piece(x)
                        x = torch.empty_like(y)
                        dist.all_to_all_single(x, y, group=group)
                    x, gradient = gradient, x
                return x, gradient
                """,
        ),
        Wrong(
            "in turn, and waited for at once",
            diagnosis=r"right, but on a slow link it takes [\d,.]+ µs where [\d,.]+ must do.*\n.*waited for after",
            edits=(
                (
                    "        x, request = begin_to_exchange(forward_piece(x), group)\n",
                    "        x, request = begin_to_exchange(forward_piece(x), group)\n        request.wait()\n",
                ),
                ("group)\n        request.wait()\n    if", "group)\n    if"),
            ),
        ),
        Wrong(
            "both pieces, then both messages",
            diagnosis=r"right, but on a slow link it takes [\d,.]+ µs where [\d,.]+ must do",
            body="""
                for forward_piece, backward_piece in zip(forward, backward):
                    x, gradient = forward_piece(x), backward_piece(gradient)
                    outgoing = [x, gradient]
                    x, gradient = torch.empty_like(x), torch.empty_like(gradient)
                    requests = [
                        dist.all_to_all_single(received, sent, group=group, async_op=True)
                        for received, sent in zip((x, gradient), outgoing)
                    ]
                    for request in requests:
                        request.wait()
                return x, gradient
                """,
        ),
        Wrong(
            "the message of the gradient hides behind nothing",
            diagnosis=r"right, but on a slow link it takes [\d,.]+ µs where [\d,.]+ must do",
            edits=(
                (
                    "        request.wait()\n    if on_its_way:\n        on_its_way.wait()\n",
                    "        request.wait()\n        on_its_way.wait()\n",
                ),
                ("        if on_its_way:\n            on_its_way.wait()\n", ""),
            ),
        ),
        Wrong(
            "the last message is not waited for",
            diagnosis=r"wait\(\)",
            edits=(("    if on_its_way:\n        on_its_way.wait()\n    return", "    return"),),
        ),
        Wrong(
            "reads what is still in flight",
            diagnosis=r"wait\(\)",
            edits=(
                ("        request.wait()\n", ""),
                ("    return x, gradient", "    request.wait()\n    return x, gradient"),
            ),
        ),
        Wrong(
            "the two are exchanged",
            diagnosis=r"rank 0, x\[0, 0\]: expected",
            edits=(("    return x, gradient", "    return gradient, x"),),
        ),
        Wrong(
            "each through the pieces of the other",
            diagnosis=r"rank 0, x\[0, 0\]: expected",
            edits=(("zip(forward, backward, strict=True)", "zip(backward, forward, strict=True)"),),
        ),
        Wrong(
            "backward in the order of the layers",
            diagnosis=r"gradient\[0, 0\]: expected",
            edits=(("zip(forward, backward, strict=True)", "zip(forward, backward[::-1], strict=True)"),),
        ),
        Wrong(
            "one buffer for both",
            diagnosis=r"wait\(\)|expected",
            body="""
                received, on_its_way = torch.empty_like(x), None
                for forward_piece, backward_piece in zip(forward, backward):
                    x = forward_piece(x)
                    request = dist.all_to_all_single(received, x, group=group, async_op=True)
                    if on_its_way:
                        on_its_way.wait()
                    gradient = backward_piece(gradient)
                    on_its_way = dist.all_to_all_single(received, gradient, group=group, async_op=True)
                    request.wait()
                    x = received
                    gradient = received
                on_its_way.wait()
                return x, gradient
                """,
        ),
        Wrong(
            "the backward a piece later than the forward",
            diagnosis=r"right, but on a slow link it takes [\d,.]+ µs where [\d,.]+ must do",
            body="""
                def begin(y):
                    received = torch.empty_like(y)
                    return received, dist.all_to_all_single(received, y, group=group, async_op=True)

                x, request = begin(forward[0](x))
                for i, piece in enumerate(backward):
                    request.wait()
                    if i + 1 < len(forward):
                        x, request = begin(forward[i + 1](x))
                    gradient, on_its_way = begin(piece(gradient))
                    on_its_way.wait()
                return x, gradient
                """,
        ),
        Wrong(
            "what has arrived is sent once more",
            diagnosis=r"right, but rank \d sent [\d,]+ B where [\d,]+ must do",
            edits=(
                (
                    "    return received, dist",
                    "    dist.all_to_all_single(torch.empty_like(x), x, group=group)\n    return received, dist",
                ),
            ),
        ),
    ),
)
