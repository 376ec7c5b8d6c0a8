"""zero_bubble.weight_stashing: backward sees the weights that its forward has seen."""

from puzzles.grading.drives.zero_bubble import through_a_stage
from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, case, cases, drawn
from reference.zero_bubble.answers.versions import weight_stashing

from .common import Stage, a_stage_in_flight, at_most_alive, weight_bytes


def each_with_its_version(case, inputs):
    """Micro-batch k sees version k - `ahead`: so many updates come before its forward."""
    given = inputs[0]
    stage, versions = Stage(given), [given["weight"]]
    for kind, k in given["line"]:
        seen = versions[max(k - case.ahead, 0)]
        if kind == "F":
            stage.forward(k, seen)
        else:
            versions.append(versions[-1] - given["rate"] * stage.backward(k, seen))
    return stage.ending(versions[-1])


def one_version_for_each_in_flight(case, inputs, outputs, trace):
    """Every micro-batch in flight may have seen another one."""
    return at_most_alive(case.ahead + 1, outputs)


PUZZLE = Puzzle(
    name="zero_bubble.weight_stashing",
    title="Weight stashing (PipeDream)",
    statement="""
        A pipeline that never flushes has no bubble: a stage updates its weights after each backward, and continues with
        1F1B forever. But between the forward of a micro-batch and its backward come the updates of others. Backward
        through other weights than forward's is no gradient of anything.

        So keep, for every micro-batch that is in flight, the weights that its forward has seen, and use them for its
        backward. A forward always sees the newest weights, and every update changes the newest.

        Args:
            line: what this stage does, in order: ("F", k) or ("B", k), k a micro-batch. Forwards come in order, so do
                backwards.
            weight: of the stage, before the first update. Leave it as it is.
            forward: `forward(k, weight)` sends micro-batch k through the stage with this weight.
            backward: `backward(k, weight)` sends its gradient back through it, and returns the weight's gradient.
            rate: the learning rate: an update takes off rate times the gradient.

        Returns: the weight after the last update.

        Budget: as many versions as micro-batches are in flight, and three tensors more while an update is computed. A
        version is gone when its last micro-batch is.
        """,
    function=weight_stashing,
    cases=cases(worlds=(1,), ahead=(3,), count=(9,))
    + cases(worlds=(1,), ahead=(1, 0), count=(5,))
    + cases(worlds=(1,), ahead=(7,), count=(20,)),
    drawn=(drawn(worlds=(1,), ahead=range(0, 9), count=range(9, 24)),),
    large=case(1, ahead=1, count=14, features=512, width=512),
    inputs=a_stage_in_flight,
    oracle=each_with_its_version,
    judge=one_version_for_each_in_flight,
    drive=through_a_stage,
    tolerance=1e-10,
    budgets=(
        Budget(
            Measure.PEAK_BYTES,
            target=lambda case: (case.ahead + 4) * weight_bytes(case),
            optimum=lambda case: (case.ahead + 2) * weight_bytes(case),
            why="a version that no micro-batch in flight has seen is of no use: take it out when its backward has come",
        ),
    ),
    hints=(
        "What must be remembered at a forward, and until when?",
        "A dictionary from micro-batches to weights: put the newest weight in at F, take it out with `pop` at B.",
        "Make a new weight in each update, `weight = weight - rate * gradient`: one that is changed in place changes "
        "in the dictionary, too.",
    ),
    wrong=(
        Wrong(
            "backward through the newest weights",
            diagnosis=r"backward of micro-batch 1\[0, 0\]: expected",
            edits=(("backward(micro_batch, stash.pop(micro_batch))", "backward(micro_batch, weight)"),),
        ),
        Wrong(
            "updated in place: the stash changes, too",
            diagnosis=r"rank 0, weight\[0, 0\]: expected",
            edits=(("weight = weight - rate *", "weight -= rate *"),),
        ),
        Wrong(
            "versions that stay forever",
            diagnosis=r"right, but it keeps alive [\d,]+ B where 672 must do.*\n.*is of no use",
            edits=(("stash.pop(micro_batch)", "stash[micro_batch]"),),
        ),
        Wrong(
            "a version goes when the next micro-batch has come back",
            diagnosis=r"right, but 5 versions of the weight are alive where 4 must do",
            edits=(
                (
                    "stash.pop(micro_batch))",
                    "stash[micro_batch])\n            stash.pop(micro_batch - 1, None)",
                ),
            ),
        ),
        Wrong(
            "the last one stashed comes first",
            diagnosis=r"backward of micro-batch 1\[0, 0\]: expected|backward of micro-batch \d+\[0, 0\]: expected",
            edits=(("stash.pop(micro_batch)", "stash.pop(max(stash))"),),
        ),
        Wrong(
            "the update of what was stashed, not of the newest",
            diagnosis=r"forward of micro-batch 5\[0, 0\]: expected",
            edits=(
                (
                    "            weight = weight - rate * backward(micro_batch, stash.pop(micro_batch))\n",
                    "            seen = stash.pop(micro_batch)\n"
                    "            weight = seen - rate * backward(micro_batch, seen)\n",
                ),
            ),
        ),
        Wrong(
            "forward sees the first weights for as long as any are in flight",
            diagnosis=r"forward of micro-batch 4\[0, 0\]: expected",
            edits=(
                (
                    "            stash[micro_batch] = weight\n",
                    "            seen = next(iter(stash.values()), weight)\n",
                ),
                ("forward(micro_batch, weight)", "stash[micro_batch] = seen\n            forward(micro_batch, seen)"),
            ),
        ),
        Wrong(
            "all updates at the end: a flush",
            diagnosis=r"forward of micro-batch 4\[0, 0\]: expected",
            body="""
                total = torch.zeros_like(weight)
                for kind, micro_batch in line:
                    if kind == "F":
                        forward(micro_batch, weight)
                    else:
                        total += backward(micro_batch, weight)
                return weight - rate * total
                """,
        ),
        Wrong(
            "a learning rate of its own",
            diagnosis=r"right with ahead=1",
            edits=(("weight - rate *", "weight - 0.15 *"),),
        ),
        Wrong(
            "a smaller step, for there are several in flight",
            diagnosis=r"forward of micro-batch 4\[0, 0\]: expected",
            edits=(("weight - rate *", "weight - rate / (len(stash) + 1) *"),),
        ),
    ),
)
