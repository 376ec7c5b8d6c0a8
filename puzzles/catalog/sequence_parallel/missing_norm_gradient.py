"""sequence_parallel.missing_norm_gradient: it trains, the loss falls, and on four ranks it is another model."""

import torch
import torch.distributed as dist

from puzzles.grading.drives.sequence_parallel import in_training
from puzzles.grading.puzzle import Budget, Claim, Measure, Puzzle, Wrong, cases, on_any_ranks
from reference.sequence_parallel.answers.training import train
from reference.sequence_parallel.plain import gather, scatter
from reference.trace import Op

from .common import all_reduce_of, leaves, mine, one_pass, part_of, tokens_of

RATE = 0.1


def a_slice_and_the_weights(case, rank):
    """This rank's tokens and what they should become, its columns, and what all ranks have alike."""
    return {
        "x": case.normal(rank, *mine(case)),
        "target": case.normal(rank, *mine(case), name="target") + case.normal(0, case.width, name="shift"),
        "norm": 1 + case.normal(0, case.width, name="norm").abs(),
        "up": part_of(case, rank, case.hidden, case.width, "up"),
        "down": part_of(case, rank, case.width, case.hidden, "down"),
        "bias": case.normal(0, case.width, name="bias"),
        "steps": case.steps,
        "rate": RATE,
    }


def one_process_with_all_tokens(case, inputs):
    """All tokens and all columns."""
    x, target = tokens_of(inputs, "x"), tokens_of(inputs, "target")
    up, down = torch.cat([each["up"] for each in inputs]), torch.cat([each["down"] for each in inputs], dim=1)
    weights = leaves([inputs[0]["norm"], up, down, inputs[0]["bias"]])
    normed, losses = x / (x.square().mean(-1, keepdim=True)).sqrt(), []
    for _ in range(case.steps):
        norm, up, down, bias = weights
        y = x + torch.tanh(normed * norm @ up.T) @ down.T + bias
        loss = (y - target).square().sum(-1).mean()
        losses.append(loss.item())
        gradients = torch.autograd.grad(loss, weights)
        weights = leaves(w.detach() - RATE * g for w, g in zip(weights, gradients, strict=True))
    norm, up, down, bias = (weight.detach() for weight in weights)
    parts = zip(up.chunk(case.n), down.chunk(case.n, 1), strict=True)
    return [{"losses": losses, "norm": norm, "bias": bias, "up": up, "down": down} for up, down in parts]


BROKEN = """
    weights, losses = [norm, up, down, bias], []
    everybodys_tokens = dist.get_world_size(group) * x.shape[0] * x.shape[1]
    for weight in weights:
        weight.requires_grad_()
    for _ in range(steps):
        tokens = gather(torch.nn.functional.rms_norm(x, norm.shape, norm), group)
        y = x + scatter(torch.tanh(tokens @ up.T) @ down.T, group) + bias
        loss = (y - target).square().sum() / everybodys_tokens
        loss.backward()
        with torch.no_grad():
            for weight in weights:
                weight -= rate * weight.grad
                weight.grad = None
        total = loss.detach()
        dist.all_reduce(total, group=group)
        losses.append(total.item())
    return losses
    """

BACKWARD = "        loss.backward()\n"
MENDED = """\
        parts = torch.stack([norm.grad, bias.grad])
        dist.all_reduce(parts, group=group)
        norm.grad, bias.grad = parts
"""


def mended(lines):
    """The program with these lines after its backward."""
    return BROKEN.replace(BACKWARD, BACKWARD + lines)


def one_message_for_gradients(case, inputs, outputs, trace):
    """In each step an all-reduce for the loss, and one more."""
    made = max(sum(event.op is Op.ALL_REDUCE for event in events) for events in trace.events)
    fact = f"a rank makes {made} all-reduces in {case.steps} steps where {2 * case.steps} must do: what is summed"
    return [Claim(made <= 2 * case.steps, f"{fact} in one step fits into one tensor, by torch.stack")]


def sent(case, gradients):
    """Bytes of two passes there, two back, the loss, and gradients in messages of these lengths, in each step."""
    return case.steps * (4 * one_pass(case) + sum(all_reduce_of(case, numel) for numel in (1, *gradients)))


PUZZLE = Puzzle(
    name="sequence_parallel.missing_norm_gradient",
    title="The missing gradient",
    statement="""
        A block of a transformer, in training with sequence parallelism: x + down(tanh(up(RMSNorm(x)))) + bias. Norm,
        residual and bias have a slice of the tokens on each rank, `up` is split by columns and `down` by rows. It runs,
        nothing complains, and the loss falls. But train the same model on two ranks and on four, and you get two
        models, and neither is that of one process.

        The pair of operations is right, and so is the loss. Check the program as it is, read what differs first and
        where, then mend it. Of each weight, ask: does this rank have all of it, and has it seen all tokens?

        Given are `gather(x, group)`, [B, S/n, D] -> [B, S, D], and `scatter(x, group)`, [B, S, D] -> [B, S/n, D], which
        adds up what all ranks have made: each is the backward of the other.

        Args:
            x: [B, S/n, D], this rank's tokens.
            target: like `x`, what should come out.
            norm: [D], the weight of the norm, the same on every rank. All four weights are updated in place.
            up: [F/n, D], this rank's rows.
            down: [D, F/n], this rank's columns.
            bias: [D], the same on every rank.
            steps: how many.
            rate: of learning.
            group: n ranks. Any n.

        Returns: the loss before each step, a float each: the squared error, summed over features, the mean over all
        tokens.

        Budget: in each step the two operations there and back, an all-reduce for the loss, and one for what is missing.
        """,
    function=train,
    body=BROKEN,
    answer=mended(MENDED),
    cases=cases(worlds=(4,), batch=(2,), slice=(2,), width=(4,), hidden=(2,), steps=(2,))
    + cases(worlds=(2, 3, 1, 5), batch=(1,), slice=(3,), width=(3,), hidden=(3,), steps=(2,))
    + cases(worlds=(4,), members=(0, 2, 3), batch=(2,), slice=(2,), width=(3,), hidden=(2,), steps=(2,)),
    drawn=on_any_ranks(batch=(1, 2), slice=(2, 3), width=(2, 3, 4), hidden=(1, 2), steps=(1,)),
    inputs=a_slice_and_the_weights,
    oracle=one_process_with_all_tokens,
    judge=one_message_for_gradients,
    drive=in_training,
    tolerance=1e-9,
    calls=(dist.all_reduce,),
    given=(gather, scatter),
    budgets=(
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: sent(case, [case.width, case.width]),
            optimum=lambda case: sent(case, [2 * case.width]),
            why="a rank with some columns of a matrix has their whole gradient: of these, nothing need travel",
        ),
    ),
    hints=(
        "Print `norm` on two ranks after a step. Should they be equal? Why were they equal before it?",
        "A rank norms its own tokens, so what autograd finds for `norm` comes from these alone: a part of a sum. `up` "
        "and `down` see all tokens, and no other rank has these columns. And where is the bias added?",
        "After backward: `parts = torch.stack([norm.grad, bias.grad])`, `dist.all_reduce(parts, group=group)`, and "
        "`norm.grad, bias.grad = parts`. The loss is divided by the tokens of all ranks already: sum, do not average.",
    ),
    wrong=(
        Wrong(
            "norm gradients left unreduced, as it was",
            diagnosis=r"losses\[1\]: expected [\d.]+, got [\d.]+(\n.*)*norm must be the same on every rank: rank 0 and",
            body=BROKEN + "    # it converges, does it not?\n",
        ),
        Wrong(
            "only the norm is mended",
            diagnosis=r"losses\[1\]: expected [\d.]+, got [\d.]+(\n.*)*bias must be the same on every rank: rank 0 and",
            body=mended("        dist.all_reduce(norm.grad, group=group)\n"),
        ),
        Wrong(
            "averaged, although the loss is divided by the tokens of all ranks",
            diagnosis=r"losses\[1\]: expected -?[\d.]+, got -?[\d.]+",
            edits=(("norm.grad, bias.grad = parts", "norm.grad, bias.grad = parts / dist.get_world_size(group)"),),
        ),
        Wrong(
            "every gradient is summed",
            diagnosis=r"losses\[1\]: expected -?[\d.]+, got -?[\d.]+",
            body=mended(
                "        for weight in weights:\n            dist.all_reduce(weight.grad, group=group)\n",
            ),
        ),
        Wrong(
            "the weights are made the same again after each step",
            diagnosis=r"losses\[1\]: expected -?[\d.]+, got -?[\d.]+",
            body=BROKEN.replace(
                "        total = loss",
                "            for weight in (norm, bias):\n"
                "                dist.all_reduce(weight, group=group)\n"
                "                weight /= dist.get_world_size(group)\n"
                "        total = loss",
            ),
        ),
        Wrong(
            "a step n times as large, for a part that is an n-th",
            diagnosis=r"losses\[1\]: expected -?[\d.]+, got .*(\n.*)*norm must be the same on every rank",
            body=mended("        for weight in (norm, bias):\n            weight.grad *= dist.get_world_size(group)\n"),
        ),
        Wrong(
            "a message for each weight",
            diagnosis=r"right, but a rank makes 6 all-reduces in 2 steps where 4 must do: .* fits into one tensor",
            body=mended(
                "        for weight in (norm, bias):\n            dist.all_reduce(weight.grad, group=group)\n",
            ),
        ),
        Wrong(
            "everything is summed, and half of it thrown away",
            diagnosis=r"right, but rank \d sent [\d,]+ B where [\d,]+ must do.*\n.*nothing need travel",
            body=mended(
                "        flat = torch.cat([norm.grad, bias.grad, up.grad.flatten(), down.grad.flatten()])\n"
                "        dist.all_reduce(flat, group=group)\n"
                "        norm.grad, bias.grad = flat[: 2 * len(norm)].view(2, -1)\n",
            ),
        ),
    ),
)
