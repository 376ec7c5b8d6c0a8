"""zero_bubble.two_versions: two buffers of weights, and a delay of one update on every stage."""

from puzzles.grading.drives.zero_bubble import through_a_stage
from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, case, cases, drawn
from reference.zero_bubble.answers.versions import two_versions

from .common import SAMPLES, Stage, a_stage_in_flight, at_most_alive, weight_bytes


def batches_in_flight(case, rank):
    """The loss is a mean over all samples of a batch."""
    given = a_stage_in_flight(case, rank)
    return {**given, "micro_batches": case.micro_batches, "samples": SAMPLES * case.micro_batches}


def by_the_definition(case, inputs):
    """W(t+1) = W(t) - rate * gradient of batch t at W(t-1), version after version."""
    given, m = inputs[0], case.micro_batches
    stage, versions, gradients = Stage(given), [given["weight"]], []
    for kind, k in given["line"]:
        seen = versions[max(k // m - 1, 0)]
        if kind == "F":
            stage.forward(k, seen)
            continue
        gradients.append(stage.backward(k, seen))
        if len(gradients) == m * len(versions):
            versions.append(versions[-1] - given["rate"] * sum(gradients[-m:]))
    return stage.ending(versions[-1])


def two_are_enough(case, inputs, outputs, trace):
    """Those of the two batches in flight."""
    return at_most_alive(2, outputs)


PUZZLE = Puzzle(
    name="zero_bubble.two_versions",
    title="Two versions of the weights (PipeDream-2BW)",
    statement="""
        Weight stashing keeps a version for each micro-batch in flight, and other ones on each stage. PipeDream-2BW adds
        up the gradients of m micro-batches, a batch, before it updates, and its pipeline still never flushes. If m is
        large enough, at most two batches are in flight, and two versions do, on every stage:

            W(t+1) = W(t) - rate * gradient of batch t at W(t-1)

        Batch t has the micro-batches from t m to t m + m - 1. All of them, on all stages, see version t - 1 in forward
        and in backward: when the batch comes in, batch t - 1 is still in flight, so W(t) is not there yet. Batch 0
        has nothing before it, and sees W(0), as batch 1 does.

        Args:
            line: what this stage does, in order: ("F", k) or ("B", k), k a micro-batch. Forwards come in order, so do
                backwards, and no forward comes before all of the batch before the last one have finished.
            weight: W(0). Leave it as it is.
            micro_batches: m.
            forward: `forward(k, weight)` sends micro-batch k through the stage with this weight.
            backward: `backward(k, weight)` sends its gradient back through it, and returns the weight's gradient. The
                loss is the mean over all samples of the batch, which it knows.
            rate: the learning rate.

        Returns: the weight after the last update.

        Budget: two versions, the sum of gradients, and three tensors more while an update is computed.
        """,
    function=two_versions,
    cases=cases(worlds=(1,), ahead=(3,), micro_batches=(4,), count=(20,))
    + cases(worlds=(1,), ahead=(2, 0), micro_batches=(3,), count=(12,))
    + cases(worlds=(1,), ahead=(0, 1), micro_batches=(1,), count=(5,)),
    drawn=(
        drawn(
            worlds=(1,),
            ahead=(0, 1, 2),
            micro_batches=(3, 4, 5),
            count=lambda so_far: [so_far.micro_batches * k for k in (2, 3, 4)],
        ),
    ),
    large=case(1, ahead=1, micro_batches=1, count=16, features=512, width=512),
    inputs=batches_in_flight,
    oracle=by_the_definition,
    judge=two_are_enough,
    drive=through_a_stage,
    tolerance=1e-10,
    budgets=(
        Budget(
            Measure.PEAK_BYTES,
            target=lambda case: 6 * weight_bytes(case),
            optimum=lambda case: 4 * weight_bytes(case),
            why="version t + 1 takes the place of version t - 1, which no micro-batch will see any more",
        ),
    ),
    hints=(
        "Which batch does micro-batch k belong to, and which version does that batch see? Two versions follow each "
        "other: what is t % 2 good for?",
        "Version t lives in `buffers[t % 2]`. Micro-batch k sees the version `max(k // m - 1, 0)`, in forward and in "
        "backward, whatever the newest is.",
        "After the last backward of batch t, put W(t) - rate * gradient into the buffer of t + 1, where W(t - 1) was, "
        "and begin the sum anew.",
    ),
    wrong=(
        Wrong(
            "all versions are kept",
            diagnosis=r"right, but it keeps alive [\d,]+ B where 576 must do.*\n.*takes the place",
            edits=(
                ("buffers = [weight, weight]", "buffers = [weight]"),
                ("max(micro_batch // micro_batches - 1, 0) % 2", "max(micro_batch // micro_batches - 1, 0)"),
                ("buffers[(newest + 1) % 2] = buffers[newest % 2] - rate * gradient", "buffers.append(NEW)"),
                ("NEW", "buffers[-1] - rate * gradient"),
                ("return buffers[newest % 2]", "return buffers[-1]"),
            ),
        ),
        Wrong(
            "three versions",
            diagnosis=r"right, but 3 versions of the weight are alive where 2 must do",
            edits=(
                ("[weight, weight]", "[weight, weight, weight]"),
                ("- 1, 0) % 2", "- 1, 0) % 3"),
                ("buffers[(newest + 1) % 2] = buffers[newest % 2]", "buffers[(newest + 1) % 3] = buffers[newest % 3]"),
                ("return buffers[newest % 2]", "return buffers[newest % 3]"),
            ),
        ),
        Wrong(
            "no delay: every action sees the newest",
            diagnosis=r"forward of micro-batch 7\[0, 0\]: expected",
            edits=(("seen = buffers[max(micro_batch // micro_batches - 1, 0) % 2]", "seen = buffers[newest % 2]"),),
        ),
        Wrong(
            "forward sees the newest, backward what its forward saw",
            diagnosis=r"forward of micro-batch 7\[0, 0\]: expected",
            body="""
                stash, gradient = {}, torch.zeros_like(weight)
                for kind, micro_batch in line:
                    if kind == "F":
                        stash[micro_batch] = weight
                        forward(micro_batch, weight)
                        continue
                    gradient += backward(micro_batch, stash.pop(micro_batch))
                    if (micro_batch + 1) % micro_batches == 0:
                        weight = weight - rate * gradient
                        gradient.zero_()
                return weight
                """,
        ),
        Wrong(
            "a delay of two",
            diagnosis=r"forward of micro-batch 8\[0, 0\]: expected",
            edits=(("micro_batch // micro_batches - 1, 0", "micro_batch // micro_batches - 2, 0"),),
        ),
        Wrong(
            "a learning rate of its own",
            diagnosis=r"right with ahead=3, wrong with ahead=0, 1, 2",
            edits=(("newest % 2] - rate *", "newest % 2] - 0.075 *"),),
        ),
        Wrong(
            "averaged twice",
            diagnosis=r"right with micro_batches=1, wrong with micro_batches=3, 4",
            edits=(("rate * gradient\n", "rate * gradient / micro_batches\n"),),
        ),
        Wrong(
            "updates the version that was seen, not the newest",
            diagnosis=r"forward of micro-batch 12\[0, 0\]: expected",
            edits=(("= buffers[newest % 2] - rate", "= seen - rate"),),
        ),
        Wrong(
            "an update after each micro-batch",
            diagnosis=r"right with micro_batches=1, wrong with micro_batches=3, 4",
            edits=(("if (micro_batch + 1) % micro_batches == 0:", "if True:"),),
        ),
        Wrong(
            "the sum continues over all batches",
            diagnosis=r"forward of micro-batch 12\[0, 0\]: expected",
            edits=(("            gradient.zero_()\n", ""),),
        ),
        Wrong(
            "one buffer, written over while a batch is in flight",
            diagnosis=r"rank 0, weight\[0, 0\]: expected",
            edits=(("buffers[(newest + 1) % 2] = buffers[newest % 2] - rate * gradient", "weight -= rate * gradient"),),
        ),
    ),
)
