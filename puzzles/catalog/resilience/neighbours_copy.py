"""resilience.neighbours_copy: a new rank gets the dead one's state from a neighbour's memory."""

from puzzles.grading.puzzle import POINT_TO_POINT, Budget, Measure, Puzzle, Wrong, cases, drawn
from reference.resilience.answers.neighbour import take_over

PARTS = 3  # of a state: weights, and Adam's two moments


def state_of(case, rank):
    """What a rank had when the others died."""
    return case.tensor(rank, PARTS, case.length, name="state")


def kept_by(case, rank):
    """Of which rank it holds the copy."""
    return (rank - case.node) % case.n


def after_the_loss(case, rank):
    """New ranks have room, and nothing that means anything in it."""
    new = rank in case.lost
    return {
        "state": case.tensor(rank, PARTS, case.length, name="room") if new else state_of(case, rank),
        "copy": case.tensor(rank, PARTS, case.length, name="more room") if new else state_of(case, kept_by(case, rank)),
        "lost": list(case.lost),
        "node": case.node,
    }


def is_left(case):
    """Whether no dead rank's copy has died with it."""
    return not {kept_by(case, rank) for rank in case.lost} & {*case.lost}


def as_before(case, inputs):
    """All have what they had, or all is as it was after the loss."""
    if not is_left(case):
        return [{"returns": False, "state": mine["state"], "copy": mine["copy"]} for mine in inputs]
    return [
        {"returns": True, "state": state_of(case, rank), "copy": state_of(case, kept_by(case, rank))}
        for rank in range(case.n)
    ]


def most_sent(case):
    """Bytes of the busiest rank: its state to the one that keeps it, and a copy to the one that it is of."""
    if not is_left(case):
        return 0
    sent = [(kept_by(case, rank) in case.lost) + ((rank + case.node) % case.n in case.lost) for rank in range(case.n)]
    return max(sent) * 4 * PARTS * case.length


def some_of(so_far):
    """Losses of a few ranks, or of a whole node."""
    n, node = so_far.n, so_far.node
    nodes = [tuple(range(first, first + node)) for first in range(0, n, node)]
    return [(0,), (n - 1,), *nodes, *((rank, (rank + node + 1) % n) for rank in range(n - 1) if n > 2)]


PUZZLE = Puzzle(
    name="resilience.neighbours_copy",
    title="The neighbour's copy",
    statement="""
        Each rank keeps what it has after a step in its own memory, and a copy of it in the memory of another node,
        since a node may lose its power with all that it holds: the state of rank r is also on rank (r + node) % n. So
        each rank holds two things, its own state and the copy of another rank's.

        Now some ranks have died, and new processes have their numbers. They have room for both, and nothing in it. Give
        them what the dead ones had, so that all is as before, and the next loss finds a copy of everything again. If
        the state of a rank is nowhere any more, none can continue: then all must say so, and no rank may wait for
        another.

        Args:
            state: [3, N], weights and two moments of this rank. To be filled on new ranks.
            copy: [3, N], the state of rank (r - node) % n. To be filled on new ranks.
            lost: the group ranks that are new, the same list on all ranks; it may be empty.
            node: how many ranks a node has. Node k has ranks k · node to (k + 1) · node - 1.
            group: n ranks, a multiple of `node`.

        Returns: True on all ranks; False on all ranks if a state is lost, and then nothing may be sent or changed.

        Budget: one step, all messages in flight at once. What is sent goes to new ranks.
        """,
    function=take_over,
    cases=cases(worlds=(4,), node=(2,), lost=((2, 3), (0,), ()), length=(4,))
    + cases(worlds=(6,), node=(2,), lost=((2,), (2, 3), (2, 5), (0, 2), (4, 5, 1)), length=(3,))
    + cases(worlds=(3,), node=(1,), lost=((1,), (2, 0)), length=(5,))
    + cases(worlds=(2,), node=(1,), lost=((0,), (0, 1)), length=(3,))
    + cases(worlds=(2,), node=(2,), lost=((1,),), length=(2,))
    + cases(worlds=(8,), node=(2,), lost=((0, 1, 4, 5),), length=(3,))
    + cases(worlds=(5,), members=(0, 2, 3, 4), node=(2,), lost=((1,),), length=(3,)),
    drawn=(
        drawn(worlds=(4, 6, 8), node=(2,), lost=some_of, length=range(2, 20)),
        drawn(worlds=(3, 5, 7), node=(1,), lost=some_of, length=range(2, 20)),
    ),
    inputs=after_the_loss,
    oracle=as_before,
    tolerance=0,
    calls=POINT_TO_POINT,
    budgets=(
        Budget(
            Measure.BYTES_SENT,
            target=most_sent,
            why="only new ranks need anything: who has a neighbour among them sends, and no other rank",
        ),
        Budget(
            Measure.STEPS,
            target=lambda case: 1 if case.lost and is_left(case) else 0,
            why="no message depends on another: post them all with dist.batch_isend_irecv, then wait",
        ),
    ),
    hints=(
        "A new rank r lacks two things. Who has the state of rank r? And whose state is it that r is to keep a copy "
        "of?",
        "The state comes from rank (r + node) % n, which holds the copy. What r keeps comes from its owner, rank "
        "(r - node) % n. With two nodes these are the same rank: then the order of the two messages counts.",
        "Rank r's state is lost if both r and (r + node) % n are in `lost`. All ranks know the list: look before "
        "anything is sent.",
        "One list for dist.batch_isend_irecv: send `copy` to its owner if that is new; send `state` to its holder if "
        "that is new; if you are new, receive `state` from the holder, then `copy` from the owner.",
    ),
    wrong=(
        Wrong(
            "the next rank, on the same node",
            diagnosis=r"expected True, got False|returns",
            edits=(
                ("(rank + node) % n, (rank - node) % n", "(rank + 1) % n, (rank - 1) % n"),
                ("each + node", "each + 1"),
            ),
        ),
        Wrong(
            "the next loss finds no copy",
            diagnosis=r"copy",
            edits=(
                (
                    "    if holder in lost:\n"
                    "        messages.append(dist.P2POp(dist.isend, state, group=group, group_peer=holder))\n",
                    "",
                ),
                ("        messages.append(dist.P2POp(dist.irecv, copy, group=group, group_peer=owner))\n", ""),
            ),
        ),
        Wrong(
            "a state that is lost is made up",
            diagnosis=r"modified before wait[\s\S]*wrong with lost=\(0, 2\)",
            edits=(("    if any((each + node) % n in lost for each in lost):\n        return False\n", ""),),
        ),
        Wrong(
            "only those who lack it know that it is lost",
            diagnosis=r"modified before wait[\s\S]*wrong with lost=\(0, 2\)",
            edits=(("if any((each + node) % n in lost for each in lost)", "if rank in lost and holder in lost"),),
        ),
        Wrong(
            "weights without moments",
            diagnosis=r"expected|state",
            edits=(
                ("isend, copy, group", "isend, copy[0], group"),
                ("irecv, state, group", "irecv, state[0], group"),
            ),
        ),
        Wrong(
            "with two nodes, one takes the other's place",
            diagnosis=r"rank \d holds what|expected",
            edits=(
                (
                    "        messages.append(dist.P2POp(dist.irecv, state, group=group, group_peer=holder))\n"
                    "        messages.append(dist.P2POp(dist.irecv, copy, group=group, group_peer=owner))\n",
                    "        messages.append(dist.P2POp(dist.irecv, copy, group=group, group_peer=owner))\n"
                    "        messages.append(dist.P2POp(dist.irecv, state, group=group, group_peer=holder))\n",
                ),
            ),
        ),
        Wrong(
            "from the wrong side",
            diagnosis=r"returns|state|expected",
            edits=(("(rank + node) % n, (rank - node) % n", "(rank - node) % n, (rank + node) % n"),),
        ),
        Wrong(
            "all send everything",
            diagnosis=r"right, but rank \d sent [\d,]+ B where [\d,]+ must do.*\n.*only new ranks",
            body="""
                rank, n = dist.get_rank(group), dist.get_world_size(group)
                holder, owner = (rank + node) % n, (rank - node) % n
                if any((each + node) % n in lost for each in lost):
                    return False
                rooms = (state, copy) if rank in lost else (torch.empty_like(state), torch.empty_like(copy))
                messages = []
                if rank not in lost:
                    messages.append(dist.P2POp(dist.isend, copy, group=group, group_peer=owner))
                    messages.append(dist.P2POp(dist.isend, state, group=group, group_peer=holder))
                if holder not in lost:
                    messages.append(dist.P2POp(dist.irecv, rooms[0], group=group, group_peer=holder))
                if owner not in lost:
                    messages.append(dist.P2POp(dist.irecv, rooms[1], group=group, group_peer=owner))
                for request in dist.batch_isend_irecv(messages):
                    request.wait()
                return True
                """,
        ),
    ),
)
