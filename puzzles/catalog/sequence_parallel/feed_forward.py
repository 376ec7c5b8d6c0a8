"""sequence_parallel.feed_forward: half of a block, with a slice of the tokens outside and some columns inside."""

import torch
import torch.distributed as dist

from puzzles.grading.drives import there_and_back
from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, case, cases, on_any_ranks
from reference.sequence_parallel.answers.on_slices import feed_forward
from reference.sequence_parallel.plain import gather, scatter, shared

from .common import (
    DOUBLE,
    all_reduce_of,
    called,
    leaves,
    mine,
    one_pass,
    part_of,
    slices_of,
    tokens_of,
    whole,
)


def a_slice_and_my_columns(case, rank):
    """This rank's tokens, its parts of the three matrices, and what all ranks have alike."""
    return {
        "x": case.normal(rank, *mine(case)),
        "norm": 1 + case.normal(0, case.width, name="norm").abs(),
        "gate": part_of(case, rank, case.hidden, case.width, "gate"),
        "up": part_of(case, rank, case.hidden, case.width, "up"),
        "down": part_of(case, rank, case.width, case.hidden, "down"),
        "bias": case.normal(0, case.width, name="bias"),
        "upstream": case.normal(rank, *mine(case), name="upstream"),
        **called(case),
    }


def whole_matrices_in_one_process(case, inputs):
    """All tokens and all columns, by autograd."""
    x, norm, bias = leaves([tokens_of(inputs, "x"), inputs[0]["norm"], inputs[0]["bias"]])
    gate, up, down = leaves(
        torch.cat([each[name] for each in inputs], dim) for name, dim in (("gate", 0), ("up", 0), ("down", 1))
    )
    normed = x / x.square().mean(-1, keepdim=True).sqrt() * norm
    y = x + (torch.nn.functional.silu(normed @ gate.T) * (normed @ up.T)) @ down.T + bias
    y = y * case.get("times", 1)
    (y * tokens_of(inputs, "upstream")).sum().backward()
    split = (slices_of(y.detach(), case.n), slices_of(x.grad, case.n))
    split += (gate.grad.chunk(case.n), up.grad.chunk(case.n), down.grad.chunk(case.n, 1))
    names = ("returns", "x.grad", "gate.grad", "up.grad", "down.grad")
    alike = {"norm.grad": norm.grad, "bias.grad": bias.grad}
    return [{**dict(zip(names, parts, strict=True)), **alike} for parts in zip(*split, strict=True)]


def sent(case):
    """Two passes there, two back, and the gradients that every rank has a part of."""
    return 4 * one_pass(case) + 2 * all_reduce_of(case, case.width)


def kept(case, slices):
    """Bytes for all tokens once, four things inside, so many slices outside, and their norms: a number for a token."""
    inside, outside = torch.Size(whole(case, case.hidden)), torch.Size(mine(case))
    numbers = torch.Size(whole(case)).numel() + 4 * inside.numel() + slices * outside.numel()
    return DOUBLE * (numbers + (slices - 1) * outside[:2].numel())


PUZZLE = Puzzle(
    name="sequence_parallel.feed_forward",
    title="Half of a block: slices outside, columns inside",
    statement="""
        The second half of a transformer block, with a norm before and a residual around it:

            x + down(silu(gate(n)) · up(n)) + bias      n = RMSNorm(x), scaled by `norm`

        The three matrices are split as in tensor parallelism: each rank has some rows of `gate` and `up` (which are
        columns of x Wᵀ), and the columns of `down` that go with them. Everything else lies outside: there each rank has
        a slice of the tokens, and does what there is to do on that slice alone. What lies where, and what has to happen
        on the way in and on the way out?

        Given are `gather(x, group)`, [B, S/n, D] -> [B, S, D], and `scatter(x, group)`, [B, S, D] -> [B, S/n, D], which
        adds up what all ranks have made: each is the backward of the other. `shared(weight, group)` is the weight
        itself, and in backward sums its gradient over the ranks. `torch.nn.functional.rms_norm(x, [D], norm)` is the
        norm, `torch.nn.functional.silu(x)` the nonlinearity.

        Args:
            x: [B, S/n, D], this rank's tokens.
            norm: [D], the same on every rank.
            gate: [F/n, D], this rank's rows; torch's linear layer computes x @ weight.T.
            up: [F/n, D], this rank's rows.
            down: [D, F/n], this rank's columns.
            bias: [D], the same on every rank.
            group: n ranks. Any n.

        Returns: [B, S/n, D]. After its backward, the gradients of `norm` and `bias` are those of all tokens, on every
        rank.

        Budget: a slice sent n-1 times in each of two passes there and two back, and the gradients of `norm` and `bias`
        summed. Between forward and backward, all tokens are kept once; what lies outside is kept as slices.
        """,
    function=feed_forward,
    cases=cases(worlds=(4,), batch=(2,), slice=(3,), width=(6,), hidden=(2,))
    + cases(worlds=(3, 2, 1), batch=(1,), slice=(4,), width=(5,), hidden=(3,))
    + cases(worlds=(4,), members=(0, 2, 3), batch=(2,), slice=(2,), width=(4,), hidden=(3,)),
    drawn=on_any_ranks(batch=(1, 2), slice=range(2, 5), width=range(3, 7), hidden=(1, 2, 3)),
    large=case(4, batch=1, slice=1024, width=160, hidden=4, times=4),
    inputs=a_slice_and_my_columns,
    oracle=whole_matrices_in_one_process,
    drive=there_and_back,
    tolerance=1e-10,
    calls=(dist.all_reduce,),
    given=(gather, scatter, shared),
    budgets=(
        Budget(
            Measure.BYTES_SENT,
            target=sent,
            optimum=lambda case: 4 * one_pass(case) + all_reduce_of(case, 2 * case.width),
            why="one gather serves everything inside, and its backward is one scatter",
        ),
        Budget(
            Measure.KEPT_BYTES,
            target=lambda case: kept(case, slices=5),
            optimum=lambda case: kept(case, slices=2),
            why="what looks at each token by itself belongs outside: there a rank keeps a slice, inside it keeps all",
        ),
    ),
    hints=(
        "Draw a line around what needs this rank's columns. What crosses it on the way in, and on the way out? What "
        "would happen to a residual or a bias inside of it?",
        "Outside: norm, residual, bias. Inside: the three products and silu. One gather on the way in, one scatter on "
        "the way out.",
        "`norm` and `bias` meet slices: send both through `shared` first. tokens = gather(rms_norm(...)), then "
        "x + scatter(... @ down.T) + bias.",
    ),
    wrong=(
        Wrong(
            "the gradients of norm and bias are left unreduced",
            diagnosis=r"norm\.grad\[0\]: expected .*(\n.*)*norm\.grad must be the same on every rank",
            edits=(("    norm, bias = shared(torch.stack([norm, bias]), group)\n", ""),),
        ),
        Wrong(
            "the residual goes into the sum: n times",
            diagnosis=r"result\[0, 0, 0\]: expected -?[\d.]+, got",
            edits=(("x + scatter(inside @ down.T, group)", "scatter(gather(x, group) + inside @ down.T, group)"),),
        ),
        Wrong(
            "the bias goes into the sum: n times",
            diagnosis=r"result\[0, 0, 0\]: expected -?[\d.]+, got",
            edits=(("scatter(inside @ down.T, group) + bias", "scatter(inside @ down.T + bias, group)"),),
        ),
        Wrong(
            "my slice of my part, and not of the sum",
            diagnosis=r"result\[0, 0, 0\]: expected -?[\d.]+, got",
            edits=(
                (
                    "scatter(inside @ down.T, group)",
                    "(inside @ down.T).chunk(group.size(), 1)[group.rank()]",
                ),
            ),
        ),
        Wrong(
            "each rank works on its own tokens only",
            diagnosis=r"result\[0, 0, 0\]: expected -?[\d.]+, got",
            body="""
                norm, bias = shared(norm, group), shared(bias, group)
                tokens = torch.nn.functional.rms_norm(x, norm.shape, norm)
                inside = torch.nn.functional.silu(tokens @ gate.T) * (tokens @ up.T)
                return x + inside @ down.T + bias
                """,
        ),
        Wrong(
            "the gradients of the split matrices are summed, too",
            diagnosis=r"gate\.grad\[0, 0\]: expected -?[\d.]+, got",
            edits=(("tokens @ gate.T", "tokens @ shared(gate, group).T"),),
        ),
        Wrong(
            "gathered once for gate, and once for up",
            diagnosis=r"right, but rank \d sent [\d,]+ B where [\d,]+ must do.*\n.*one gather serves everything",
            body="""
                norm, bias = shared(norm, group), shared(bias, group)
                normed = torch.nn.functional.rms_norm(x, norm.shape, norm)
                opened = torch.nn.functional.silu(gather(normed, group) @ gate.T)
                return x + scatter((opened * (gather(normed, group) @ up.T)) @ down.T, group) + bias
                """,
        ),
        Wrong(
            "all tokens are normed on every rank",
            diagnosis=r"right, but when it has returned it still holds [\d,]+ B where .* must do.*\n.*belongs outside",
            edits=(
                (
                    "gather(F.rms_norm(x, norm.shape, norm), group)",
                    "F.rms_norm(gather(x, group), norm.shape, norm)",
                ),
            ),
        ),
    ),
)
