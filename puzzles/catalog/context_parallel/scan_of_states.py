"""context_parallel.scan_of_states: what came before a rank is one state, found in log2 n steps."""

import math

import torch

from puzzles.grading.drives.context_heads import scanned_there_and_back
from puzzles.grading.puzzle import POINT_TO_POINT, Budget, Measure, Puzzle, Wrong, cases, on_any_ranks
from reference.context_parallel.answers.scan import state_before

from .common import DOUBLE

WIDTH = 2


def own_tokens_in_one_state(case, rank):
    """What this rank's tokens do to a state, and the gradient of the state before them."""
    shape = case.heads, case.width, WIDTH
    return {
        "decay": case.normal(rank, case.heads, name="decay").sigmoid(),
        "state": case.normal(rank, *shape, name="state"),
        "upstream": case.normal(rank, *shape, name="upstream"),
    }


def one_after_the_other(case, inputs):
    """Rank by rank, in one process."""
    decays, states = ([each[name].clone().requires_grad_() for each in inputs] for name in ("decay", "state"))
    before = [torch.zeros_like(states[0])]
    for decay, state in zip(decays[:-1], states[:-1], strict=True):
        before.append(decay[:, None, None] * before[-1] + state)
    total = sum((one * each["upstream"]).sum() for one, each in zip(before, inputs, strict=True))
    leaves = decays + states
    found = torch.autograd.grad(total + 0 * sum(leaf.sum() for leaf in leaves), leaves)  # the last rank's are zeros
    return [
        {"returns": one.detach(), "decay.grad": of_decay, "state.grad": of_state}
        for one, of_decay, of_state in zip(before, found[: case.n], found[case.n :], strict=True)
    ]


def steps(case):
    """Whose distance doubles until it reaches over all ranks."""
    return math.ceil(math.log2(case.n))


def message(case):
    """Bytes of a decay and a state of each head."""
    return DOUBLE * case.heads * (1 + case.width * WIDTH)


CHAIN = """
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    place, toward = (n - 1 - rank, -1) if backwards else (rank, 1)
    before = torch.zeros_like(state)
    if place > 0:
        dist.recv(before, group=group, group_src=rank - toward)
    if place < n - 1:
        dist.send(decay[:, None, None] * before + state, group=group, group_dst=rank + toward)
    return before
    """

TO_ALL = """
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    packed, messages = torch.cat([decay.flatten(), state.flatten()]), []
    found = [torch.empty_like(packed) for _ in range(n)]
    for other in range(n):
        if other != rank:
            messages.append(dist.P2POp(dist.isend, packed, group=group, group_peer=other))
            messages.append(dist.P2POp(dist.irecv, found[other], group=group, group_peer=other))
    for request in dist.batch_isend_irecv(messages) if messages else []:
        request.wait()
    before = torch.zeros_like(state)
    for other in range(n - 1, rank, -1) if backwards else range(rank):
        other_decay, other_state = found[other][: len(decay)], found[other][len(decay) :]
        before = other_decay[:, None, None] * before + other_state.view_as(state)
    return before
    """

PUZZLE = Puzzle(
    name="context_parallel.scan_of_states",
    title="The state before each rank",
    statement="""
        Linear attention has no softmax. What all tokens up to t have left is one state, a matrix: each token decays it,
        adds to it and reads from it. So the tokens of a rank, together, do two things to whatever state they find: they
        multiply it by `decay`, and add `state`. No block of keys need travel, however many tokens there are.

            state before rank r + 1 = decay of rank r · state before rank r
                                      + state of rank r

        Before rank 0 there are zeros. Rank by rank that takes n - 1 steps, in which all other ranks wait. But two
        neighbours, one after the other, are again a decay and a state. Which? And if two can be joined, so can four:
        after i steps a rank may know what the 2^i ranks up to it come to. It needs what those *before* it do.

        Backward is the same scan from the other end: the gradient of a rank's state is made by the ranks after it. So
        your function is called once more in backward, with `backwards=True` and gradients in the place of states. Then
        the last rank has zeros, and

            result of rank r - 1 = decay of rank r · result of rank r
                                   + state of rank r

        Args:
            decay: [H], of each head.
            state: [H, d, e], of each head.
            backwards: whether to scan from the last rank to the first.
            group: n ranks. Any n.

        Returns: a new tensor, [H, d, e].

        Budget: log2 n steps, rounded up, and one more, with a decay and a state sent in each. It is possible without
        the one more.
        """,
    function=state_before,
    cases=cases(worlds=(4,), heads=(1, 2), width=(2,))
    + cases(worlds=(3, 2), heads=(2,), width=(1, 3))
    + cases(worlds=(1, 5, 8), heads=(2,), width=(2,))
    + cases(worlds=(4,), members=(0, 2, 3), heads=(2,), width=(2,)),
    drawn=on_any_ranks(heads=(1, 2, 3), width=(1, 2, 3)),
    inputs=own_tokens_in_one_state,
    oracle=one_after_the_other,
    drive=scanned_there_and_back,
    tolerance=1e-10,
    calls=POINT_TO_POINT,
    budgets=(
        Budget(
            Measure.STEPS,
            target=lambda case: 2 * (steps(case) + 1) if case.n > 1 else 0,
            optimum=lambda case: 2 * steps(case),
            why="do not wait for the rank before: let the distance double, and join what more and more ranks come to",
        ),
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: 2 * (steps(case) + 1) * message(case) if case.n > 1 else 0,
            optimum=lambda case: 2 * DOUBLE * case.heads * case.width * WIDTH if case.n > 1 else 0,
            why="what several ranks come to is one decay and one state: join them, and send no others",
        ),
    ),
    hints=(
        "First decay a, state s; then decay a', state s'. What becomes of a state x? Write it as one decay and one "
        "state.",
        "x becomes a'(a x + s) + s': the decay is a·a', the state a'·s + s'. In the step of distance D (1, 2, 4, ...) "
        "rank r sends what it knows of the D ranks up to it to rank r + D, and joins what comes from rank r - D in "
        "front of its own.",
        "Keep two pairs: that of the ranks up to this one, which you send, and that of the ranks before it, which "
        "begins as decay 1, state 0 and is what you return. What comes is joined in front of both. Backwards, ranks "
        "count from the other end: `place = n - 1 - rank`, and the next rank is `rank - 1`.",
    ),
    wrong=(
        Wrong(
            "the state after each rank, and not before it",
            diagnosis=r"rank 0, result\[0, 0, 0\]: expected 0(\.0)?, got -?[\d.]+",
            edits=(("    return before\n", "    return state\n"),),
        ),
        Wrong(
            "states are summed, and nothing decays",
            diagnosis=r"rank \d, (result|state\.grad)\[0, \d, \d\]: expected",
            edits=(("before_kept * other + before, before_kept", "other + before, before_kept"),),
        ),
        Wrong(
            "what comes later decays, in the place of what came before",
            diagnosis=r"rank \d, (result|state\.grad)\[0, \d, \d\]: expected",
            edits=(("before_kept * other + before, before_kept", "other_kept * before + other, before_kept"),),
        ),
        Wrong(
            "decays of several ranks are not multiplied",
            diagnosis=r"rank \d, (result|state\.grad)\[\d, \d, \d\]: expected",
            edits=(("state, kept = kept * other + state, kept * other_kept", "state = kept * other + state"),),
        ),
        Wrong(
            "backward runs from the first rank, as forward does",
            diagnosis=r"state\.grad\[0, \d, \d\]: expected",
            edits=(("(n - 1 - rank, -1) if backwards else (rank, 1)", "rank, 1"),),
        ),
        Wrong(
            "the whole sum on each rank, but for one's own",
            diagnosis=r"rank \d, (result|state\.grad)\[0, \d, \d\]: expected",
            edits=(("    return before\n", "    return (state - decay[:, None, None] * before) * (place > 0)\n"),),
        ),
        Wrong(
            "only right for powers of two",
            diagnosis=r"rank \d, (result|state\.grad)\[\d, \d, \d\]: expected",
            edits=(("    while distance < n:\n", "    while 2 * distance <= n:\n"),),
        ),
        Wrong(
            "counts ranks of the world, not of the group",
            diagnosis=r"in the group \[0, 2, 3\]|group",
            edits=(("dist.get_rank(group), dist.get_world_size(group)", "dist.get_rank(), dist.get_world_size()"),),
        ),
        Wrong(
            "each rank waits for the one before",
            diagnosis=r"right, but .*\d+ steps where \d+ must do.*\n.*let the distance double",
            body=CHAIN,
        ),
        Wrong(
            "each rank tells all others",
            diagnosis=r"right, but rank \d sent [\d,]+ B where [\d,]+ must do.*\n.*join them, and send no others",
            body=TO_ALL,
        ),
    ),
)
