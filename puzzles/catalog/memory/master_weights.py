"""memory.master_weights: small steps add up in float32, and in 16 bits they are lost."""

import torch

from puzzles.grading.drives.memory import mixed_precision_steps
from puzzles.grading.exact import tiled
from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, case, cases
from reference.memory.plain import update_masters

SHAPES = ((4, 5), (18,), (2, 3, 3), (20,), (1,), (6, 3), (19,), (5, 4), (17,), (3, 6))
STEPS = 16
TINY = 1e-6  # of a gradient without the scale: float16 can hardly hold it


def shapes_of(case):
    """Of the weights."""
    return case.get("shapes", SHAPES)


def largest(case):
    """Elements of the largest weight."""
    return max(torch.Size(shape).numel() for shape in shapes_of(case))


def weights_and_gradients(case, rank):
    """Weights from 1 to 2, where 16-bit floats are furthest apart; gradients that go one way, and so add up."""
    generator = torch.Generator().manual_seed(case.seed)

    def uniform(shape):
        return 1 + tiled(shape, lambda few: torch.rand(tuple(few), generator=generator))

    def gradient(shape):
        if case.get("alike", False):  # a norm of many numbers is exact in float32 where their squares are powers of 2
            return torch.full(shape, 2.0**-20 * case.scale, dtype=case.dtype)
        return (uniform(shape) * TINY * case.scale).to(case.dtype)

    masters = [uniform(shape) for shape in shapes_of(case)]
    gradients = [[gradient(shape) for shape in shapes_of(case)] for step in range(case.get("steps", STEPS))]
    return {
        "working": [master.to(case.dtype) for master in masters],
        "masters": masters,
        "gradients": gradients,
        "scale": case.scale,
        "max_norm": case.max_norm,
        "learning_rate": case.update / TINY,
    }


def as_one_long_vector(case, inputs):
    """All weights in one float64 vector, which is updated as on paper."""
    given = inputs[0]
    vector = torch.cat([master.flatten() for master in given["masters"]]).double()
    norms = []
    for step in given["gradients"]:
        gradient = torch.cat([each.flatten() for each in step]).double() / case.scale
        norms.append(gradient.norm())
        vector -= given["learning_rate"] * gradient * min(1.0, case.max_norm / norms[-1].item())
    pieces = vector.split([master.numel() for master in given["masters"]])
    masters = [piece.view(shape).float() for piece, shape in zip(pieces, shapes_of(case), strict=True)]
    said = {f"masters {i}": master for i, master in enumerate(masters)}
    said |= {f"working {i}": master.to(case.dtype) for i, master in enumerate(masters)}
    return [{"returns": [norm.float() for norm in norms], **said, "gradients": given["gradients"]}]


PUZZLE = Puzzle(
    name="memory.master_weights",
    title="A step with master weights",
    statement="""
        The model computes with 16-bit weights, `working`, and so backward gives 16-bit gradients. Beside them there are
        `masters`, the same weights in float32: they are what learns. Take one step of gradient descent, in place:

        - the gradients belong to the loss times `scale`: divide that out;
        - clip: where the norm of all gradients together (one vector, the square root of the sum of all squares) is
          above `max_norm`, scale them all down so that it is `max_norm`;
        - every master moves by -learning_rate times its gradient, and the working weights follow the masters.

        The steps are tiny. Rounded to 16 bits, most of them would be no step at all, and it takes many to see that.

        Args:
            working: torch.bfloat16 or torch.float16 weights.
            gradients: of the loss times `scale`, in the dtype and the shapes of `working`. Leave them as they are.
            masters: float32, of the same shapes.
            scale: of the loss, 1 or more.
            max_norm: of the gradient of the loss itself, not of the loss times `scale`.
            learning_rate: what a gradient is multiplied by.

        Returns: the norm before clipping, of the gradient of the loss itself; a float32 scalar.

        Budget: memory for float32 copies of a few tensors, not for a copy of every gradient.
        """,
    function=update_masters,
    cases=tuple(
        case
        for dtype, scale, max_norm, update in (
            (torch.bfloat16, 1.0, 1.0, 2e-3),
            (torch.bfloat16, 1024.0, 1.0, 2e-3),
            (torch.bfloat16, 1024.0, 1e-5, 2e-3),
            (torch.float16, 65536.0, 1.0, 3e-4),
            (torch.float16, 65536.0, 1e-5, 3e-4),
        )
        for case in cases(worlds=(1,), dtype=(dtype,), scale=(scale,), max_norm=(max_norm,), update=(update,))
    ),
    large=case(
        1, dtype=torch.bfloat16, scale=1024.0, max_norm=1.0, update=2e-3, shapes=((60_000,),) * 100, steps=2, alike=True
    ),
    inputs=weights_and_gradients,
    oracle=as_one_long_vector,
    drive=mixed_precision_steps,
    budgets=(
        Budget(
            Measure.PEAK_BYTES,
            target=lambda case: 4 * (3 * largest(case) + len(shapes_of(case)) + 20),
            optimum=lambda case: 4 * (largest(case) + len(shapes_of(case))),
            why="turn one gradient into float32, use it, and let it go before you turn to the next",
        ),
    ),
    hints=(
        "Which numbers may have 16 bits, and which may not? What is read by the model, and what has to remember a step "
        "of a thousandth?",
        "`gradient.float() / scale` first, then everything else. In float16, a gradient of 1e-8 is 0: that is why "
        "there is a scale, and why the division comes after the conversion.",
        "The norm of all is the norm of the norms: `torch.stack([... .norm() for ...]).norm()`. In a second loop: "
        "`master -= learning_rate * clipping * (gradient.float() / scale)`, then `weight.copy_(master)`.",
    ),
    wrong=(
        Wrong(
            "the update is rounded to 16 bits, and lost",
            diagnosis=r"masters 0\[0, 0\]: expected",
            edits=(
                (
                    "        master -= learning_rate * clipping * (gradient.float() / scale)\n"
                    "        weight.copy_(master)\n",
                    "        weight -= (learning_rate * clipping * (gradient.float() / scale)).to(weight.dtype)\n"
                    "        master.copy_(weight)\n",
                ),
            ),
        ),
        Wrong(
            "the model never hears of it",
            diagnosis=r"working 0\[\d, \d\]: expected",
            edits=(("        weight.copy_(master)\n", ""),),
        ),
        Wrong(
            "two lives: the working weights are updated beside the masters",
            diagnosis=r"working 0\[\d, \d\]: expected",
            edits=(
                (
                    "        weight.copy_(master)\n",
                    "        weight -= (learning_rate * clipping * (gradient.float() / scale)).to(weight.dtype)\n",
                ),
            ),
        ),
        Wrong(
            "clipped with the scale still in it",
            diagnosis=r"result\[0\]: expected",
            body="""
                norm = torch.stack([gradient.float().norm() for gradient in gradients]).norm()
                clipping = (max_norm / norm).clamp(max=1.0)
                for weight, gradient, master in zip(working, gradients, masters):
                    master -= learning_rate * clipping * gradient.float() / scale
                    weight.copy_(master)
                return norm
                """,
        ),
        Wrong(
            "the norm is right, and clipping still has the scale in it",
            diagnosis=r"masters 0\[0, 0\]: expected",
            edits=(("(max_norm / norm)", "(max_norm / (norm * scale))"),),
        ),
        Wrong(
            "each tensor is clipped for itself",
            diagnosis=r"right with max_norm=1, wrong with max_norm=1e-05",
            edits=(
                (
                    "        master -= learning_rate * clipping * (gradient.float() / scale)\n",
                    "        clipping = (max_norm / (gradient.float() / scale).norm()).clamp(max=1.0)\n"
                    "        master -= learning_rate * clipping * (gradient.float() / scale)\n",
                ),
            ),
        ),
        Wrong(
            "small gradients are scaled up to the norm, too",
            diagnosis=r"right with max_norm=1e-05, wrong with max_norm=1",
            edits=((".clamp(max=1.0)", ""),),
        ),
        Wrong(
            "divided in 16 bits, where it underflows",
            diagnosis=r"right with dtype=bfloat16, wrong with dtype=float16",
            edits=(
                ("(gradient.float() / scale).norm()", "(gradient / scale).float().norm()"),
                ("(gradient.float() / scale)\n", "(gradient / scale).float()\n"),
            ),
        ),
        Wrong(
            "the scale is never divided out",
            diagnosis=r"right with scale=1, wrong with scale=1024, 65536",
            edits=(("    norm = ", "    scale = 1.0\n    norm = "),),
        ),
        Wrong(
            "the gradients are cleared",
            diagnosis=r"gradients\[0\]\[0\]\[0, 0\]: expected",
            edits=(("        weight.copy_(master)\n", "        weight.copy_(master)\n        gradient.zero_()\n"),),
        ),
        Wrong(
            "all gradients in float32 at once",
            diagnosis=r"right, but it keeps alive [\d,]+ B where 360 must do.*\n.*one gradient",
            body="""
                gradients = [gradient.float() / scale for gradient in gradients]
                norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
                clipping = (max_norm / norm).clamp(max=1.0)
                for weight, gradient, master in zip(working, gradients, masters):
                    master -= learning_rate * clipping * gradient
                    weight.copy_(master)
                return norm
                """,
        ),
    ),
)
