"""compression.one_bit_all_reduce: signs and scales in two stages, with two memories."""

import torch.distributed as dist

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, cases, on_any_ranks
from reference.compression import plain_memory
from reference.compression.answers.one_bit import one_bit_all_reduce
from reference.compression.answers.sign_bits import decode, encode

from .gradients import two_ways

SCALE = 4  # bytes


def vector_and_memories(case, rank):
    """Whole numbers, so that means are the same in any order of additions."""
    chunk = 8 * case.bytes
    return {
        "x": case.tensor(rank, case.n * chunk).double(),
        "residual": case.tensor(rank, case.n * chunk, name="residual").double(),
        "of_server": case.tensor(rank, chunk, name="server").double(),
    }


def of_one_process(case, inputs):
    """A tensor for each rank and for each server."""
    residuals, servers = ([each[name].clone() for each in inputs] for name in ("residual", "of_server"))
    summed = plain_memory.two_stages([each["x"] for each in inputs], residuals, servers, 8 * case.bytes)
    pairs = zip(residuals, servers, strict=True)
    return [{"returns": summed, "residual": residual, "of_server": server} for residual, server in pairs]


PUZZLE = Puzzle(
    name="compression.one_bit_all_reduce",
    title="An all-reduce in 1 bit, in two stages",
    statement="""
        Send of each element its sign, and of each chunk one scale: the mean of its magnitudes. Rank j is the server of
        chunk j: it adds up what all have sent it (what the bits mean, not the bits), and sends all the sum, in signs
        and a scale again.

        Both times something is not sent. Each rank remembers that of its own `x`, and each server that of the sum of
        its chunk, and adds it the next time.

        Given are `encode(x)`, which makes bytes [..., L/8 + 4] of the signs and the scale of each row of `x` [..., L];
        and `decode(bytes)`, which says what they mean, float64 [..., L].

        Args:
            x: [N] of this rank, float64; 8 n divides N.
            residual: [N] of this rank; updated in place.
            of_server: [N/n] of this rank as a server; updated in place.
            group: n ranks. Any n.

        Returns: [N], the same on every rank.

        Budget: two calls, N/8n + 4 bytes to each other rank in the one, and as many in the other.
        """,
    function=one_bit_all_reduce,
    cases=cases(worlds=(3, 4, 2, 1, 8), bytes=(2,)) + cases(worlds=(4,), members=(0, 2, 3), bytes=(1,)),
    drawn=on_any_ranks(bytes=(1, 2, 3)),
    inputs=vector_and_memories,
    oracle=of_one_process,
    tolerance=1e-9,
    calls=(dist.all_to_all_single, dist.all_gather_into_tensor),
    given=(encode, decode),
    budgets=(
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: two_ways(case.n, case.bytes + SCALE),
            why="a bit for each element and a scale for each chunk, there and back",
        ),
        Budget(Measure.CALLS, target=lambda case: 2, why="an all-to-all and an all-gather"),
    ),
    hints=(
        "It is the majority vote with scales, and with error feedback twice: once before each message.",
        "`residual += x`; what is sent is encode of its n rows, and what that means is no longer the residual.",
        "The server: `of_server += decode(received).sum(0)`, encode, take away what that means, all-gather.",
    ),
    wrong=(
        Wrong(
            "the server forgets",
            diagnosis=r"of_server.*expected|expected",
            edits=(("    of_server -= decode(answer)\n", "    of_server.zero_()\n"),),
        ),
        Wrong(
            "the server does not add what it remembers",
            diagnosis=r"expected",
            edits=(("    of_server += decode(received)", "    of_server[:] = decode(received)"),),
        ),
        Wrong(
            "the worker forgets",
            diagnosis=r"residual.*expected|expected",
            edits=(("    residual -= decode(message).view(-1)\n", "    residual.zero_()\n"),),
        ),
        Wrong(
            "one scale for all chunks",
            diagnosis=r"expected",
            edits=(
                (
                    "    message = encode(residual.view(n, -1))\n",
                    "    message = encode(residual.view(n, -1))\n    message[:, -4:] = encode(residual)[-4:]\n",
                ),
            ),
        ),
        Wrong(
            "a mean instead of a sum",
            diagnosis=r"expected",
            edits=(("decode(received).sum(0)", "decode(received).mean(0)"),),
        ),
        Wrong(
            "summed before it is compressed",
            diagnosis=r"expected|right, but rank \d sen",
            body="""
                n = dist.get_world_size(group)
                residual += x
                whole = residual.clone()
                dist.all_reduce(whole, group=group)
                sent = decode(encode(whole.view(n, -1))).view(-1)
                residual -= sent / n
                return sent
                """,
        ),
        Wrong(
            "right, in 64 bits",
            diagnosis=r"right, but rank \d sen(t|ds) [\d,]+ B",
            body="""
                n, rank = dist.get_world_size(group), dist.get_rank(group)
                residual += x
                sent = decode(encode(residual.view(n, -1)))
                residual -= sent.view(-1)
                dist.all_reduce(sent, group=group)
                of_server += sent[rank]
                answer = decode(encode(of_server))
                of_server -= answer
                answers = sent.new_empty(n * len(answer))
                dist.all_gather_into_tensor(answers, answer, group=group)
                return answers
                """,
        ),
    ),
)
