"""context_parallel.ring_backward: gradients of keys and values travel with their block, and come home."""

from functools import partial

import torch

from puzzles.grading.drives.tensor_parallel import named
from puzzles.grading.puzzle import POINT_TO_POINT, Budget, Measure, Puzzle, Wrong, cases, on_any_ranks
from reference.context_parallel.answers.rings import ring_backward
from reference.context_parallel.plain import attend_backward

from .common import ATTENTION, block_bytes, sees, tokens_of, whole_attention

RETURNED = ("gradient of query", "gradient of key", "gradient of value")
USUAL = {"batch": (1,), "heads": (2,), "local": (2,), "head_dim": (3,)}


def upstream_of(case, rank):
    """The gradient of a rank's outputs."""
    return case.normal(rank, case.batch, case.heads, case.local, case.head_dim, name="upstream")


def after_forward(case, rank):
    """This rank's tokens, what forward has found for them, and the gradient of that."""
    _, out, lse = whole_attention(case)
    found = {"out": out.detach().split(case.local, 2)[rank].clone(), "lse": lse.split(case.local, 2)[rank].clone()}
    return {"gradient": upstream_of(case, rank), **tokens_of(case, rank), **found, "seen": sees(case, rank)}


def by_autograd(case, inputs):
    """All tokens at once, in one process."""
    whole, out, _ = whole_attention(case)
    upstream = torch.cat([upstream_of(case, rank) for rank in range(case.n)], 2)
    found = torch.autograd.grad((out * upstream).sum(), list(whole.values()))
    parts = zip(*(each.split(case.local, 2) for each in found), strict=True)
    return [{"returns": "3 tensors", **dict(zip(RETURNED, each, strict=True))} for each in parts]


def most_sent(case):
    """Bytes: n-1 times a block, and n times a gradient of one."""
    return (2 * case.n - 1) * block_bytes(case) if case.n > 1 else 0


PUZZLE = Puzzle(
    name="context_parallel.ring_backward",
    title="Backward around a ring",
    statement="""
        In forward, blocks of keys and values passed by this rank's queries. In backward they pass by once more. This
        rank finds what its queries make of the gradients of a block, for keys and values that are not its own. Another
        rank finds another part of the same gradients. All parts have to be summed, at the rank whose keys they are of.

        So let the gradient of a block travel with the block. Each rank adds its part, and passes it on to the next
        rank. The gradient of the queries stays where it is and grows with each block. How often must the gradient of a
        block be passed on until it is home?

        Given is `attend_backward(gradient, query, key, value, out, lse, seen)`, which returns one block's part of the
        gradients of query, key and value. `out` and `lse` are those of all blocks together, as forward has found them.

        Args:
            gradient: [B, H, Q, d], of this rank's outputs.
            query: [B, H, Q, d], this rank's.
            key: [B, K, Q, d], this rank's.
            value: [B, K, Q, d], this rank's.
            out: [B, H, Q, d], what this rank's queries have got of all blocks together.
            lse: [B, H, Q], of all blocks together; -inf where a query sees nothing at all.
            seen: [n, Q, Q] of bool: seen[j] says which of this rank's queries see which keys of rank j.
            group: n ranks. Any n.

        Returns: the gradients of this rank's query, key and value, like these.

        Budget: each rank sends n-1 blocks and n gradients of blocks, in 2n-1 steps. Alone it sends nothing.
        """,
    function=ring_backward,
    cases=cases(worlds=(4,), **USUAL, kv_heads=(2, 1), layout=("contiguous",), padding=(0,))
    + cases(worlds=(3,), **USUAL, kv_heads=(1,), layout=("zigzag", "striped"), padding=(1,))
    + cases(
        worlds=(2, 1, 5),
        batch=(2,),
        heads=(2,),
        local=(3,),
        head_dim=(2,),
        kv_heads=(1,),
        layout=("contiguous",),
        padding=(0, 3),
    )
    + cases(worlds=(4,), members=(0, 2, 3), **USUAL, kv_heads=(2,), layout=("contiguous",), padding=(0,)),
    drawn=on_any_ranks(
        batch=(1, 2),
        heads=(2, 4),
        local=(1, 2, 3),
        head_dim=(2, 3),
        kv_heads=(1, 2),
        layout=("contiguous", "zigzag", "striped"),
        padding=(0, 1, 3),
    ),
    inputs=after_forward,
    oracle=by_autograd,
    drive=partial(named, RETURNED),
    tolerance=1e-9,
    calls=POINT_TO_POINT,
    without=ATTENTION,
    given=(attend_backward,),
    budgets=(
        Budget(
            Measure.BYTES_SENT,
            target=most_sent,
            why="blocks stop before they are where they began, only their gradients go all the way",
        ),
        Budget(
            Measure.STEPS,
            target=lambda case: 2 * case.n - 1 if case.n > 1 else 0,
            optimum=lambda case: case.n if case.n > 1 else 0,
            why="in each step every rank sends and receives at once; keys and values fit into one tensor",
        ),
    ),
    hints=(
        "Follow the keys of one rank around the ring. Who adds to their gradient first, who adds last? Where is the "
        "gradient then, and who has to have it?",
        "Two tensors travel: `block = torch.stack([key, value])` and `of_block`, which begins as zeros. In step s both "
        "belong to rank (rank - s) % n.",
        "In each of n steps: add this rank's part to `of_query` and `of_block`, pass on `of_block`; pass on `block`, "
        "too, but not in the last step. After n times of_block is at the rank whose keys it is of.",
    ),
    wrong=(
        Wrong(
            "backward takes the block that it began with",
            diagnosis=r"gradient of (query|key)\[0, \d, \d, 0\]: expected",
            edits=(("query, block[0], block[1], out", "query, key, value, out"),),
        ),
        Wrong(
            "gradients of keys and values are one hop short",
            diagnosis=r"gradient of key\[0, 0, \d, 0\]: expected",
            edits=(
                (
                    "        of_block = _passed_on(of_block, group)\n        if step < n - 1:\n",
                    "        if step < n - 1:\n            of_block = _passed_on(of_block, group)\n",
                ),
            ),
        ),
        Wrong(
            "gradients of keys and values stay where they are found",
            diagnosis=r"gradient of key\[0, 0, \d, 0\]: expected",
            edits=(("        of_block = _passed_on(of_block, group)\n", ""),),
        ),
        Wrong(
            "only what its own queries make of its own keys",
            diagnosis=r"gradient of key\[0, 0, \d, 0\]: expected",
            edits=(
                ("        of_block = _passed_on(of_block, group)\n", ""),
                (
                    "        of_query, of_block = of_query + more, of_block + torch.stack(of_these)\n",
                    "        of_query = of_query + more\n"
                    "        of_block = of_block + torch.stack(of_these) * (step == 0)\n",
                ),
            ),
        ),
        Wrong(
            "parts of other ranks are replaced, not added to",
            diagnosis=r"gradient of key\[0, 0, \d, 0\]: expected",
            edits=(("of_block + torch.stack(of_these)", "torch.stack(of_these)"),),
        ),
        Wrong(
            "passed on before it is added to",
            diagnosis=r"gradient of key\[0, 0, \d, 0\]: expected",
            edits=(
                ("        of_block = _passed_on(of_block, group)\n", ""),
                (
                    "        of_query, of_block = of_query + more, of_block + torch.stack(of_these)\n",
                    "        of_block = _passed_on(of_block, group)\n"
                    "        of_query, of_block = of_query + more, of_block + torch.stack(of_these)\n",
                ),
            ),
        ),
        Wrong(
            "the mask of the rank on the other side",
            diagnosis=r"gradient of (query|key)\[0, \d, \d, 0\]: expected",
            edits=(("(rank - step) % n", "(rank + step) % n"),),
        ),
        Wrong(
            "the gradient of the queries is that of the last block",
            diagnosis=r"gradient of query\[0, \d, \d, 0\]: expected",
            edits=(("of_query + more, of_block", "more, of_block"),),
        ),
        Wrong(
            "gradients are averaged over ranks",
            diagnosis=r"gradient of key\[0, 0, \d, 0\]: expected",
            edits=(("of_block[0], of_block[1]", "of_block[0] / n, of_block[1] / n"),),
        ),
        Wrong(
            "blocks go all the way, too",
            diagnosis=r"right, but rank \d sent [\d,]+ B where [\d,]+ must do.*\n.*only their gradients go all the way",
            edits=(("        if step < n - 1:\n            block", "        if n > 1:\n            block"),),
        ),
    ),
)
