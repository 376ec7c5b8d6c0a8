"""tensor_parallel.mlp: two layers, one all-reduce there and one back."""

import torch.distributed as dist
import torch.nn.functional as F

from puzzles.grading.drives import there_and_back
from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, cases, on_any_ranks
from reference.tensor_parallel.plain import enter, leave, mlp

from .common import all_reduces, gradients, part, whole

WIDTH, BATCH = 3, 2


def a_whole_mlp(case):
    """Input and weights, as one process has them."""
    hidden = case.n * case.features
    shapes = {"x": (BATCH, case.sequence, WIDTH), "gate": (hidden, WIDTH), "up": (hidden, WIDTH)}
    weights = {name: whole(case, name, *shape) for name, shape in (*shapes.items(), ("down", (WIDTH, hidden)))}
    return weights | {"down": weights["down"] * (case.down == "normal")}


def features_of_it(case, rank):
    """The whole input and the gradient of the whole output, and this rank's features of each weight."""
    everything = a_whole_mlp(case)
    return {
        "x": everything["x"],
        "gate": part(everything["gate"], case, rank, 0),
        "up": part(everything["up"], case, rank, 0),
        "down": part(everything["down"], case, rank, 1),
        "upstream": case.normal(0, BATCH, case.sequence, WIDTH, name="upstream"),
    }


def one_process(case, inputs):
    """All features in one process, by autograd; then every rank's part of the gradients."""
    everything = {name: each.requires_grad_() for name, each in a_whole_mlp(case).items()}
    x, gate, up, down = everything.values()
    y = x + (F.silu(x @ gate.T) * (x @ up.T)) @ down.T
    found = gradients(y, inputs[0]["upstream"], everything)
    dims = {"gate.grad": 0, "up.grad": 0, "down.grad": 1}
    return [
        {**found, **{name: part(found[name], case, rank, dim) for name, dim in dims.items()}} for rank in range(case.n)
    ]


PUZZLE = Puzzle(
    name="tensor_parallel.mlp",
    title="An MLP with one all-reduce",
    statement="""
        The feed-forward half of a transformer block, with its residual connection: three matrices and a product.

            y = x + (silu(x Gᵀ) · (x Uᵀ)) Bᵀ

        Share it among n ranks: each has some rows of G and U, and the columns of B that belong to them. Between the
        matrices no rank needs the others' features. Lucky, for silu(a + b) is not silu(a) + silu(b): parts of a sum
        would have to be added up first.

        Given are the operators of the last puzzle: `enter(x, group)` is f, which gives x, and sums its gradients on the
        way back; `leave(x, group)` is g, which sums, and hands gradients through on the way back. Autograd does the
        rest.

        Args:
            x: [B, S, D], the same on every rank.
            gate: [F / n, D], this rank's rows of G.
            up: [F / n, D], this rank's rows of U.
            down: [D, F / n], this rank's columns of B.
            group: n ranks. Any n.

        Returns: y, [B, S, D], the same on every rank, with gradients for x (all of it, the same on every rank) and for
        this rank's weights.

        Budget: one all-reduce of a tensor like x on the way there, and one on the way back.
        """,
    function=mlp,
    cases=cases(worlds=(2,), sequence=(2,), features=(2,), down=("zeros", "normal"))
    + cases(worlds=(3, 4, 1, 5, 8), sequence=(2,), features=(2,), down=("normal",))
    + cases(worlds=(3,), sequence=(1, 3), features=(1, 3), down=("normal",))
    + cases(worlds=(4,), members=(0, 2, 3), sequence=(2,), features=(1,), down=("normal",)),
    drawn=on_any_ranks(sequence=range(1, 4), features=range(1, 4), down=("normal",)),
    inputs=features_of_it,
    oracle=one_process,
    drive=there_and_back,
    tolerance=1e-10,
    calls=(dist.all_reduce,),
    given=(enter, leave),
    budgets=(
        Budget(
            Measure.CALLS,
            target=lambda case: 2,
            why="x enters the region once, for both matrices, and only one sum leaves it",
        ),
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: all_reduces(case, *[(BATCH, case.sequence, WIDTH)] * 2),
            why="x enters the region once, for both matrices, and only one sum leaves it",
        ),
    ),
    hints=(
        "Where does the work begin to differ from rank to rank, and where is it the same again? f stands at the first "
        "place, g at the second. And the residual connection: is that work which ranks share?",
        "The residual connection is outside: x is added on every rank to a y that is whole. Inside, both matrices read "
        "the same f(x).",
        "`inside = enter(x, group)`; the hidden features from `inside @ gate.T` and `inside @ up.T`; "
        "`x + leave(hidden @ down.T, group)`.",
    ),
    wrong=(
        Wrong(
            "x is added inside, on every rank: the output depends on the number of ranks",
            diagnosis=r"result\[0, 0, 0\]: expected .*\n.*off by exactly the world size, too much",
            edits=(("x + leave(hidden @ down.T, group)", "leave(x + hidden @ down.T, group)"),),
        ),
        Wrong(
            "the residual connection goes through f",
            diagnosis=r"rank 0, x\.grad\[0, 0, 0\]: expected .*\n.*off by exactly the world size, too much",
            edits=(("x + leave", "inside + leave"),),
        ),
        Wrong(
            "x does not go through f",
            diagnosis=r"rank 0, x\.grad\[0, 0, 0\]: expected .*\n.*\n.*x\.grad must be the same on every rank",
            edits=(("    inside = enter(x, group)\n", "    inside = x\n"),),
        ),
        Wrong(
            "the parts of y are not added up",
            diagnosis=r"the result must be the same on every rank: rank 0 and rank 1 differ",
            edits=(("leave(hidden @ down.T, group)", "hidden @ down.T"),),
        ),
        Wrong(
            "one of two matrices reads x itself",
            diagnosis=r"rank 0, x\.grad\[0, 0, 0\]: expected .*\n.*\n.*x\.grad must be the same on every rank",
            edits=(("(inside @ up.T)", "(x @ up.T)"),),
        ),
        Wrong(
            "g in place of f, and f in place of g",
            diagnosis=r"rank 0, down\.grad\[0, 0\]: expected",
            edits=(("inside = enter(", "inside = leave("), ("x + leave(", "x + enter(")),
        ),
        Wrong(
            "hidden features are summed, which belong to no other rank",
            diagnosis=r"rank 0, down\.grad\[0, 0\]: expected",
            edits=(("hidden = F.silu(inside @ gate.T)", "hidden = F.silu(leave(inside @ gate.T, group))"),),
        ),
        Wrong(
            "x enters once for each matrix",
            diagnosis=r"right, but a rank makes 3 calls where 2 must do.*\n.*x enters the region once",
            edits=(("(inside @ up.T)", "(enter(x, group) @ up.T)"),),
        ),
    ),
)
