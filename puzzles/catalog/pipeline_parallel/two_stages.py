"""pipeline_parallel.two_stages: half of a model on each of two ranks, forward and backward."""

import torch

from puzzles.grading.drives.pipeline_parallel import with_a_weight
from puzzles.grading.pool import BACKWARD
from puzzles.grading.puzzle import POINT_TO_POINT, Budget, Measure, Puzzle, Wrong, cases, drawn
from reference.pipeline_parallel.answers.two_stages import two_stages

DOUBLE = 8  # bytes of an element
SMALL = {"features": (3,), "hidden": (4,), "outputs": (2,)}


def samples_or_targets(case, rank):
    """The first rank has samples and the first weight, the second has targets and the second weight."""
    first = rank == 0
    shape = (case.hidden, case.features) if first else (case.outputs, case.hidden)
    return {
        "x": case.normal(0, case.batch, case.features, name="x") if first else None,
        "target": None if first else case.normal(0, case.batch, case.outputs, name="target"),
        "weight": case.normal(rank, *shape, name="weight"),
    }


def in_one_process(case, inputs):
    """Both layers in one place, and autograd through both."""
    first, second = (each["weight"].requires_grad_() for each in inputs)
    y = torch.tanh(inputs[0]["x"] @ first.T) @ second.T
    loss = ((y - inputs[1]["target"]) ** 2).mean()
    gradients = torch.autograd.grad(loss, (first, second))
    losses = None, loss.item()
    found = zip(losses, gradients, inputs, strict=True)
    return [{"returns": each, "weight.grad": gradient, **given} for each, gradient, given in found]


def activation(case):
    """Bytes of what the first layer makes of a batch; those of its gradient are as many."""
    return case.batch * case.hidden * DOUBLE


PUZZLE = Puzzle(
    name="pipeline_parallel.two_stages",
    title="One model, two ranks",
    statement="""
        A model does not fit on one rank, so rank 0 has its first layer and rank 1 its second:

            h = tanh(x W0ᵀ)             rank 0
            y = h W1ᵀ, and the loss     rank 1

        Autograd knows the layers of its own process only. A tensor that has come by a message has no past, and one that
        has been sent has no future. So you carry over what the chain rule needs: h forward, and what backward?

        Args:
            x: [B, D] on rank 0; None on rank 1.
            target: [B, F] on rank 1; None on rank 0.
            weight: this rank's, a leaf that requires a gradient: [H, D] on rank 0, [F, H] on rank 1.
            group: 2 ranks.

        Returns: on rank 1 the loss, the mean over all elements of (y - target)², as a float. None on rank 0, which has
        no loss. Afterwards `weight.grad` of each rank is the gradient of the loss; arguments stay as they are.

        Budget: one tensor [B, H] of float64 from each rank, in 2 steps.
        """,
    function=two_stages,
    cases=cases(worlds=(2,), batch=(3, 1, 5), **SMALL)
    + cases(worlds=(2,), batch=(4,), features=(2,), hidden=(5,), outputs=(3,))
    + cases(worlds=(4,), members=(1, 3), batch=(2,), **SMALL),
    drawn=(drawn(worlds=(2,), batch=range(1, 8), features=range(1, 6), hidden=range(2, 7), outputs=range(1, 5)),),
    inputs=samples_or_targets,
    oracle=in_one_process,
    drive=with_a_weight,
    preload=BACKWARD,
    tolerance=1e-10,
    calls=POINT_TO_POINT,
    budgets=(
        Budget(
            Measure.BYTES_SENT,
            target=activation,
            why="what the stages must know of each other is one activation, and its gradient",
        ),
        Budget(Measure.STEPS, target=lambda case: 2, why="one message there, and one back"),
    ),
    hints=(
        "Rank 0 can compute h, and rank 1 the loss, once it has h. What must rank 0 know for `weight.grad`, that only "
        "rank 1 can tell?",
        "The gradient of the loss with respect to h. On rank 1, h is a leaf: `h.requires_grad_()` before it is used, "
        "and after `loss.backward()` there is `h.grad`.",
        "Rank 0: `dist.send(h.detach(), ...)`, receive into `torch.empty_like(h)`, then `h.backward(gradient)`, which "
        "continues from h to the weight. Rank 1 knows the shape of h: a row for each of `target`, and "
        "`weight.shape[1]` columns.",
    ),
    wrong=(
        Wrong(
            "forward alone",
            diagnosis=r"rank 0, weight\.grad: expected a float64 tensor of shape \(4, 3\), got None",
            edits=(
                (
                    "        gradient = torch.empty_like(h)\n"
                    "        dist.recv(gradient, group=group, group_src=1)\n"
                    "        h.backward(gradient)\n",
                    "",
                ),
                ("    dist.send(h.grad, group=group, group_dst=0)\n", ""),
            ),
        ),
        Wrong(
            "sends a gradient, and does not continue from it",
            diagnosis=r"rank 0, weight\.grad: expected a float64 tensor of shape \(4, 3\), got None",
            edits=(("        h.backward(gradient)\n", ""),),
        ),
        Wrong(
            "goes back from ones, as if h were the loss",
            diagnosis=r"rank 0, weight\.grad\[0, 0\]: expected",
            edits=(("h.backward(gradient)", "h.sum().backward()"),),
        ),
        Wrong(
            "what came is no leaf that wants a gradient",
            diagnosis=r"rank 1 .*two_stages\.py:\d+",
            edits=(("h.requires_grad_()", "h"),),
        ),
        Wrong(
            "a past that was cut off before it was used",
            diagnosis=r"does not require grad|weight\.grad: expected .* got None",
            edits=(("h = (x @ weight.T).tanh()", "h = (x @ weight.T).tanh().detach()"),),
        ),
        Wrong(
            "a loss on a stage that has none",
            diagnosis=r"rank 0, result: expected None, got",
            edits=(("        return None", "        return h.square().mean().item()"),),
        ),
        Wrong(
            "the gradient of the sum, not of the mean",
            diagnosis=r"rank 0, weight\.grad\[0, 0\]: expected|rank 1, result: expected",
            edits=((".square().mean()", ".square().sum()"),),
        ),
        Wrong(
            "takes a step as well",
            diagnosis=r"rank 0, weight\[0, 0\]: expected",
            edits=(
                (
                    "        h.backward(gradient)\n",
                    "        h.backward(gradient)\n        weight.data -= 0.1 * weight.grad\n",
                ),
            ),
        ),
        Wrong(
            "four columns and two targets",
            diagnosis=r"hidden=5|shape",
            edits=(("weight.new_empty(len(target), weight.shape[1])", "weight.new_empty(len(target), 4)"),),
        ),
        Wrong(
            "both wait for each other's message",
            diagnosis=r"deadlock",
            edits=(
                ("        dist.send(h.detach(), group=group, group_dst=1)\n", ""),
                (
                    "        h.backward(gradient)\n",
                    "        dist.send(h.detach(), group=group, group_dst=1)\n        h.backward(gradient)\n",
                ),
            ),
        ),
        Wrong(
            "global ranks in a group",
            diagnosis=r"a rank of the group is not a global rank|group",
            edits=(
                ("group=group, group_dst=1", "group=group, dst=1"),
                ("group=group, group_src=1", "group=group, src=1"),
                ("group=group, group_src=0", "group=group, src=0"),
                ("group=group, group_dst=0", "group=group, dst=0"),
            ),
        ),
        Wrong(
            "sends the samples too, and computes the first layer twice",
            diagnosis=r"right, but rank 0 sent [\d,]+ B where [\d,]+ must do.*\n.*one activation, and its gradient",
            body="""
                rank = dist.get_rank(group)
                if rank == 0:
                    sizes = torch.tensor([*x.shape, *weight.shape])
                    for tensor in (sizes, x, weight.detach()):
                        dist.send(tensor, group=group, group_dst=1)
                    weight.grad = torch.empty_like(weight)
                    dist.recv(weight.grad, group=group, group_src=1)
                    return None
                sizes = torch.empty(4, dtype=torch.int64)
                dist.recv(sizes, group=group, group_src=0)
                batch, width, hidden, _ = sizes.tolist()
                x, first = weight.new_empty(batch, width), weight.new_empty(hidden, width)
                for tensor in (x, first):
                    dist.recv(tensor, group=group, group_src=0)
                loss = ((x @ first.requires_grad_().T).tanh() @ weight.T - target).square().mean()
                loss.backward()
                dist.send(first.grad, group=group, group_dst=0)
                return loss.item()
                """,
        ),
        Wrong(
            "sample by sample",
            diagnosis=r"right, but it takes \d+ steps where 2 must do",
            body="""
                if dist.get_rank(group) == 0:
                    h = (x @ weight.T).tanh()
                    gradient = torch.empty_like(h)
                    for sample in h.detach():
                        dist.send(sample, group=group, group_dst=1)
                    for sample in gradient:
                        dist.recv(sample, group=group, group_src=1)
                    h.backward(gradient)
                    return None
                h = weight.new_empty(len(target), weight.shape[1])
                for sample in h:
                    dist.recv(sample, group=group, group_src=0)
                loss = (h.requires_grad_() @ weight.T - target).square().mean()
                loss.backward()
                for sample in h.grad:
                    dist.send(sample, group=group, group_dst=0)
                return loss.item()
                """,
        ),
    ),
)
