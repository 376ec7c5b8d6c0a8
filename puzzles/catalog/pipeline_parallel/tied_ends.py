"""pipeline_parallel.tied_ends: one table at both ends of a pipeline."""

import torch
import torch.distributed as dist

from puzzles.grading.drives.pipeline_steps import on_a_mesh
from puzzles.grading.puzzle import SMALL, Budget, Claim, Measure, Puzzle, Wrong, cases, divisors, drawn
from reference.pipeline_parallel.answers.tied import TABLE, tied_step
from reference.zero import cost

ROWS, WIDTH, LAYERS = 4, 6, 24  # of the table; numbers in the layers of a stage
DOUBLE = 8


def place(case, rank):
    """Stage and replica of a rank."""
    return divmod(rank, case.replicas)


def at_an_end(case, rank):
    return place(case, rank)[0] in (0, case.n // case.replicas - 1)


def layers_of(stage):
    """The name of a stage's own parameter."""
    return "bias" if stage % 2 else "layers"


def parameters_and_gradients(case, rank):
    """Replicas of a stage have the same parameters, and so have both ends; gradients are each rank's own."""
    stage, _ = place(case, rank)
    shapes = {layers_of(stage): (LAYERS,)} | ({TABLE: (ROWS, WIDTH)} if at_an_end(case, rank) else {})
    return {
        "parameters": {name: case.normal(0 if name == TABLE else stage, *shapes[name], name=name) for name in shapes},
        "gradients": {name: case.normal(rank, *shapes[name], name=f"gradient of {name}") for name in shapes},
        "rate": case.rate,
        "limit": case.limit,
        "replicas": case.replicas,
    }


def one_process_with_one_table(case, inputs):
    """Each parameter there once, with all gradients that any rank has found for it."""
    parameters, gradients = {}, {}
    for rank, each in enumerate(inputs):
        for name, value in each["parameters"].items():
            key = TABLE if name == TABLE else place(case, rank)[0]
            parameters[key] = value
            gradients[key] = gradients.get(key, 0) + each["gradients"][name]
    norm = torch.cat([gradient.flatten() for gradient in gradients.values()]).norm()
    factor = case.rate * min(1.0, case.limit / norm)
    after = {key: parameters[key] - factor * gradients[key] for key in parameters}
    tables = [{TABLE: after[TABLE]} if at_an_end(case, rank) else {} for rank in range(case.n)]
    stages = [place(case, rank)[0] for rank in range(case.n)]
    own = [{layers_of(stage): after[stage], "returns": norm} for stage in stages]
    return [{**table, **each} for table, each in zip(tables, own, strict=True)]


def the_same_bits_and_no_more(case, inputs, outputs, trace):
    """Copies that differ by a bit differ by more after every step. Ranks between the ends have less to send."""
    ends = [rank for rank in range(case.n) if at_an_end(case, rank)]
    first = outputs[ends[0]][TABLE]
    other = next((rank for rank in ends if not torch.equal(outputs[rank][TABLE], first)), None)
    fact = f"the copies of the table on ranks {ends[0]} and {other} differ in their last bits, and will drift apart"
    between = [rank for rank in range(case.n) if rank not in ends]
    most = max((trace.bytes_sent[rank] for rank in between), default=0)
    enough = max((sent_by(case, rank) for rank in between), default=0)
    return [
        Claim(other is None, f"{fact}: let both ends add the same numbers in the same order"),
        Claim(most <= enough, f"between the ends, a rank sent {most:,} B where {enough:,} must do: it has no table"),
    ]


def sent(case):
    """Bytes that an end sends."""
    return max(sent_by(case, rank) for rank in range(case.n))


def sent_by(case, rank):
    """Bytes that a rank sends: gradients to its replicas, that of the table to the other end, and a number."""
    p, table = case.n // case.replicas, ROWS * WIDTH
    stage, replica = place(case, rank)
    elements = cost.all_reduce(LAYERS, case.replicas, replica) + cost.all_reduce(1, p, stage)
    if at_an_end(case, rank):
        elements += cost.all_reduce(table, case.replicas, replica) + cost.all_reduce(table, min(p, 2), min(stage, 1))
    return DOUBLE * elements


SUM_OF_ENDS = """\
    if ends is not None:
        dist.all_reduce(gradients[TABLE], group=ends)
"""

PUZZLE = Puzzle(
    name="pipeline_parallel.tied_ends",
    title="A tied table at both ends of a pipeline",
    statement="""
        Many models have one table for both ends: it embeds tokens, and it is the weight of the head. In a pipeline the
        embedding is on the first rank and the head on the last. So both have a copy of the table, equal to the last
        bit, and backward gives each of them a part of its gradient. Take one step, after which the copies are one table
        still. The ranks between the two have no table, and nothing to do with it.

        There are n replicas of the whole pipeline, each with a part of the batch. The loss was divided by the number of
        tokens of all replicas before backward: gradients are summed. Then they are clipped: if the gradient of the
        whole model, as one long vector, is longer than `limit`, all of it is scaled to exactly that length (no 1e-6, as
        torch adds). The model has one table.

        Args:
            parameters: of this rank, by name. On the first and the last rank of a pipeline, one of them is "table".
                Update them in place: subtract `rate` times the gradient that is left.
            gradients: of this rank's part of the batch, by the same names. You may overwrite them.
            rate: of learning.
            limit: the longest that the gradient may be.
            data: the replicas of this rank.
            pipeline: the ranks of this rank's pipeline, from the first stage to the last.
            ends: the first and the last rank of the pipeline. Where the pipeline has one rank, that rank alone. None on
                ranks between them.

        Returns: the norm of the gradient of the whole model, before it was clipped: a scalar tensor, the same on every
        rank.

        Budget: each gradient is summed over replicas once, that of the table once between the ends. The table itself
        does not travel.
        """,
    function=tied_step,
    cases=cases(worlds=(4,), replicas=(1, 2), limit=(1e9, 1.0), rate=(0.125,))
    + cases(worlds=(6,), replicas=(2, 3), limit=(2.0,), rate=(0.5,))
    + cases(worlds=(3,), replicas=(1, 3), limit=(2.0,), rate=(0.125,))
    + cases(worlds=(1, 5), replicas=(1,), limit=(2.0,), rate=(0.125,))
    + cases(worlds=(8,), replicas=(2,), limit=(2.0,), rate=(0.125,)),
    drawn=(
        drawn(worlds=SMALL, replicas=lambda so_far: divisors(so_far.n), limit=(1.0, 2.0, 1e9), rate=(0.125, 0.5)),
        drawn(worlds=(9, 12), replicas=lambda so_far: divisors(so_far.n), limit=(1.0, 2.0, 1e9), rate=(0.125, 0.5)),
    ),
    inputs=parameters_and_gradients,
    oracle=one_process_with_one_table,
    judge=the_same_bits_and_no_more,
    drive=on_a_mesh,
    tolerance=1e-10,
    calls=(dist.all_reduce, dist.send, dist.recv, dist.isend, dist.irecv, dist.batch_isend_irecv, dist.P2POp),
    budgets=(
        Budget(
            Measure.BYTES_SENT,
            target=sent,
            why="of the table, only its gradient goes from end to end, and that once: the same update is made twice",
        ),
    ),
    hints=(
        "Which ranks have found a part of the table's gradient? Over which groups must it be summed, and over which "
        "must the others?",
        "All gradients over `data`; that of the table over `ends`, too. If both ends then do the same with the same "
        "numbers, nothing else need travel. Which rank counts the table in the norm?",
        "Squares of all gradients of a rank, but not the table's where `dist.get_rank(ends) > 0`; their sum over "
        "`pipeline`. Replicas have the same by now: not over `data`.",
    ),
    wrong=(
        Wrong(
            "a new tensor under the old name, and no update in place",
            diagnosis=r"rank 0, (table|layers)\[0(, 0)?\]: expected",
            edits=(
                (
                    "        parameter -= rate * min(1.0, limit / norm) * gradients[name]\n",
                    "        parameters[name] = parameter - rate * min(1.0, limit / norm) * gradients[name]\n",
                ),
            ),
        ),
        Wrong(
            "each end keeps to its own part",
            diagnosis=r"replicas=1, limit=1e\+09, .*: rank 0, table\[0, 0\]: expected",
            edits=((SUM_OF_ENDS, ""),),
        ),
        Wrong(
            "only the first end updates",
            diagnosis=r"rank 3, table\[0, 0\]: expected(.*\n)*.*right on ranks? 0, 1, 2, wrong on rank 3",
            edits=(
                (
                    "    for name, parameter in parameters.items():\n",
                    "    for name, parameter in parameters.items():\n"
                    "        if is_copy and name == TABLE:\n            continue\n",
                ),
            ),
        ),
        Wrong(
            "the mean of both ends",
            diagnosis=r"rank 0, table\[0, 0\]: expected",
            edits=((SUM_OF_ENDS, SUM_OF_ENDS + "        gradients[TABLE] /= dist.get_world_size(ends)\n"),),
        ),
        Wrong(
            "the norm counts the table twice",
            diagnosis=r"rank 0, result: expected -?[\d.]+, got -?[\d.]+|result: expected -?[\d.]+, got",
            edits=((" if not (is_copy and name == TABLE)", ""),),
        ),
        Wrong(
            "the norm counts no rank's table",
            diagnosis=r"result: expected -?[\d.]+, got",
            edits=(("is_copy = ends is not None and dist.get_rank(ends) > 0", "is_copy = True"),),
        ),
        Wrong(
            "each stage clips by its own norm",
            diagnosis=r"result: expected -?[\d.]+, got",
            edits=(("    dist.all_reduce(squares, group=pipeline)\n", ""),),
        ),
        Wrong(
            "the norm is taken before the ends have summed",
            diagnosis=r"result: expected -?[\d.]+, got",
            body="""
                for gradient in gradients.values():
                    dist.all_reduce(gradient, group=data)
                squares = sum(gradient.square().sum() for gradient in gradients.values())
                dist.all_reduce(squares, group=pipeline)
                norm = squares.sqrt()
                if ends is not None:
                    dist.all_reduce(gradients["table"], group=ends)
                for name, parameter in parameters.items():
                    parameter -= rate * min(1.0, limit / norm) * gradients[name]
                return norm
                """,
        ),
        Wrong(
            "the table is summed over replicas twice",
            diagnosis=r"right with replicas=1, wrong with replicas=.*2|replicas=2, limit=1e\+09, .*: rank 0, table",
            edits=((SUM_OF_ENDS, SUM_OF_ENDS + "        dist.all_reduce(gradients[TABLE], group=data)\n"),),
        ),
        Wrong(
            "the norm is summed over replicas, too",
            diagnosis=r"right with replicas=1, wrong with replicas=.*2|replicas=2, limit=1e\+09, .*: rank 0, result",
            edits=(
                (
                    "    dist.all_reduce(squares, group=pipeline)\n",
                    "    dist.all_reduce(squares, group=pipeline)\n    dist.all_reduce(squares, group=data)\n",
                ),
            ),
        ),
        Wrong(
            "the whole pipeline sums the table",
            diagnosis=r"KeyError: 'table'",
            edits=((SUM_OF_ENDS, "    dist.all_reduce(gradients[TABLE], group=pipeline)\n"),),
        ),
        Wrong(
            "a rate that is no argument",
            diagnosis=r"right with rate=0\.125, wrong with rate=0\.5|rate=0\.5",
            edits=(("rate * min(", "0.125 * min("),),
        ),
        Wrong(
            "names that are guessed",
            diagnosis=r"KeyError: 'layers'",
            edits=(
                (
                    "    for gradient in gradients.values():\n        dist.all_reduce(gradient, group=data)\n",
                    '    dist.all_reduce(gradients["layers"], group=data)\n'
                    "    if ends is not None:\n        dist.all_reduce(gradients[TABLE], group=data)\n",
                ),
            ),
        ),
        Wrong(
            "ranks between the ends sum something, too",
            diagnosis=r"right, but between the ends, a rank sent \d+ B where \d+ must do: it has no table",
            edits=(
                (
                    SUM_OF_ENDS,
                    SUM_OF_ENDS + "    else:\n        for gradient in gradients.values():\n"
                    "            dist.all_reduce(torch.zeros_like(gradient), group=data)\n",
                ),
                ("import torch.distributed as dist\n", "import torch\nimport torch.distributed as dist\n"),
            ),
        ),
        Wrong(
            "the copies are made equal after the step, to be on the safe side",
            diagnosis=r"right, but rank \d sent [\d,]+ B where [\d,]+ must do.*\n.*the same update is made twice",
            edits=(
                (
                    "    return norm\n",
                    "    if ends is not None and dist.get_world_size(ends) > 1:\n"
                    "        parameters[TABLE] /= 2\n"
                    "        dist.all_reduce(parameters[TABLE], group=ends)\n"
                    "    return norm\n",
                ),
            ),
        ),
        Wrong(
            "each end subtracts its own part first",
            diagnosis=r"right, but the copies of the table on ranks 0 and 3 differ in their last bits",
            body="""
                for gradient in gradients.values():
                    dist.all_reduce(gradient, group=data)
                other = None
                if ends is not None and dist.get_world_size(ends) > 1:
                    own, other = dist.get_rank(ends), torch.empty_like(gradients["table"])
                    operations = [
                        dist.P2POp(dist.isend, gradients["table"], group=ends, group_peer=1 - own),
                        dist.P2POp(dist.irecv, other, group=ends, group_peer=1 - own),
                    ]
                    for work in dist.batch_isend_irecv(operations):
                        work.wait()
                squares = sum(value.square().sum() for name, value in gradients.items() if name != "table")
                if ends is not None and dist.get_rank(ends) == 0:
                    whole = gradients["table"] if other is None else gradients["table"] + other
                    squares += whole.square().sum()
                dist.all_reduce(squares, group=pipeline)
                norm = squares.sqrt()
                factor = rate * min(1.0, limit / norm)
                for name, parameter in parameters.items():
                    parameter -= factor * gradients[name]
                if other is not None:
                    parameters["table"] -= factor * other
                return norm
                """,
        ),
    ),
)
