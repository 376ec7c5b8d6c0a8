"""pipeline_parallel.where_to_reduce: many micro-batches, several stages, and one sum for each."""

import torch.distributed as dist

from puzzles.grading.drives.pipeline_steps import UNITS, with_stages_that_take_time
from puzzles.grading.overlap import NETWORK
from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, cases, on_any_ranks
from reference.collectives import cost
from reference.collectives.all_reduce import ring
from reference.networks.plain import ring_time
from reference.pipeline_parallel import orders
from reference.pipeline_parallel.answers.reduction import run_and_reduce
from reference.pipeline_parallel.schedule import Action, Kind

FLOAT = 4  # bytes of an element


def actions(text):
    return tuple(map(Action.parse, text.split()))


LINES = {  # of a rank with two stages, or with one
    "interleaved": orders.interleaved(2, 4, 2).lines[0],
    "breadth-first": orders.breadth_first(2, 3, 2).lines[1],
    "last in, first out": actions("F0.0 F0.1 F0.2 B0.2 B0.1 B0.0"),
    "backward in two halves": actions("F0.0 F0.1 F2.0 F2.1 I2.0 I2.1 W2.0 I0.0 W2.1 I0.1 W0.1 W0.0"),
    "some backwards in halves": actions("F0.0 F0.1 F2.0 F2.1 I2.0 W2.0 B2.1 I0.0 W0.0 B0.1"),
    "two directions": actions("F0.0 F0.1 F3.2 F3.3 B3.2 B3.3 B0.0 B0.1"),
}


def line_and_gradients(case, rank):
    """This rank's order; for the drive, what each stage finds in each micro-batch, and how long it takes."""
    line = LINES[case.order]
    places = sorted({(action.stage, action.micro_batch) for action in line})
    parts = {place: case.tensor(rank, case.numel, name=f"stage and micro-batch {place}") for place in places}
    return {"line": list(line), "parts": parts, "seconds": seconds_of(case)}


def one_process_with_all_micro_batches(case, inputs):
    """Everything that was found, added up; and nothing left out, or done in another order."""
    found = {"returns": None, "what was computed": " ".join(map(str, LINES[case.order]))}
    for each in inputs:
        for (stage, _), part in each["parts"].items():
            name = f"gradients[{stage}]"
            found[name] = found.get(name, 0) + part
    return [found] * case.n


def stages_of(case):
    return {action.stage for action in LINES[case.order]}


def message(case):
    """Seconds that it takes to sum the gradient of a stage."""
    return ring_time(case.n, FLOAT * case.numel, NETWORK.intra.alpha, NETWORK.intra.beta)


def seconds_of(case):
    """Of a forward: as long as a message takes, so that there is always something to hide it behind."""
    return message(case) or 1e-4


def hidden(case):
    """Microseconds of a step in which only the last message shows."""
    return 1e6 * (sum(UNITS[action.kind] for action in LINES[case.order]) * seconds_of(case) + message(case))


def sent(case):
    """Bytes that a rank sends at most, where each stage's gradient is summed once."""
    return len(stages_of(case)) * max(cost.of(ring).bytes(rank, case.n, case.numel, FLOAT) for rank in range(case.n))


PUZZLE = Puzzle(
    name="pipeline_parallel.where_to_reduce",
    title="Where to sum over replicas",
    statement="""
        Two pipelines, or n of them, train replicas of one model: each has a part of the batch, which it cuts into
        micro-batches. This rank has one or two stages, whose gradients grow from micro-batch to micro-batch. Replicas
        must agree on the sum before the optimizer steps. So somewhere in the step there must be an all-reduce for each
        stage. Where?

        Go through this rank's actions, and compute each of them: `compute(action)`. A backward adds what it has found
        to `gradients[action.stage]`; where backward is split, that is W (`Kind.WEIGHT`), while I (`Kind.INPUT`) has to
        do with activations alone. Orders are of several kinds. Do not rely on what a micro-batch is called.

        With `async_op=True`, `dist.all_reduce` returns at once, and gives you a request to wait for: a gradient can
        travel while this rank computes for its other stage. The loss of each micro-batch is divided by the number of
        tokens of all micro-batches of all replicas already: gradients are summed, never averaged.

        Args:
            line: this rank's actions, in order. `kind, stage, micro_batch = action`.
            compute: `compute(action)` takes its time.
            gradients: of each stage of this rank, by its number; zeros to begin with. In the end, in place, the sum
                over all micro-batches of all replicas.
            group: the n replicas of this rank, which all have the same line. Any n.

        Budget: the gradient of each stage is sent once. On a modelled link the time of computing and of one message.
        """,
    function=run_and_reduce,
    cases=cases(worlds=(2, 4, 3), numel=(12,), order=tuple(LINES))
    + cases(worlds=(1, 5), numel=(7,), order=("interleaved",))
    + cases(worlds=(8,), numel=(16,), order=("backward in two halves",))
    + cases(worlds=(4,), members=(0, 2, 3), numel=(9,), order=("breadth-first",)),
    drawn=on_any_ranks(numel=range(6, 20), order=tuple(LINES)),
    inputs=line_and_gradients,
    oracle=one_process_with_all_micro_batches,
    drive=with_stages_that_take_time,
    calls=(dist.all_reduce,),
    given=(Action, Kind),
    budgets=(
        Budget(
            Measure.BYTES_SENT,
            target=sent,
            why="parts of a gradient add up locally: only their sum, after the last backward of its stage, is sent",
        ),
        Budget(
            Measure.CALLS,
            target=lambda case: len(stages_of(case)),
            why="one all-reduce for each stage",
        ),
        Budget(
            Measure.MICROSECONDS,
            target=lambda case: 1.001 * hidden(case),
            optimum=hidden,
            why="begin a stage's sum as soon as nothing more will be added to it, and wait for all of them in the end",
        ),
    ),
    hints=(
        "When is the gradient of a stage complete? And how can you know, before you begin, which action that will be?",
        "Go through the line once without computing: `last[action.stage] = action` for each backward, B or W. What "
        "stays in `last` is what you look for.",
        "`if action == last[action.stage]: works.append(dist.all_reduce(gradients[action.stage], group=group, "
        "async_op=True))` after `compute(action)`; and `wait()` for all of them in the end.",
    ),
    wrong=(
        Wrong(
            "summed in every micro-batch",
            diagnosis=r"order=interleaved: rank \d, gradients\[0\]\[0\]: expected",
            body="""
                for action in line:
                    compute(action)
                    if action.kind in (Kind.BACKWARD, Kind.WEIGHT):
                        dist.all_reduce(gradients[action.stage], group=group)
                """,
        ),
        Wrong(
            "a sum beside the gradient, and not in place",
            diagnosis=r"gradients\[\d\]\[0\]: expected",
            edits=(
                (
                    "            works.append(",
                    "            gradients[action.stage] = gradients[action.stage].clone()\n            works.append(",
                ),
            ),
        ),
        Wrong(
            "each micro-batch's part is summed by itself",
            diagnosis=r"right, but rank \d sent [\d,]+ B where [\d,]+ must do.*\n.*parts of a gradient add up locally",
            body="""
                for action in line:
                    before = gradients[action.stage].clone()
                    gradients[action.stage].zero_()
                    compute(action)
                    if action.kind in (Kind.BACKWARD, Kind.WEIGHT):
                        dist.all_reduce(gradients[action.stage], group=group)
                    gradients[action.stage].add_(before)
                """,
        ),
        Wrong(
            "after the micro-batch with the highest number",
            diagnosis=r"modified before wait(\n.*)*wrong with order=last in, first out",
            edits=(
                (
                    "    works = []\n",
                    "    final = max(action.micro_batch for action in line)\n"
                    "    last = {s: Action(action.kind, s, final) for s, action in last.items()}\n"
                    "    works = []\n",
                ),
            ),
        ),
        Wrong(
            "after the last I",
            diagnosis=r"modified before wait(\n.*)*wrong with order=backward in two halves",
            edits=(("(Kind.BACKWARD, Kind.WEIGHT)", "(Kind.BACKWARD, Kind.INPUT)"),),
        ),
        Wrong(
            "where one backward is in halves, all are",
            diagnosis=r"wrong with order=some backwards in halves",
            edits=(
                (
                    "    last = {action.stage: action for action in line "
                    "if action.kind in (Kind.BACKWARD, Kind.WEIGHT)}\n",
                    "    halves = any(action.kind is Kind.WEIGHT for action in line)\n"
                    "    final = Kind.WEIGHT if halves else Kind.BACKWARD\n"
                    "    last = {action.stage: action for action in line if action.kind is final}\n",
                ),
            ),
        ),
        Wrong(
            "all micro-batches up to the highest number are expected on each stage",
            diagnosis=r"order=two directions|gradients\[\d\]\[0\]: expected",
            body="""
                m = 1 + max(action.micro_batch for action in line)
                done, works = {}, []
                for action in line:
                    compute(action)
                    if action.kind in (Kind.BACKWARD, Kind.WEIGHT):
                        done[action.stage] = done.get(action.stage, 0) + 1
                        if done[action.stage] == m:
                            works.append(dist.all_reduce(gradients[action.stage], group=group, async_op=True))
                for work in works:
                    work.wait()
                """,
        ),
        Wrong(
            "before the last backward",
            diagnosis=r"gradients\[\d\]\[0\]: expected",
            edits=(
                (
                    "        compute(action)\n        if action == last[action.stage]:\n"
                    "            works.append(dist.all_reduce(gradients[action.stage], group=group, async_op=True))\n",
                    "        if action == last[action.stage]:\n"
                    "            works.append(dist.all_reduce(gradients[action.stage], group=group, async_op=True))\n"
                    "            works.pop().wait()\n"
                    "        compute(action)\n",
                ),
            ),
        ),
        Wrong(
            "divided by the number of replicas",
            diagnosis=r"off by exactly the world size, too little: averaged, and not summed",
            edits=(
                (
                    "        work.wait()\n",
                    "        work.wait()\n    for gradient in gradients.values():\n"
                    "        gradient /= dist.get_world_size(group)\n",
                ),
            ),
        ),
        Wrong(
            "averaged over micro-batches, which the loss has done already",
            diagnosis=r"gradients\[0\]\[0\]: expected -?[\d.]+, got -?[\d.]+(\n.*)*off by a factor of 0\.25 everywhere",
            edits=(
                (
                    "        work.wait()\n",
                    "        work.wait()\n    for gradient in gradients.values():\n"
                    "        gradient /= 1 + max(action.micro_batch for action in line)\n",
                ),
            ),
        ),
        Wrong(
            "no rank waits",
            diagnosis=r"wait\(\)|never waited",
            edits=(("    for work in works:\n        work.wait()\n", ""),),
        ),
        Wrong(
            "nothing is summed over replicas",
            diagnosis=r"must be the same on every rank: rank 0 and rank 1 differ|gradients\[0\]\[0\]: expected",
            edits=(("if action == last[action.stage]:", "if False:"),),
        ),
        Wrong(
            "everything is summed in the end",
            diagnosis=r"right, but on a slow link it takes [\d,.]+ µs where .* must do.*\n.*as soon as nothing more",
            body="""
                for action in line:
                    compute(action)
                for gradient in gradients.values():
                    dist.all_reduce(gradient, group=group)
                """,
        ),
        Wrong(
            "each sum is waited for at once",
            diagnosis=r"right, but on a slow link it takes [\d,.]+ µs where .* must do.*\n.*as soon as nothing more",
            edits=(
                (
                    "works.append(dist.all_reduce(gradients[action.stage], group=group, async_op=True))",
                    "dist.all_reduce(gradients[action.stage], group=group)",
                ),
            ),
        ),
    ),
)
