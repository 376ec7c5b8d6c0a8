"""memory.recompute_block: keep the input of a block, and make the rest again when backward asks for it."""

from puzzles.grading.drives.memory import through_blocks
from puzzles.grading.pool import BACKWARD
from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, case, cases, drawn
from reference.memory.recompute import recomputed

from .common import blocks_and_data, forward_and_backward, once_there_once_back, output_and_anchor, output_bytes

SOLUTION = """
    class Recomputed(torch.autograd.Function):
        @staticmethod
        def forward(ctx, anchor, *inputs):
            ctx.save_for_backward(*inputs)
            return function(*inputs)

        @staticmethod
        def backward(ctx, gradient):
            inputs = [x.detach().requires_grad_(x.requires_grad) for x in ctx.saved_tensors]
            with torch.enable_grad():
                output = function(*inputs)
            torch.autograd.backward(output, gradient)
            return None, *(x.grad for x in inputs)

    return Recomputed.apply(torch.empty(0, requires_grad=True), *inputs)
    """

PUZZLE = Puzzle(
    name="memory.recompute_block",
    title="Recompute a block",
    statement="""
        `function(*inputs)` would keep everything that its backward needs, from now until then. You keep the inputs
        alone. When backward comes, call the function again, with autograd watching this time, and go back through that.

        Write a `torch.autograd.Function`, inside this function or outside, and return what its `apply` returns. Its
        `forward(ctx, ...)` runs without a graph being made; `ctx.save_for_backward(...)` keeps tensors. Its
        `backward(ctx, gradient)` returns one gradient for each argument of `forward` after ctx, None for those that
        have none. Inside it, `with torch.enable_grad():` records again.

        The function is a block of a model. It has parameters inside, which need their gradients, and of which `apply`
        knows nothing. The first block gets its inputs from the data: they need no gradient, and if no argument of
        `apply` needs one, autograd never calls your `backward`.

        Args:
            function: from tensors to one tensor. It draws no random numbers.
            inputs: what it is given. Each may have a history, be a leaf, or need no gradient.

        Returns: function(*inputs), and with it a backward that gives inputs and parameters their gradients.

        Budget: between forward and backward, nothing but the output is there, and at most one number beside it. The
        function runs twice, not more.
        """,
    function=recomputed,
    answer=SOLUTION,
    cases=cases(worlds=(1,), first=(False, True), dropout=(0.0,), rows=(6, 1)),
    drawn=(drawn(worlds=(1,), first=(False, True), dropout=(0.0,), rows=range(2, 9)),),
    large=case(1, first=False, dropout=0.0, rows=800, width=64, hidden=64, blocks=25),
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
            why="a graph holds on to all that was computed: let forward make none, and keep the inputs alone",
        ),
    ),
    hints=(
        "What of `function(*inputs)` can be made again, and from what? What must be kept for that?",
        "In `backward`, begin with new leaves, `x.detach().requires_grad_(x.requires_grad)`: the graph that you make "
        "ends there, and their `.grad` is what you return.",
        "`torch.autograd.backward(output, gradient)` goes back through the new graph, and adds to the `.grad` of all "
        "its leaves: your inputs, and the function's parameters.",
        "For the first block: hand one argument more to `apply`, a tensor of one number that requires a gradient, and "
        "return None for it.",
    ),
    wrong=(
        Wrong(
            "nothing is forgotten",
            diagnosis=r"right, but when it has returned it still holds [\d,]+ B where 248 must do.*\n.*a graph holds",
            body="return function(*inputs)",
        ),
        Wrong(
            "the graph is kept for backward",
            diagnosis=r"right, but when it has returned it still holds [\d,]+ B where 248 must do",
            body="""
                class Recomputed(torch.autograd.Function):
                    @staticmethod
                    def forward(ctx, anchor, *inputs):
                        ctx.inputs = [x.detach().requires_grad_(x.requires_grad) for x in inputs]
                        with torch.enable_grad():
                            ctx.output = function(*ctx.inputs)
                        return ctx.output.detach()

                    @staticmethod
                    def backward(ctx, gradient):
                        torch.autograd.backward(ctx.output, gradient)
                        return None, *(x.grad for x in ctx.inputs)

                return Recomputed.apply(torch.empty(0, requires_grad=True), *inputs)
                """,
        ),
        Wrong(
            "no gradients for the parameters",
            diagnosis=r"block 0, first\.weight\.grad: expected a float64 tensor.*got None",
            edits=(
                (
                    "            torch.autograd.backward(output, gradient)\n"
                    "            return None, *(x.grad for x in inputs)\n",
                    "            return None, *torch.autograd.grad(output, inputs, gradient)\n",
                ),
            ),
        ),
        Wrong(
            "detached, and no leaves that need a gradient",
            diagnosis=r"x\.grad: expected a float64 tensor.*got None",
            edits=((".requires_grad_(x.requires_grad)", ""),),
        ),
        Wrong(
            "the inputs as they were saved, which are no leaves",
            diagnosis=r"Trying to backward through the graph a second time",
            edits=(("[x.detach().requires_grad_(x.requires_grad) for x in ctx.saved_tensors]", "ctx.saved_tensors"),),
        ),
        Wrong(
            "no graph is recorded",
            diagnosis=r"does not require grad",
            edits=(
                (
                    "            with torch.enable_grad():\n                output = function(*inputs)\n",
                    "            output = function(*inputs)\n",
                ),
            ),
        ),
        Wrong(
            "the first block learns nothing",
            diagnosis=r"right with first=False, wrong with first=True",
            edits=(("torch.empty(0, requires_grad=True)", "torch.empty(0)"),),
        ),
        Wrong(
            "run once more than needed",
            diagnosis=r"right, but a function runs 3 times where 2 must do",
            edits=(
                (
                    "            return None, *(x.grad",
                    "            assert torch.equal(function(*inputs), output)\n            return None, *(x.grad",
                ),
            ),
        ),
        Wrong(
            "without a gradient",
            diagnosis=r"grad: expected a float64 tensor.*got None",
            body="""
                with torch.no_grad():
                    return function(*inputs)
                """,
        ),
        Wrong(
            "torch's own",
            diagnosis=r"right, but\nline \d+ imports torch\.utils\.checkpoint",
            body="""
                from torch.utils.checkpoint import checkpoint

                return checkpoint(function, *inputs, use_reentrant=False)
                """,
        ),
    ),
)
