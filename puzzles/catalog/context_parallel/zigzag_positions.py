"""context_parallel.zigzag_positions: a chunk of the head, one of the tail, and angles that know it."""

import torch

from puzzles.grading.drives import there_and_back
from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, case, cases, drawn
from reference.context_parallel.answers.places import zigzag_rotary

from .common import DOUBLE


def tokens_of_rank(case):
    """Token after token: in which of 2n chunks it is, and whose that is."""
    begins = [case.tokens * i // (2 * case.ranks) for i in range(1, 2 * case.ranks)]
    chunks = (torch.arange(case.tokens).unsqueeze(1) >= torch.tensor(begins, dtype=torch.int64)).sum(1)
    return (torch.minimum(chunks, 2 * case.ranks - 1 - chunks) == case.rank).nonzero().flatten()


def most(case):
    """Tokens of a rank, at most."""
    return 2 * -(-case.tokens // (2 * case.ranks))


def all_tokens(case, rank):
    """All tokens, and the gradient of what this rank makes of its own."""
    upstream = case.normal(0, case.batch, len(tokens_of_rank(case)), case.width, name="upstream")
    x = case.normal(0, case.batch, case.tokens, case.width)
    return {"x": x, "base": case.base, "rank": case.rank, "ranks": case.ranks, "upstream": upstream}


def turned_as_complex_numbers(case, inputs):
    """All tokens are turned, by complex numbers, then a rank's are taken; backward turns them back."""
    x, upstream, half = inputs[0]["x"], inputs[0]["upstream"], case.width // 2
    mine = tokens_of_rank(case)
    exponents = torch.arange(half, dtype=torch.float64) * 2 / case.width
    angles = mine.double().unsqueeze(1) / case.base**exponents
    turn = torch.polar(torch.ones_like(angles), angles)

    def turned(x, turn):
        found = torch.complex(x[..., :half].contiguous(), x[..., half:].contiguous()) * turn
        return torch.cat([found.real, found.imag], -1)

    gradient = torch.zeros_like(x)
    gradient[:, mine] = turned(upstream, turn.conj())
    return [{"returns": turned(x[:, mine], turn), "x.grad": gradient}]


SMALL = {"batch": (1,), "width": (4,), "base": (100.0,)}

PUZZLE = Puzzle(
    name="context_parallel.zigzag_positions",
    title="Zigzag positions",
    statement="""
        With causal attention a token sees those before it. If rank 0 has the first tokens and rank n-1 the last, rank 0
        has little to do, and all wait for rank n-1. So cut the sequence into 2n chunks. Each rank gets two of them: one
        of the head, and the one that is as far from the end as the first is from the beginning:

            chunk    0  1  2  3  4  5  6  7
            rank     0  1  2  3  3  2  1  0

        Now the tokens of a rank do not stand in a row. Whatever depends on a token's position must know it. Rotary
        embeddings do: they turn features i and d/2 + i of a token at position p by the angle p · base^(-2i/d):

            (a, b)  ->  (a cos - b sin, a sin + b cos)

        If the angles belong to other positions than the tokens, nothing fails, and a model learns badly.

        Take a rank's tokens out of the sequence, first those of the head, then those of the tail, each in its order,
        and turn them.

        Args:
            x: [B, S, d], all tokens. d is even.
            base: of the angles, a float.
            rank: whose tokens to take.
            ranks: n. Chunk i is [S·i // 2n, S·(i+1) // 2n): 2n need not divide S, and chunks may be empty.

        Returns: [B, tokens of the rank, d], with the gradient for x.

        Budget: memory for the rank's tokens, not for all tokens once more.
        """,
    function=zigzag_rotary,
    cases=cases(worlds=(1,), **SMALL, tokens=(16,), ranks=(4,), rank=range(4))
    + cases(worlds=(1,), **SMALL, tokens=(13,), ranks=(1, 2, 3, 5), rank=(0,))
    + cases(worlds=(1,), batch=(2,), width=(6,), base=(10_000.0,), tokens=(37,), ranks=(3,), rank=(0, 1, 2))
    + cases(worlds=(1,), batch=(1,), width=(2,), base=(10.0,), tokens=(9, 50), ranks=(8,), rank=(0, 3, 7))
    + cases(worlds=(1,), batch=(2,), width=(16,), base=(100.0,), tokens=(256,), ranks=(8,), rank=(2,)),
    drawn=(
        drawn(
            worlds=(1,),
            batch=(1, 2),
            width=(2, 4, 6),
            base=(10.0, 500.0, 10_000.0),
            ranks=range(1, 9),
            tokens=lambda so_far: range(2 * so_far.ranks, 70),
            rank=lambda so_far: range(so_far.ranks),
        ),
    ),
    large=case(1, batch=1, width=128, base=100.0, tokens=20_000, ranks=8, rank=3),
    inputs=all_tokens,
    oracle=turned_as_complex_numbers,
    drive=there_and_back,
    tolerance=1e-9,
    budgets=(
        Budget(
            Measure.PEAK_BYTES,
            target=lambda case: DOUBLE * (8 * case.batch + 4) * case.width * most(case) + 1000,
            optimum=lambda case: DOUBLE * case.batch * case.width * (case.tokens // case.ranks),
            why="take this rank's tokens first, then turn them",
        ),
    ),
    hints=(
        "Which two chunks has rank r? At which position does each of them begin? Write the positions of its tokens as "
        "one tensor.",
        "Chunks r and 2n-1-r. `places = torch.tensor([*range(...), *range(...)], dtype=torch.int64)`, and "
        "`x[:, places]` are the tokens. The angles come from the same tensor.",
        "`angles = places.unsqueeze(1) * base ** (-torch.arange(half, dtype=x.dtype) / half)` with half = d/2; `first, "
        "second = x[:, places].chunk(2, dim=-1)`; put both turned halves together with torch.cat.",
    ),
    wrong=(
        Wrong(
            "angles of contiguous tokens",
            diagnosis=r"result\[0, \d, \d\]: expected",
            edits=(
                (
                    "    angles = places.unsqueeze(1)",
                    "    contiguous = rank * len(places) + torch.arange(len(places))\n"
                    "    angles = contiguous.unsqueeze(1)",
                ),
            ),
        ),
        Wrong(
            "angles begin at 0 on every rank",
            diagnosis=r"result\[0, \d, \d\]: expected",
            edits=(("angles = places.unsqueeze(1)", "angles = torch.arange(len(places)).unsqueeze(1)"),),
        ),
        Wrong(
            "contiguous tokens with the angles of zigzag",
            diagnosis=r"result\[0, \d, 0\]: expected",
            edits=(("x[:, places].chunk", "x.tensor_split(ranks, 1)[rank][:, : len(places)].chunk"),),
        ),
        Wrong(
            "the tail is not mirrored",
            diagnosis=r"result\[0, \d, 0\]: expected",
            edits=(("(rank, 2 * ranks - 1 - rank)", "(rank, ranks + rank)"),),
        ),
        Wrong(
            "the tail comes first",
            diagnosis=r"result\[0, 0, \d\]: expected",
            edits=(("[*head, *tail]", "[*tail, *head]"),),
        ),
        Wrong(
            "the tail runs backward",
            diagnosis=r"result\[0, \d, \d\]: expected",
            edits=(("[*head, *tail]", "[*head, *reversed(tail)]"),),
        ),
        Wrong(
            "what 2n does not divide is lost",
            diagnosis=r"result: expected a float64 tensor of shape \(1, \d+, \d+\), got|result\[0, \d, \d\]: expected",
            edits=(("x.shape[1] * i // (2 * ranks)", "x.shape[1] // (2 * ranks) * i"),),
        ),
        Wrong(
            "turned the other way",
            diagnosis=r"result\[0, \d, \d\]: expected",
            edits=(
                ("cos() - second * angles.sin()", "cos() + second * angles.sin()"),
                ("first * angles.sin() + second", "-first * angles.sin() + second"),
            ),
        ),
        Wrong(
            "all tokens are turned, then a rank's are taken",
            diagnosis=r"right, but it keeps alive [\d,]+ B where [\d,]+ must do.*\n.*tokens first, then turn them",
            edits=(
                (
                    "    angles = places.unsqueeze(1)",
                    "    angles = torch.arange(x.shape[1]).unsqueeze(1)",
                ),
                ("x[:, places].chunk", "x.chunk"),
                ("return torch.cat(turned, dim=-1)", "return torch.cat(turned, dim=-1)[:, places]"),
            ),
        ),
    ),
)
