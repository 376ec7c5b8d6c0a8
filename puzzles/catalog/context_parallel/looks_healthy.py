"""context_parallel.looks_healthy: the loss falls, and the gradients are wrong."""

import textwrap

import torch
import torch.distributed as dist

from puzzles.grading.drives.sequence_parallel import in_training
from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, cases, drawn
from reference.collectives import cost
from reference.collectives.all_reduce import ring
from reference.collectives.exchange import exchange
from reference.context_parallel.answers.train import train
from reference.context_parallel.plain import attend, attend_backward, merge

from .common import DOUBLE
from .in_one_process import by_definition

RATE, WEIGHTS = 0.05, ("query", "key", "value")
SMALL = 0.3  # weights as at the start of training: with large ones, wrong gradients let the loss rise, and all see it


def a_slice_and_the_weights(case, rank):
    """This rank's tokens, what they should become, and the weights, which all ranks have alike."""
    shape = case.batch, case.local, case.width
    return {
        "x": case.normal(rank, *shape),
        "target": case.normal(rank, *shape, name="target"),
        **{name: SMALL * case.normal(0, case.width, case.width, name=name) for name in WEIGHTS},
        "steps": case.steps,
        "rate": RATE,
    }


def one_process_with_all_tokens(case, inputs):
    """The same training, of the whole sequence."""
    x, target = (torch.cat([each[name] for each in inputs], 1) for name in ("x", "target"))
    weights, losses = [inputs[0][name].clone() for name in WEIGHTS], []
    for _ in range(case.steps):
        leaves = [weight.requires_grad_() for weight in weights]
        out = by_definition(*((x @ weight.T)[:, None] for weight in leaves), torch.arange(x.shape[1]))
        loss = (x + out[:, 0] - target).square().sum(-1).mean()
        losses.append(loss.item())
        found = torch.autograd.grad(loss, leaves)
        weights = [weight.detach() - RATE * gradient for weight, gradient in zip(weights, found, strict=True)]
    return [{"losses": losses, **dict(zip(WEIGHTS, weights, strict=True))} for _ in inputs]


def sent(case):
    """Bytes of blocks, n - 1 times there and 2 n - 1 times back, and of all gradients with the loss."""
    block = 2 * case.batch * case.local * case.width * DOUBLE
    travels = block * (3 * case.n - 2) if case.n > 1 else 0
    return case.steps * (travels + cost.of(ring).most(case.n, 3 * case.width**2 + 1, DOUBLE))


RING = """
def pass_on(x):
    if n == 1:
        return x
    received = torch.empty_like(x)
    exchange(x, (rank + 1) % n, received, (rank - 1) % n, group)
    return received

def seen(step):
    keys = (rank - step) % n * x.shape[1] + torch.arange(x.shape[1])
    return (rank * x.shape[1] + torch.arange(x.shape[1]))[:, None] >= keys

class Ring(torch.autograd.Function):
    @staticmethod
    def forward(ctx, query, key, value):
        block = torch.stack([key, value])
        out, lse = torch.zeros_like(query), query.new_full(query.shape[:3], -torch.inf)
        for step in range(n):
            out, lse = merge(out, lse, *attend(query, *block, seen(step)))
            if step < n - 1:
                block = pass_on(block)
        ctx.save_for_backward(query, key, value, out, lse)
        return out

    @staticmethod
    def backward(ctx, gradient):
        query, key, value, out, lse = ctx.saved_tensors
        of_query = torch.zeros_like(query)
        of_block = torch.zeros_like(torch.stack([key, value]))
        for step in range(n):
            more, *of_these = attend_backward(gradient, query, key, value, out, lse, seen(step))
            of_query, of_block = of_query + more, of_block + torch.stack(of_these)
            of_block = pass_on(of_block)
        return of_query, *of_block
"""

BROKEN = (
    """
    rank, n = dist.get_rank(group), dist.get_world_size(group)
"""
    + textwrap.indent(RING, "    ")
    + """
    weights, losses = [query, key, value], []
    for weight in weights:
        weight.requires_grad_()
    for _ in range(steps):
        out = Ring.apply(*((x @ weight.T)[:, None] for weight in weights))
        loss = (x + out[:, 0] - target).square().sum() / (n * x.shape[0] * x.shape[1])
        loss.backward()
        parts = torch.cat([*(weight.grad.flatten() for weight in weights), loss.detach().view(1)])
        dist.all_reduce(parts, group=group)
        losses.append(parts[-1].item())
        with torch.no_grad():
            for weight, gradient in zip(weights, parts[:-1].chunk(3)):
                weight -= rate * gradient.view_as(weight)
                weight.grad = None
    return losses
    """
)
SECOND = r"losses\[1\]: expected -?[\d.]+, got -?[\d.e+]+"

PUZZLE = Puzzle(
    name="context_parallel.looks_healthy",
    title="Training looks healthy",
    statement="""
        x + attention(x), in training with a causal ring. This is what is known of it:

            a. on one rank, it gives the model of one process
            b. on n ranks, the outputs of attention are those of one process, in the first step
            c. on n ranks, the loss falls
            d. on n ranks, the weights are the same on every rank after each step
            e. rank 0 finds the right gradient for its queries; other ranks do not

        Three of these say nothing of what is wrong. One says in which half of the program to look, and one, with
        the mask in mind, what rank 0 does not need there that the others do. Find the mistake, and mend it. After
        each step the weights must be those of one process.

        Given are `attend(query, key, value, seen)`, which returns an output and its logsumexps, and
        `merge(out, lse, other, other_lse)`; `attend_backward(gradient, query, key, value, out, lse, seen)`, one
        block's part of the gradients of query, key and value, by the output and the logsumexps of all blocks together;
        and `exchange(outgoing, target, incoming, source, group)`. They are right.

        Args:
            x: [B, S/n, D], this rank's slice of the sequence.
            target: like `x`, what should come out.
            query, key, value: [D, D], the same on every rank. They are updated in place.
            steps: how many.
            rate: of learning.
            group: n ranks. Any n.

        Returns: the loss before each step, a float each: the squared error, summed over features, the mean over all
        tokens.

        Budget: in each step keys and values sent n-1 times in forward and n-1 times in backward, their gradients n
        times, and one all-reduce.
        """,
    function=train,
    body=BROKEN,
    cases=cases(worlds=(4,), batch=(2,), local=(2,), width=(3,), steps=(2,))
    + cases(worlds=(2, 3, 1, 5), batch=(1,), local=(3,), width=(2,), steps=(2,))
    + cases(worlds=(4,), members=(0, 2, 3), batch=(1,), local=(2,), width=(2,), steps=(2,)),
    drawn=tuple(  # one step: n ranks make about 6 n² calls in it
        drawn(worlds=worlds, batch=(1, 2), local=(2, 3), width=(2, 3), steps=(1,)) for worlds in ((2, 3, 4), (6, 7))
    ),
    inputs=a_slice_and_the_weights,
    oracle=one_process_with_all_tokens,
    drive=in_training,
    tolerance=1e-9,
    calls=(dist.all_reduce,),
    given=(attend, attend_backward, merge, exchange),
    budgets=(
        Budget(
            Measure.BYTES_SENT,
            target=sent,
            why="keys and values need not return to their rank, only their gradients must: n - 1 times, and n times",
        ),
    ),
    hints=(
        "b says that forward is right. So is the loss of the first step; look at the second one in the verdict. Which "
        "blocks does rank 0 need, with a causal mask? And the last rank?",
        "In the step `step` of forward, a rank looks at the block of rank (rank - step) % n. Which keys and values "
        "does a step of backward read, and whose gradients are they added to?",
        "Let `block = torch.stack([key, value])` travel in backward as it does in forward: give `*block` to "
        "`attend_backward` in the place of `key, value`, and after it, if step < n - 1, `block = pass_on(block)`.",
    ),
    wrong=(
        Wrong(
            "backward reads the block that it began with, as it did",
            diagnosis=SECOND,
            body=BROKEN + "    # and the loss falls\n",
        ),
        Wrong(
            "backward reads the block that forward ended with",
            diagnosis=SECOND,
            edits=(
                (
                    "        ctx.save_for_backward(query, key, value, out, lse)",
                    "        ctx.save_for_backward(query, *block, out, lse)",
                ),
            ),
        ),
        Wrong(
            "the block travels, and its gradient stays",
            diagnosis=SECOND,
            edits=(
                ("            of_block = _pass_on(of_block, group)  # n times: then each is where it belongs\n", ""),
            ),
        ),
        Wrong(
            "gradients stop one rank before their own",
            diagnosis=SECOND,
            edits=(
                (
                    "            of_block = _pass_on(of_block, group)  # n times: then each is where it belongs\n",
                    "            of_block = _pass_on(of_block, group) if step < n - 1 else of_block\n",
                ),
            ),
        ),
        Wrong(
            "the mask of backward is that of one's own block",
            diagnosis=SECOND,
            edits=(
                (
                    "            seen = _seen(rank, (rank - step) % n, query)\n",
                    "            seen = _seen(rank, rank, query)\n",
                ),
            ),
        ),
        Wrong(
            "backward goes around the other way than its mask",
            diagnosis=SECOND,
            edits=(
                (
                    "            seen = _seen(rank, (rank - step) % n, query)\n",
                    "            seen = _seen(rank, (rank + step) % n, query)\n",
                ),
            ),
        ),
        Wrong(
            "only the gradient of the queries is mended",
            diagnosis=SECOND,
            edits=(
                (
                    "            of_query, of_block = of_query + more,",
                    "            of_these = attend_backward(gradient, query, key, value, out, lse, seen)[1:]\n"
                    "            of_query, of_block = of_query + more,",
                ),
            ),
        ),
        Wrong(
            "a smaller rate, for a gradient that is not right",
            diagnosis=SECOND,
            body=BROKEN.replace("rate * gradient", "rate / n * gradient"),
        ),
        Wrong(
            "keys and values go all the way around",
            diagnosis=r"right, but rank \d sent [\d,]+ B where [\d,]+ must do.*\n.*need not return",
            edits=(
                (
                    "            of_block = _pass_on(of_block, group)  # n times: then each is where it belongs\n"
                    "            if step < n - 1:\n                block = _pass_on(block, group)\n",
                    "            of_block, block = _pass_on(of_block, group), _pass_on(block, group)\n",
                ),
            ),
        ),
    ),
)
