"""collectives.broadcast_chain: cut in pieces that follow each other from rank to rank."""

from puzzles.grading.puzzle import (
    LARGE,
    POINT_TO_POINT,
    SMALL,
    Budget,
    Claim,
    Measure,
    Puzzle,
    Wrong,
    case,
    cases,
    drawn,
)
from reference.collectives.broadcast import chain
from reference.collectives.exchange import exchange
from reference.trace import Network

from .common import FLOAT, every_rank_has_the_roots, fewest_steps, size_of, tensor_and_root


def inputs(case, rank):
    """A tensor, the root, and how many pieces."""
    return {**tensor_and_root(case, rank), "pieces": case.pieces}


def pieces_follow_each_other(case, inputs, outputs, trace):
    """On a network without latency, time is the bytes that go one after another until the last rank has them all."""
    longest = FLOAT * -(-case.length // case.pieces)
    allowed = (case.n - 2 + case.pieces) * longest if case.n > 1 else 0
    waited = trace.replay(Network.uniform(alpha=0.0, beta=1.0)).duration
    said = (
        f"the last rank has it after {waited:,.0f} B, one after another, where {allowed:,} must do: "
        "send one piece on while the next one comes in"
    )
    return [Claim(waited <= allowed, said)]


PUZZLE = Puzzle(
    name="collectives.broadcast_chain",
    title="Broadcast along a chain, piece by piece",
    statement="""
        The root has a tensor that every rank needs. It travels from rank to rank to the right, cut in pieces: while a
        rank sends one piece on, it receives the next. So many links are in use at once, and
        each carries the tensor once.

        Given is a way to send to one rank while you receive from another:
        `exchange(outgoing, target, incoming, source, group)` puts what comes into `incoming`. Where `outgoing` is
        None nothing is sent, and where `incoming` is None nothing is received.

        Args:
            x: contiguous, of the same shape and dtype on every rank. On the root the tensor to send; on all others
                the place where it goes.
            root: group rank of the one who has it. The last one is its left neighbour.
            group: n ranks. Any n.
            pieces: how many, at least 1. It need not divide the number of elements.

        Budget: n - 2 + pieces steps, and every rank sends the tensor at most once. No memory besides `x`.
        """,
    function=chain,
    cases=cases(worlds=(3, 4, 2), root=lambda n: {0, n - 1}, length=(12,), pieces=(4,))
    + cases(worlds=(1, 5, 8), root=(0,), length=(10,), pieces=(4,))
    + cases(worlds=(3,), root=(1,), length=(3, 6), pieces=(5, 1))
    + cases(worlds=(4,), members=(0, 2, 3), root=(1,), length=(8,), pieces=(3,))
    + cases(worlds=(4,), root=(2,), length=(12,), pieces=(4,), shape=((3, 4),)),
    drawn=(
        drawn(worlds=SMALL, root=lambda so_far: range(so_far.n), length=range(2, 40), pieces=range(1, 12)),
        drawn(worlds=LARGE, root=lambda so_far: range(so_far.n), length=range(40, 90), pieces=range(7, 14)),
    ),
    large=case(3, root=1, length=3_000_000, pieces=4),
    inputs=inputs,
    oracle=every_rank_has_the_roots,
    tolerance=0,
    judge=pieces_follow_each_other,
    calls=POINT_TO_POINT,
    given=(exchange,),
    budgets=(
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: size_of(case) if case.n > 1 else 0,
            why="every rank sends each piece once, to its right neighbour; the last one sends nothing",
        ),
        Budget(
            Measure.STEPS,
            target=lambda case: case.n - 2 + case.pieces if case.n > 1 else 0,
            optimum=fewest_steps,
            why="send the piece that came last while the next one comes in: one exchange does both",
        ),
        Budget(Measure.PEAK_BYTES, target=lambda case: 0, why="tensor_split makes views: receive straight into x"),
    ),
    hints=(
        "`x.view(-1).tensor_split(pieces)` cuts `x` into views. What does a rank in the middle do in step 3: which "
        "piece comes in, which goes out?",
        "A rank in the middle: receive piece 0; then, for each further piece, receive it while sending the one before; "
        "at the end send the last one. The root only sends, the last rank only receives.",
        "With None before the first piece and None after the last one, a loop over pairs (previous, current) does all "
        "of that: incoming is `current`, outgoing is `previous`, and for the root outgoing is `current`.",
    ),
    wrong=(
        Wrong(
            "whole, from one rank to the next",
            diagnosis=r"right, but the last rank has it after [\d,]+ B.* where [\d,]+ must do",
            body="""
                rank, n = dist.get_rank(group), dist.get_world_size(group)
                if rank != root:
                    dist.recv(x, group=group, group_src=(rank - 1) % n)
                if (rank + 1) % n != root:
                    dist.send(x, group=group, group_dst=(rank + 1) % n)
                """,
        ),
        Wrong(
            "receive a piece, then send it, then receive the next",
            diagnosis=r"right, but it takes \d+ steps where \d+ must do.*\n.*one exchange does both",
            body="""
                rank, n = dist.get_rank(group), dist.get_world_size(group)
                for piece in x.view(-1).tensor_split(pieces):
                    if rank != root:
                        dist.recv(piece, group=group, group_src=(rank - 1) % n)
                    if (rank + 1) % n != root:
                        dist.send(piece, group=group, group_dst=(rank + 1) % n)
                """,
        ),
        Wrong(
            "pieces of one length",
            diagnosis=r"shape '\[\d, -1\]' is invalid",
            edits=(("*x.view(-1).tensor_split(pieces)", "*x.view(pieces, -1)"),),
        ),
        Wrong(
            "only for root 0",
            diagnosis=r"right with root=0, wrong with root=",
            edits=(("rank == root, (rank + 1) % n == root", "rank == 0, rank == n - 1"),),
        ),
        Wrong(
            "the chain is closed to a ring",
            diagnosis=r"finished|nobody|waits|deadlock",
            edits=(
                (
                    "outgoing = None if is_last else (current if is_first else previous)",
                    "outgoing = current if is_first else previous",
                ),
            ),
        ),
        Wrong(
            "the last piece stays behind",
            diagnosis=r"right on rank 0, wrong on|finished|waits",
            edits=(("tensor_split(pieces), None]", "tensor_split(pieces)]"),),
        ),
    ),
)
