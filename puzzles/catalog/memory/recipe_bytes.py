"""memory.recipe_bytes: what a training state weighs, for each way to train."""

import torch

from puzzles.grading.puzzle import Budget, Case, Measure, Puzzle, Scale, Wrong, cases, drawn
from reference.memory.answers.estimates import recipe_bytes

FP32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16
LARGE, SMALL = 7_000_000_000, 20_000_001
RECIPES = (  # trained, frozen, compute, gradients, master, moments
    (LARGE, 0, BF16, BF16, FP32, 2),  # mixed precision with Adam, as in the ZeRO paper
    (LARGE, 0, BF16, FP32, FP32, 2),
    (LARGE, 0, FP32, FP32, FP32, 2),
    (LARGE, 0, BF16, BF16, BF16, 2),
    (LARGE, 0, BF16, FP32, FP32, 1),
    (LARGE, 0, FP32, FP32, FP32, 0),
    (LARGE, 0, BF16, BF16, FP32, 0),
    (SMALL, 0, BF16, BF16, FP32, 2),
    (SMALL, LARGE, BF16, BF16, FP32, 2),
    (SMALL, LARGE, BF16, BF16, BF16, 2),
    (SMALL, LARGE, FP32, FP32, FP32, 2),
    (LARGE, 0, BF16, BF16, torch.float64, 2),
    (LARGE, 0, FP16, FP16, BF16, 2),  # as wide as the model's, and yet a copy
)
NAMES = ("trained", "frozen", "compute", "gradients", "master", "moments")


def every_tensor_weighed(case, inputs):
    """Make all tensors of the state, without memory for them, and add up what they weigh."""

    def made(count, dtype):
        return torch.empty(count, dtype=dtype, device="meta")

    state = [made(case.trained, case.compute), made(case.frozen, case.compute), made(case.trained, case.gradients)]
    if case.compute is not case.master:
        state.append(made(case.trained, case.master))
    state += [made(case.trained, case.master) for _ in range(case.moments)]
    return [sum(tensor.nbytes for tensor in state)]


PUZZLE = Puzzle(
    name="memory.recipe_bytes",
    title="Bytes of a recipe",
    statement="""
        How many bytes does a training state have? It is everything that is there from one step to the next:

        - parameters, in the dtype in which the model computes;
        - a gradient for each that is trained;
        - a master copy of each that is trained, in the optimizer's dtype; but where that is the dtype in which the
          model computes, the optimizer updates the model's own parameters, and there is no copy;
        - the moments: as many numbers for each that is trained as the optimizer remembers, in its dtype.

        A frozen parameter is only computed with: that is why fine-tuning a small adapter takes so little.

        Args:
            trained: how many parameters are trained.
            frozen: how many more are frozen.
            compute: dtype in which the model computes.
            gradients: dtype of gradients.
            master: dtype of the optimizer.
            moments: numbers that it remembers for each parameter: 2 for Adam, 1 for momentum, 0 for plain SGD.

        Returns: bytes, an int. `dtype.itemsize` has those of one number.

        Budget: a formula.
        """,
    function=recipe_bytes,
    cases=tuple(Case(1, parameters=tuple(zip(NAMES, recipe, strict=True))) for recipe in RECIPES),
    drawn=(
        drawn(
            worlds=(1,),
            trained=range(1, 10**6, 977),
            frozen=range(0, 10**6, 991),
            compute=(FP32, BF16, FP16),
            gradients=(FP32, BF16, FP16),
            master=(FP32, BF16, torch.float64),
            moments=(0, 1, 2),
        ),
    ),
    scale=Scale(
        cases(
            worlds=(1,),
            trained=(10**15,),
            frozen=(10**15,),
            compute=(BF16,),
            gradients=(FP32,),
            master=(FP32,),
            moments=(2,),
        ),
        "the number of parameters",
    ),
    oracle=every_tensor_weighed,
    budgets=(
        Budget(
            Measure.LINES,
            target=lambda case: 16,
            optimum=lambda case: 1,
            why="all parameters weigh the same: multiply",
        ),
    ),
    hints=(
        "Take one trained parameter in mixed precision with Adam: 2 bytes to compute with, 2 for its gradient, and "
        "three numbers of 4 bytes. Which three?",
        "Bytes of one trained parameter: compute.itemsize + gradients.itemsize + copies · master.itemsize, where "
        "copies is moments, or moments + 1.",
        "A frozen parameter weighs compute.itemsize.",
    ),
    wrong=(
        Wrong(
            "16 bytes for each, whatever the recipe",
            diagnosis=r"recipe_bytes\(trained=7000000000, .*: expected 126000000000, got 112000000000",
            body="return 16 * trained + compute.itemsize * frozen",
        ),
        Wrong(
            "a master copy of what is its own master",
            diagnosis=r"compute=float32, .*: expected 112000000000, got 140000000000",
            edits=(("(master != compute)", "1"),),
        ),
        Wrong(
            "the master copy is forgotten",
            diagnosis=r"expected 112000000000, got 84000000000",
            edits=((" + (master != compute)", ""),),
        ),
        Wrong(
            "a master copy of 4 bytes, whatever its dtype",
            diagnosis=r"master=float64, .*expected 196000000000, got 168000000000",
            body="""
                copy = 4 * (master != compute)
                each = compute.itemsize + gradients.itemsize + copy + moments * master.itemsize
                return trained * each + frozen * compute.itemsize
                """,
        ),
        Wrong(
            "no master copy where the dtypes are equally wide",
            diagnosis=r"compute=float16, .*expected 70000000000, got 56000000000",
            edits=(("master != compute", "master.itemsize != compute.itemsize"),),
        ),
        Wrong(
            "frozen parameters weigh 2 bytes",
            diagnosis=r"frozen=7000000000, compute=float32, .*: expected",
            edits=(("frozen * compute.itemsize", "frozen * 2"),),
        ),
        Wrong(
            "moments in the dtype of the model",
            diagnosis=r"expected 112000000000, got 84000000000",
            body="""
                copy = master.itemsize if master != compute else 0
                each = compute.itemsize + gradients.itemsize + copy + moments * compute.itemsize
                return trained * each + frozen * compute.itemsize
                """,
        ),
        Wrong(
            "always Adam",
            diagnosis=r"right with moments=2, wrong with moments=0, 1",
            edits=(("copies = moments", "copies = 2"),),
        ),
        Wrong(
            "frozen parameters are trained",
            diagnosis=r"right with frozen=0, wrong with frozen=(\d+, )?7000000000",
            edits=(("    copies = ", "    trained, frozen = trained + frozen, 0\n    copies = "),),
        ),
        Wrong(
            "frozen parameters weigh nothing",
            diagnosis=r"right with frozen=0, wrong with frozen=(\d+, )?7000000000",
            edits=((" + frozen * compute.itemsize", ""),),
        ),
        Wrong(
            "parameter after parameter",
            diagnosis=r"right, but it runs [\d,]+ lines where 16 must do.*\n.*: multiply",
            body="""
                copies = moments + (master != compute)
                each = compute.itemsize + gradients.itemsize + copies * master.itemsize
                total = frozen * compute.itemsize
                for _ in range(1000):
                    total += trained // 1000 * each
                return total + trained % 1000 * each
                """,
        ),
    ),
)
