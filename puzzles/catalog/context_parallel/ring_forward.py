"""context_parallel.ring_forward: queries stay, keys and values travel around."""

from functools import partial

from puzzles.grading.drives.context_parallel import with_attention_that_takes_time
from puzzles.grading.overlap import NETWORK
from puzzles.grading.puzzle import POINT_TO_POINT, Budget, Measure, Puzzle, Wrong, case, cases, on_any_ranks
from reference.context_parallel.answers.rings import ring_forward
from reference.context_parallel.plain import merge

from .common import ATTENTION, DOUBLE, block_bytes, sees, tokens_of, whole_attention

RETURNED = ("out", "lse")
SMALL = {"batch": (1,), "heads": (2,), "local": (2,), "head_dim": (4,)}


def own_tokens(case, rank):
    """This rank's tokens, what they see, and for the drive how long attention to a block takes."""
    return {**tokens_of(case, rank), "seen": sees(case, rank), "seconds": case.microseconds * 1e-6}


def in_one_process(case, inputs):
    """All tokens at once, by the definition."""
    _, out, lse = whole_attention(case)
    parts = zip(out.detach().split(case.local, 2), lse.split(case.local, 2), strict=True)
    return [{"returns": "2 tensors", "out": each, "lse": of_each} for each, of_each in parts]


def most_bytes(case):
    """Three blocks, and for this rank's queries some outputs, numbers, and scores with one block."""
    queries = case.batch * case.heads * case.local
    return 3 * block_bytes(case) + DOUBLE * queries * (5 * case.head_dim + 8 + 5 * case.local)


def overlapped(case):
    """Microseconds: in each step the longer of message and attention, and attention to the block that comes last."""
    message = 1e6 * NETWORK.time(0, 1, block_bytes(case)) if case.n > 1 else 0.0
    return (case.n - 1) * max(case.microseconds, message) + case.microseconds


SLOW = r"right, but on a slow link it takes [\d,.]+ µs where [\d,.]+ must do.*\n.*while a block"

PUZZLE = Puzzle(
    name="context_parallel.ring_forward",
    title="Attention around a ring",
    statement="""
        A long sequence is shared out: each rank has some tokens, with their queries, keys and values. Every query has
        to meet the keys of all ranks. To gather these takes memory for the whole sequence. So let them pass by: queries
        stay, and the block of a rank's keys and values travels around the ring, from each rank to the next. What a
        block gives is merged with what the queries have got so far.

        A block that is looked at can be sent at the same time: attention only reads it. So post the send and the
        receive, look, and then wait.

        Which token stands where is not your concern. `seen` says of each rank which of its keys your queries see: it
        may be a causal mask over contiguous tokens or over others, and there may be padding, which sees nothing. Use
        the part of it that belongs to the block that you hold.

        Given is `merge(out, lse, other, other_lse)`, which returns out and lse of two parts together. A part that saw
        nothing has out = 0 and lse = -inf.

        Args:
            query: [B, H, Q, d], this rank's.
            key: [B, K, Q, d], this rank's. H / K heads of queries share one of these.
            value: [B, K, Q, d], this rank's.
            seen: [n, Q, Q] of bool: seen[j] says which of this rank's queries see which keys of rank j.
            attend: `attend(query, key, value, seen[j])` is out and lse of attention to one block. It takes its time.
            group: n ranks. Any n.

        Returns: out, [B, H, Q, d], and lse, [B, H, Q], of attention to all ranks' keys.

        Budget: each rank sends n-1 blocks, in n-1 steps; memory for three blocks at most (two are enough); and on a
        modelled link the time of n-1 messages or attentions, whichever takes longer, and of one more attention.
        """,
    function=ring_forward,
    cases=cases(worlds=(4,), **SMALL, kv_heads=(2,), microseconds=(10,), layout=("contiguous",), padding=(0,))
    + cases(worlds=(4,), **SMALL, kv_heads=(1,), microseconds=(40,), layout=("contiguous",), padding=(0,))
    + cases(worlds=(3,), **SMALL, kv_heads=(1,), microseconds=(20,), layout=("zigzag", "striped"), padding=(1,))
    + cases(
        worlds=(2, 1),
        batch=(2,),
        heads=(2,),
        local=(3,),
        head_dim=(3,),
        kv_heads=(1,),
        microseconds=(20,),
        layout=("contiguous",),
        padding=(0, 3),
    )
    + cases(  # on so many ranks, all blocks together are more than all else
        worlds=(6,),
        batch=(1,),
        heads=(2,),
        local=(1,),
        head_dim=(8,),
        kv_heads=(2,),
        microseconds=(20,),
        layout=("contiguous",),
        padding=(0,),
    )
    + cases(
        worlds=(4,),
        members=(0, 2, 3),
        **SMALL,
        kv_heads=(2,),
        microseconds=(20,),
        layout=("contiguous",),
        padding=(0,),
    ),
    drawn=on_any_ranks(
        batch=(1, 2),
        heads=(2, 4),
        local=(1, 2, 3),
        head_dim=(2, 3, 4),
        kv_heads=(1, 2),
        microseconds=(10, 20, 40),
        layout=("contiguous", "zigzag", "striped"),
        padding=(0, 1, 3),
    ),
    large=case(
        3,
        batch=1,
        heads=1,
        local=50,
        head_dim=8000,
        kv_heads=1,
        microseconds=20,
        layout="zigzag",
        padding=0,
    ),
    inputs=own_tokens,
    oracle=in_one_process,
    drive=partial(with_attention_that_takes_time, RETURNED),
    tolerance=1e-10,
    calls=POINT_TO_POINT,
    without=ATTENTION,
    given=(merge,),
    budgets=(
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: (case.n - 1) * block_bytes(case),
            why="every rank's block goes around once, and stops before it is where it began",
        ),
        Budget(
            Measure.STEPS,
            target=lambda case: case.n - 1,
            why="in each of n-1 steps every rank sends and receives at once; keys and values fit into one tensor",
        ),
        Budget(
            Measure.PEAK_BYTES,
            target=most_bytes,
            optimum=lambda case: min(2, case.n) * block_bytes(case),
            why="a block that was looked at and passed on is of no use any more: all blocks need not be there at once",
        ),
        Budget(
            Measure.MICROSECONDS,
            target=lambda case: overlapped(case) + 0.1,
            optimum=overlapped,
            why="while a block is looked at, it must be in flight to the next rank, and the next one must be coming",
        ),
    ),
    hints=(
        "After s steps around the ring, whose keys do you hold? Which part of `seen` is about these?",
        "Keys and values fit into one tensor: `torch.stack([key, value])`. In step s you hold those of rank "
        "(rank - s) % n. Begin with out = 0 and lse = -inf, and merge.",
        "Post isend of the block to the next rank and irecv of another tensor from the one before; `out, lse = "
        "merge(out, lse, *attend(query, held[0], held[1], seen[(rank - step) % n]))`; then wait for both requests. In "
        "the last step there is nothing to post.",
    ),
    wrong=(
        Wrong(
            "waits, then looks",
            diagnosis=SLOW,
            edits=(
                (
                    "        out, lse = merge(out, lse, *attend(query, held[0], held[1], seen[(rank - step) % n]))\n",
                    "",
                ),
                (
                    "        held = incoming\n",
                    "        out, lse = merge(out, lse, *attend(query, held[0], held[1], seen[(rank - step) % n]))\n"
                    "        held = incoming\n",
                ),
            ),
        ),
        Wrong(
            "once around and where it began",
            diagnosis=r"right, but rank \d sent [\d,]+ B where [\d,]+ must do.*\n.*stops before it is where it began",
            edits=(("if step < n - 1:", "if n > 1:"),),
        ),
        Wrong(
            "keeps all blocks that came",
            diagnosis=r"right, but it keeps alive [\d,]+ B where [\d,]+ must do.*\n.*all blocks need not be there",
            edits=(
                ("    held = torch.stack", "    blocks = []\n    held = torch.stack"),
                ("        held = incoming\n", "        blocks.append(held)\n        held = incoming\n"),
            ),
        ),
        Wrong(
            "sends its own block in every step",
            diagnosis=r"(out|lse)\[0, \d, \d(, \d)?\]: expected",
            edits=(
                ("    held = torch.stack([key, value])\n", "    held = own = torch.stack([key, value])\n"),
                ("start([(held, (rank", "start([(own, (rank"),
            ),
        ),
        Wrong(
            "the mask of the rank on the other side",
            diagnosis=r"out\[0, \d, \d, \d\]: expected",
            edits=(("seen[(rank - step) % n]", "seen[(rank + step) % n]"),),
        ),
        Wrong(
            "the mask of its own keys for all blocks",
            diagnosis=r"out\[0, \d, \d, \d\]: expected",
            edits=(("seen[(rank - step) % n]", "seen[rank]"),),
        ),
        Wrong(
            "no mask",
            diagnosis=r"out\[0, 0, 0, 0\]: expected",
            edits=(("seen[(rank - step) % n]", "torch.ones_like(seen[0])"),),
        ),
        Wrong(
            "what blocks give is averaged",
            diagnosis=r"out\[0, \d, \d, \d\]: expected",
            edits=(
                (
                    "        out, lse = merge(out, lse, *attend(query, held[0], held[1], seen[(rank - step) % n]))\n",
                    "        part, of_part = attend(query, held[0], held[1], seen[(rank - step) % n])\n"
                    "        out, lse = out + part / n, torch.logaddexp(lse, of_part)\n",
                ),
            ),
        ),
        Wrong(
            "NaN where a rank's tokens see nothing",
            diagnosis=r"(out|lse)\[\d, \d, \d(, \d)?\]: expected (0|-inf), got nan",
            edits=(
                (
                    "        out, lse = merge(out, lse, *attend(query, held[0], held[1], seen[(rank - step) % n]))\n",
                    "        part, of_part = attend(query, held[0], held[1], seen[(rank - step) % n])\n"
                    "        both = torch.logaddexp(lse, of_part)\n"
                    "        share, rest = (of_part - both).exp().unsqueeze(-1), (lse - both).exp().unsqueeze(-1)\n"
                    "        out, lse = rest * out + share * part, both\n",
                ),
            ),
        ),
        Wrong(
            "receives into what it looks at",
            diagnosis=r"(out|lse)\[\d, \d, \d(, \d)?\]: expected|wait\(\)|still in flight",
            edits=(("incoming = torch.empty_like(held)", "incoming = held"),),
        ),
    ),
)
