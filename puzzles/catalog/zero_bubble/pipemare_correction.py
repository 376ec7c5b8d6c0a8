"""zero_bubble.pipemare_correction: no weights are kept, and two remedies for that."""

from itertools import pairwise

from puzzles.grading.drives.zero_bubble import through_a_stage
from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, case, cases, drawn
from reference.zero_bubble.answers.versions import pipemare

from .common import Stage, a_stage_in_flight, weight_bytes


def with_a_delay(case, rank):
    """As many updates lie between forward and backward as forwards are ahead."""
    given = a_stage_in_flight(case, rank)
    return {**given, "delay": case.ahead, "updates": case.updates, "remembered": case.remembered}


def from_all_versions(case, inputs):
    """The velocity as a weighted sum over all changes until now, without any state."""
    given, tau = inputs[0], case.ahead
    stage, versions = Stage(given), [given["weight"]]
    gamma = case.remembered ** (1 / tau)
    for kind, k in given["line"]:
        if kind == "F":
            stage.forward(k, versions[-1])
            continue
        t = len(versions) - 1
        changes = [after - before for before, after in pairwise(versions)]
        velocity = sum((1 - gamma) * gamma ** (t - 1 - s) * change for s, change in enumerate(changes))
        gradient = stage.backward(k, versions[-1] - tau * velocity)
        rate = given["rate"] * tau ** (min(t / case.updates, 1) - 1)
        versions.append(versions[-1] - rate * gradient)
    return stage.ending(versions[-1])


PUZZLE = Puzzle(
    name="zero_bubble.pipemare_correction",
    title="PipeMare: no stash, two remedies",
    statement="""
        A pipeline that never flushes, and keeps no old weights either: forward and backward both see the newest. Then
        tau updates lie between what forward has seen and what backward sees, and training may diverge. PipeMare has
        two remedies, which take the memory of one weight, however long the pipeline is:

        1. Smaller steps while weights change fastest. The learning rate of update k, counted from 0, is

               rate / tau^p,    p = 1 - min(k / K, 1)

        2. A guess at what forward saw. Follow what an update changes on average, v, which is 0 at first, and let
           backward see w - tau v in place of w. After each update, with gamma = D^(1 / tau),

               v <- gamma v + (1 - gamma) (w after the update - w before it)

        The update itself changes w, and forward sees w.

        Args:
            line: what this stage does, in order: ("F", k) or ("B", k), k a micro-batch. Every backward ends in an
                update.
            weight: of the stage, before the first update. Leave it as it is.
            forward: `forward(k, weight)` sends micro-batch k through the stage with this weight.
            backward: `backward(k, weight)` sends its gradient back through it, and returns the weight's gradient.
            delay: tau, at least 1.
            rate: the learning rate without a delay.
            updates: K, at least 1.
            remembered: D, from 0 to below 1; by the paper's theory e^-2, 0.135.

        Returns: the weight after the last update.

        Budget: the weight and v, and six tensors more while they are computed.
        """,
    function=pipemare,
    cases=cases(worlds=(1,), ahead=(3,), count=(12,), updates=(6,), remembered=(0.135,))
    + cases(worlds=(1,), ahead=(1, 7), count=(20,), updates=(10,), remembered=(0.135,))
    + cases(worlds=(1,), ahead=(2,), count=(8,), updates=(1,), remembered=(0.5,))
    + cases(worlds=(1,), ahead=(1,), count=(8,), updates=(10,), remembered=(0.0,)),
    drawn=(
        drawn(worlds=(1,), ahead=range(1, 6), count=range(8, 20), updates=range(1, 9), remembered=(0.1, 0.135, 0.4)),
    ),
    large=case(1, ahead=6, count=10, updates=6, remembered=0.135, features=1024, width=512),
    inputs=with_a_delay,
    oracle=from_all_versions,
    drive=through_a_stage,
    tolerance=1e-10,
    budgets=(
        Budget(
            Measure.PEAK_BYTES,
            target=lambda case: 8 * weight_bytes(case),
            optimum=lambda case: 4 * weight_bytes(case),
            why="v is all that is remembered of older weights: PipeMare is for those who have no room for a stash",
        ),
    ),
    hints=(
        "Three things change with every update: the weight, v, and the number of updates. In which order?",
        "At F: forward with `weight`. At B: backward with `weight - delay * velocity`, then the learning rate of this "
        "update, then the change, then v, then the weight.",
        "`change = -rate / delay ** (1 - min(update / updates, 1)) * gradient` is what the update changes, and what v "
        "takes in: `velocity = decay * velocity + (1 - decay) * change`, where `decay = remembered ** (1 / delay)`.",
    ),
    wrong=(
        Wrong(
            "the sign of the correction",
            diagnosis=r"backward of micro-batch 1\[0, 0\]: expected",
            edits=(("weight - delay * velocity", "weight + delay * velocity"),),
        ),
        Wrong(
            "no correction",
            diagnosis=r"backward of micro-batch 1\[0, 0\]: expected",
            edits=(("weight - delay * velocity", "weight"),),
        ),
        Wrong(
            "forward sees the guess, too",
            diagnosis=r"forward of micro-batch 4\[0, 0\]: expected",
            edits=(("forward(micro_batch, weight)\n", "forward(micro_batch, weight - delay * velocity)\n"),),
        ),
        Wrong(
            "steps that stay small",
            diagnosis=r"forward of micro-batch 5\[0, 0\]: expected",
            edits=(("delay ** (1 - min(update / updates, 1))", "delay"),),
        ),
        Wrong(
            "steps that become smaller",
            diagnosis=r"right with ahead=1, wrong with ahead=2, 3, [\d, ]*7",
            edits=(("(1 - min(update / updates, 1))", "min(update / updates, 1)"),),
        ),
        Wrong(
            "steps that keep growing after K updates",
            diagnosis=r"forward of micro-batch 11\[0, 0\]: expected",
            edits=(("min(update / updates, 1)", "update / updates"),),
        ),
        Wrong(
            "D after each update, not after tau of them",
            diagnosis=r"right with ahead=1, wrong with ahead=2, 3, [\d, ]*7",
            edits=(("remembered ** (1 / delay)", "remembered"),),
        ),
        Wrong(
            "the mean of gradients, not of changes",
            diagnosis=r"backward of micro-batch 1\[0, 0\]: expected",
            edits=(("(1 - decay) * change", "(1 - decay) * gradient"),),
        ),
        Wrong(
            "the sum of changes, not their mean",
            diagnosis=r"backward of micro-batch 1\[0, 0\]: expected",
            edits=(("(1 - decay) * change", "change"),),
        ),
        Wrong(
            "a learning rate of its own",
            diagnosis=r"forward of micro-batch 4\[0, 0\]: expected",
            edits=(("-rate / delay", "-0.15 / delay"),),
        ),
        Wrong(
            "no memory at all where D is 0",
            diagnosis=r"wrong with remembered=0",
            edits=(("remembered ** (1 / delay)", "(remembered or 0.135) ** (1 / delay)"),),
        ),
        Wrong(
            "the guess becomes the weight",
            diagnosis=r"forward of micro-batch 4\[0, 0\]: expected",
            edits=(("weight = weight + change", "weight = weight - delay * velocity + change"),),
        ),
        Wrong(
            "all changes are kept, and summed up anew",
            diagnosis=r"right, but it keeps alive [\d,]+ B where 768 must do.*\n.*no room for a stash",
            edits=(
                (
                    "    velocity = torch.zeros_like(weight)\n",
                    "    velocity, changes = torch.zeros_like(weight), []\n",
                ),
                (
                    "        velocity = decay * velocity + (1 - decay) * change\n",
                    "        changes.append(change)\n"
                    "        velocity = torch.zeros_like(weight)\n"
                    "        for age, each in enumerate(reversed(changes)):\n"
                    "            velocity += (1 - decay) * decay**age * each\n",
                ),
            ),
        ),
    ),
)
