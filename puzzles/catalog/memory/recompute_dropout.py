"""memory.recompute_dropout: the second run must drop what the first one dropped, and leave no trace."""

from puzzles.grading.drives.memory import through_blocks
from puzzles.grading.pool import BACKWARD
from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, case, cases, drawn
from reference.memory.recompute import recomputed

from .common import blocks_and_data, forward_and_backward, once_there_once_back, output_and_anchor, output_bytes

SOLUTION = """
    class Recomputed(torch.autograd.Function):
        @staticmethod
        def forward(ctx, anchor, *inputs):
            ctx.random_state = torch.get_rng_state()
            ctx.save_for_backward(*inputs)
            return function(*inputs)

        @staticmethod
        def backward(ctx, gradient):
            inputs = [x.detach().requires_grad_(x.requires_grad) for x in ctx.saved_tensors]
            found = torch.get_rng_state()
            torch.set_rng_state(ctx.random_state)
            with torch.enable_grad():
                output = function(*inputs)
            torch.set_rng_state(found)
            torch.autograd.backward(output, gradient)
            return None, *(x.grad for x in inputs)

    return Recomputed.apply(torch.empty(0, requires_grad=True), *inputs)
    """

PUZZLE = Puzzle(
    name="memory.recompute_dropout",
    title="Recompute a block with dropout",
    statement="""
        As in `memory.recompute_block`, but now the function has dropout inside. Run it twice, and it drops other
        elements the second time: backward gives the gradient of something that was never computed. No error, no NaN;
        the model just learns worse.

        So the second run must draw the random numbers of the first. And after backward, all other code must continue
        with the random numbers that they would have got without any recomputation.

        `torch.get_rng_state()` says where the generator is, `torch.set_rng_state(state)` puts it there.

        Args:
            function: from tensors to one tensor. It draws random numbers, and has parameters inside.
            inputs: what it is given. Each may have a history, be a leaf, or need no gradient.

        Returns: function(*inputs), and with it a backward that gives inputs and parameters their gradients.

        Budget: between forward and backward, nothing but the output is there, no mask either, and at most one number
        beside it. (A state of the random numbers is not counted. It has 5 KB, however large the block.) The function
        runs twice, not more.
        """,
    function=recomputed,
    answer=SOLUTION,
    cases=cases(worlds=(1,), first=(False, True), dropout=(0.5, 0.1), rows=(6,))
    + cases(worlds=(1,), first=(False,), dropout=(0.0, 0.3), rows=(7,)),
    drawn=(drawn(worlds=(1,), first=(False, True), dropout=(0.2, 0.4), rows=range(2, 9)),),
    large=case(1, first=False, dropout=0.5, rows=800, width=64, hidden=64, blocks=25),
    inputs=blocks_and_data,
    oracle=forward_and_backward,
    judge=once_there_once_back,
    drive=through_blocks,
    preload=BACKWARD,
    tolerance=1e-10,
    budgets=(
        Budget(
            Measure.KEPT_BYTES,
            target=output_and_anchor,
            optimum=output_bytes,
            why="the mask can be drawn again: keep the state of the random numbers that it came from",
        ),
    ),
    hints=(
        "Between a block's forward and its backward, all later blocks have drawn random numbers. Where does the second "
        "run start from, and where should it?",
        "Take the state before the first run. Before the second, take the state you find, and put the first one back.",
        "After the second run, put back what you found: code that draws next must not see that anything ran again.",
    ),
    wrong=(
        Wrong(
            "the state is not restored",
            diagnosis=r"right with dropout=0, wrong with dropout=0\.1, [\d., ]*0\.5",
            edits=(("            torch.set_rng_state(ctx.random_state)\n", ""),),
        ),
        Wrong(
            "restored, and left there",
            diagnosis=r"random numbers afterwards\[0\]: expected",
            edits=(("            torch.set_rng_state(found)\n", ""),),
        ),
        Wrong(
            "the state after the first run",
            diagnosis=r"right with dropout=0, wrong with dropout=",
            edits=(
                ("            ctx.random_state = torch.get_rng_state()\n", ""),
                (
                    "            return function(*inputs)\n",
                    "            output = function(*inputs)\n"
                    "            ctx.random_state = torch.get_rng_state()\n"
                    "            return output\n",
                ),
            ),
        ),
        Wrong(
            "one seed for both runs",
            diagnosis=r"right with dropout=0, wrong with dropout=|result\[\d, \d\]: expected",
            edits=(
                (
                    "            ctx.random_state = torch.get_rng_state()\n",
                    "            torch.manual_seed(0)\n            ctx.random_state = torch.get_rng_state()\n",
                ),
            ),
        ),
        Wrong(
            "a seed of its own, drawn from the shared generator",
            diagnosis=r"random numbers afterwards|result\[\d, \d\]: expected",
            edits=(
                (
                    "            ctx.random_state = torch.get_rng_state()\n",
                    "            torch.manual_seed(int(torch.randint(1000, ())))\n"
                    "            ctx.random_state = torch.get_rng_state()\n",
                ),
            ),
        ),
        Wrong(
            "the first run's state is put back in the end, too",
            diagnosis=r"random numbers afterwards\[0\]: expected",
            edits=(
                ("            torch.set_rng_state(found)\n", "            torch.set_rng_state(ctx.random_state)\n"),
            ),
        ),
        Wrong(
            "nothing is forgotten",
            diagnosis=r"right, but when it has returned it still holds [\d,]+ B where 248 must do.*\n.*drawn again",
            body="return function(*inputs)",
        ),
    ),
)
