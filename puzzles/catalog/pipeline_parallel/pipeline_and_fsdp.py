"""pipeline_parallel.pipeline_and_fsdp: 16 ranks, of which each has a sixteenth of the model."""

from collections import Counter

import torch

from puzzles.grading.drives.pipeline_programs import (
    NOTHING,
    PROGRAMS,
    WRONG,
    gradient_of,
    in_programs,
    program_and_simulation,
)
from puzzles.grading.puzzle import POINT_TO_POINT, Budget, Claim, Measure, Puzzle, Wrong, cases, drawn
from reference.pipeline_parallel.answers.with_fsdp import pipeline_and_fsdp
from reference.pipeline_parallel.lab.programs import COSTS, GATHER
from reference.pipeline_parallel.passes import Free, Gather, Reduce
from reference.pipeline_parallel.schedule import Action, Kind

from ..zero.common import ALL_GATHER, REDUCE_SCATTER

WIDTH, SAMPLES, DOUBLE = 3, 2, 8


def p_of(case):
    """Ranks of a pipeline."""
    return case.mesh[0]


def replicas_of(case):
    """Ranks that share a stage."""
    return case.mesh[1]


def stages_of(case):
    return range(p_of(case) * case.v)


def simulated(case):
    """Whether one process stands for all ranks."""
    return case.n != p_of(case) * replicas_of(case)


def weights_of(case):
    """The whole weights of all stages."""
    return [case.normal(0, WIDTH, WIDTH, name=f"weight {stage}") for stage in stages_of(case)]


def shards_of(case, whole):
    """One of each replica, [replicas, S]; the last ones end in zeros."""
    replicas = replicas_of(case)
    shard = -(-whole.numel() // replicas)
    flat = whole.new_zeros(replicas * shard)
    flat[: whole.numel()] = whole.flatten()
    return flat.view(replicas, shard)


def batches_of(case, name):
    """Of each replica, [replicas, m, B, D]."""
    return torch.stack([case.normal(i, case.m, SAMPLES, WIDTH, name=name) for i in range(replicas_of(case))])


def a_part_of_everything(case, rank):
    """What the drive runs programs with: this rank's shards and batch, or those of all ranks that it stands for."""
    own, replica = divmod(rank, replicas_of(case))
    shards = {stage: shards_of(case, weight) for stage, weight in enumerate(weights_of(case))}
    x, upstream = (batches_of(case, name) for name in ("x", "upstream"))
    if not simulated(case):
        shards = {stage: each[replica].clone() for stage, each in shards.items() if stage % p_of(case) == own}
        x, upstream = x[replica].clone(), upstream[replica].clone()
    sizes = {"p": p_of(case), "v": case.v, "m": case.m, "replicas": replicas_of(case)}
    return {**sizes, "shards": shards, "x": x, "upstream": upstream}


def one_process_with_the_whole_model(case, inputs):
    """All micro-batches of all replicas at once, by autograd."""
    weights = [weight.requires_grad_() for weight in weights_of(case)]
    y = batches_of(case, "x")
    for weight in weights:
        y = (y @ weight.T).tanh()
    (y * batches_of(case, "upstream")).sum().backward()
    found = {gradient_of(stage): shards_of(case, weight.grad) for stage, weight in enumerate(weights)}
    if simulated(case):
        return [{WRONG: NOTHING, **found}]
    expected = []
    for rank in range(case.n):
        own, replica = divmod(rank, replicas_of(case))
        names = [gradient_of(stage) for stage in stages_of(case)[own :: p_of(case)]]
        expected.append({WRONG: NOTHING} | {name: found[name][replica] for name in names})
    return expected


def hidden(case):
    """How long a step takes in which gathering shows once in the beginning, and summing once in the end."""
    there_and_back = COSTS.forward + COSTS.input + COSTS.weight
    bubble = (p_of(case) - 1) * (there_and_back + 2 * COSTS.message)
    return 2 * GATHER + case.v * case.m * there_and_back + bubble


def in_time_and_in_memory(case, inputs, outputs, trace):
    """What the programs come to on paper."""
    programs, found = program_and_simulation(outputs[0][PROGRAMS], case.v, case.m)
    steps = [step for program in programs for step in program]
    gathered = Counter(step.stage for step in steps if isinstance(step, Gather)).most_common(1)[0]
    summed = Counter(step.action.stage for step in steps if isinstance(step, Reduce)).most_common(1)[0]
    gradients = f"a rank has {found.gradients} whole gradients at a time where 1 must do: sum each after its last B"
    stages = f"a rank has {found.whole} whole stages at a time where 2 must do: the one that computes, and the next one"
    seconds = f"a step takes {found.seconds:g} units of time where {hidden(case):g} must do: "
    advice = "all micro-batches through one stage, while the next one is gathered"
    return [
        Claim(
            gathered[1] <= 2,
            "stage {} is gathered {} times where 2 must do: free it when a turn is over".format(*gathered),
        ),
        Claim(summed[1] <= 1, "the gradient of stage {} is summed {} times where 1 must do".format(*summed)),
        Claim(found.gradients <= 1, gradients),
        Claim(found.whole <= 2, stages),
        Claim(found.seconds <= hidden(case), seconds + advice),
    ]


def bytes_sent(case, gathered):
    """Of the busiest rank: stages gathered so many times, v of them summed, and activations and gradients."""
    if simulated(case):
        return 0
    shard = -(-(WIDTH**2) // replicas_of(case))
    within = (gathered + case.v) * (replicas_of(case) - 1) * shard
    last = p_of(case) * case.v - 1
    messages = max(
        sum((stage < last) + (stage > 0) for stage in stages_of(case)[rank :: p_of(case)]) for rank in range(p_of(case))
    )
    between = messages * case.m * SAMPLES * WIDTH if p_of(case) > 1 else 0
    return DOUBLE * (within + between)


PUZZLE = Puzzle(
    name="pipeline_parallel.pipeline_and_fsdp",
    title="Pipeline and FSDP at once",
    statement="""
        The last of Sasha Rush's LLM training puzzles: 16 ranks, a pipeline of p = 4, and in each of its places 4 ranks
        that share the same stages. A stage is a layer, and stages are dealt out like cards: rank r of the pipeline has
        the stages r, p + r, 2p + r, ... Of each it has a shard alone, as in FSDP. Write the program of one rank for one
        step, as a list of

            Gather(stage)             begin to gather its weight. The rank continues at once; a pass through the stage
                                      waits until it is there. One gather follows the other.
            Free(stage)               let go of the weight.
            Action(Kind.FORWARD, stage, micro_batch)
            Action(Kind.BACKWARD, stage, micro_batch)
                                      compute, and send what another rank needs; wait for what this one needs. The stage
                                      must be whole. Backward adds to the whole gradient of the stage.
            Reduce(Action(Kind.BACKWARD, stage, micro_batch))
                                      the same, and then begin to sum the whole gradient over those who share the stage,
                                      and keep a shard. The rank continues at once.

        All who share a stage run the same program, each with its own part of the batch. The check runs it on ranks
        where there are up to 8, and on 16 in simulation.

        You may order the work as you like, within these limits: of weights, a rank has two stages whole at a time at
        most, the one that computes and another one; of gradients, one. Each stage is gathered twice at most. And the
        step is short: per stage, a forward takes 1 unit of time, a backward 2, a message 1/4, to gather or to sum 2.

        Args:
            rank: r, of the p ranks of the pipeline.
            p: ranks of the pipeline.
            v: stages on each of them.
            m: micro-batches: so many that a rank is busy until the first is back from its way through the others.

        Returns: the program, a list. In the end all is computed, all gradients are summed, and no stage is whole.

        Budget: two gathers and a sum of each stage; around the turn, two gathers can be spared. The time of all work,
        of one gather, of one sum, and of the way through the pipeline, there and back: 3 v m + 2·2 + 3.5 (p-1).
        """,
    function=pipeline_and_fsdp,
    given=(Action, Kind, Gather, Free, Reduce),
    cases=cases(worlds=(4,), mesh=((2, 2),), v=(3, 1), m=(4,))
    + cases(worlds=(6,), mesh=((2, 3),), v=(2,), m=(3,))
    + cases(worlds=(8,), mesh=((4, 2),), v=(2,), m=(6,))
    + cases(worlds=(3,), mesh=((3, 1), (1, 3)), v=(2,), m=(5,))
    + cases(worlds=(1,), mesh=((4, 4),), v=(4, 1), m=(8,)),
    drawn=(
        drawn(worlds=(1,), mesh=((2, 5), (3, 3), (5, 2)), v=(1, 2, 3), m=(9, 10, 12)),
        drawn(worlds=(1,), mesh=((9, 1),), v=(1, 2, 3), m=(12, 13)),  # 9 passes and 9 messages until the first is back
    ),
    inputs=a_part_of_everything,
    oracle=one_process_with_the_whole_model,
    judge=in_time_and_in_memory,
    drive=in_programs,
    tolerance=1e-10,
    calls=(*POINT_TO_POINT, *ALL_GATHER, *REDUCE_SCATTER),  # what the drive does
    budgets=(
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: bytes_sent(case, 2 * case.v),
            optimum=lambda case: bytes_sent(case, max(1, 2 * case.v - 2)),
            why="gather a stage once for all micro-batches in each direction, and sum its gradient once",
        ),
    ),
    hints=(
        "How often is a stage gathered if each micro-batch goes through all stages of a rank before the next one "
        "begins? How many are whole if you want to gather them once? And in which other order could you go?",
        "Breadth-first: all micro-batches through the first stage of this rank, then all through the second; backward "
        "likewise, from the last stage to the first. So a rank goes through `own + own[::-1]`, and needs each in one "
        "stretch of time.",
        "Before each stretch, see which two stages are needed next: `list(dict.fromkeys(order[at:]))[:2]`. Free what "
        "is whole and not among them, gather what is among them and not whole, then compute. The last backward of a "
        "stretch is a `Reduce`.",
    ),
    wrong=(
        Wrong(
            "each micro-batch through all stages of the rank",
            diagnosis=r"right, but rank \d sent [\d,]+ B where [\d,]+ must do.*\n.*once for all micro-batches",
            body="""
                own = [chunk * p + rank for chunk in range(v)]
                program = []
                for k in range(m):
                    for stage in own:
                        program += [Gather(stage), Action(Kind.FORWARD, stage, k), Free(stage)]
                for k in range(m):
                    for stage in reversed(own):
                        backward = Action(Kind.BACKWARD, stage, k)
                        program += [Gather(stage), Reduce(backward) if k == m - 1 else backward, Free(stage)]
                return program
                """,
        ),
        Wrong(
            "the gradient is summed in every micro-batch",
            diagnosis=r"right, but rank \d sent [\d,]+ B where [\d,]+ must do.*\n.*sum its gradient once",
            edits=(
                (
                    "            program[-1] = Reduce(program[-1])\n",
                    "            program[-m:] = map(Reduce, program[-m:])\n",
                ),
            ),
        ),
        Wrong(
            "what the turn spares is spent on the first stage",
            diagnosis=r"right, but stage 0 is gathered 3 times where 2 must do",
            edits=(
                (
                    "        whole = soon\n",
                    "        if at > v and own[0] in soon and own[0] not in whole:\n"
                    "            program += [Free(own[0]), Gather(own[0])]\n"
                    "        whole = soon\n",
                ),
            ),
        ),
        Wrong(
            "what the turn spares is spent on a second sum",
            diagnosis=r"right, but the gradient of stage \d is summed 2 times where 1 must do",
            edits=(
                (
                    "            program[-1] = Reduce(program[-1])\n",
                    "            program[-1] = Reduce(program[-1])\n"
                    "            if stage == own[-1]:\n"
                    "                program[-m] = Reduce(program[-m])\n",
                ),
            ),
        ),
        Wrong(
            "everything is gathered to begin with",
            diagnosis=r"right, but a rank has 3 whole stages at a time where 2 must do",
            edits=(("order[at:]))[:2]", "order))"),),
        ),
        Wrong(
            "two stages ahead",
            diagnosis=r"right, but a rank has 3 whole stages at a time where 2 must do",
            edits=((")[:2]", ")[:3]"),),
        ),
        Wrong(
            "a stage is gathered when it is needed",
            diagnosis=r"right, but a step takes [\d.]+ units of time where [\d.]+ must do.*next one is gathered",
            edits=((")[:2]", ")[:1]"),),
        ),
        Wrong(
            "backward in the order of micro-batches",
            diagnosis=r"right, but a rank has 3 whole gradients at a time where 1 must do: sum each after its last B",
            body="""
                own = [chunk * p + rank for chunk in range(v)]
                program = [Gather(stage) for stage in own]
                for stage in own:
                    program += [Action(Kind.FORWARD, stage, k) for k in range(m)]
                for k in range(m):
                    backward = [Action(Kind.BACKWARD, stage, k) for stage in reversed(own)]
                    program += map(Reduce, backward) if k == m - 1 else backward
                return program + [Free(stage) for stage in own]
                """,
        ),
        Wrong(
            "nothing is gathered for backward",
            diagnosis=r"rank \d computes B\d\.0, and stage \d is not whole: gather it first",
            body="""
                own = [chunk * p + rank for chunk in range(v)]
                program = []
                for stage in own:
                    program += [Gather(stage), *(Action(Kind.FORWARD, stage, k) for k in range(m)), Free(stage)]
                for stage in reversed(own):
                    program += [Action(Kind.BACKWARD, stage, k) for k in range(m)]
                    program[-1] = Reduce(program[-1])
                return program
                """,
        ),
        Wrong(
            "nothing is freed in the end",
            diagnosis=r"still has stage \d whole when the step is over: free it",
            edits=((" + [Free(stage) for stage in whole]", ""),),
        ),
        Wrong(
            "no gradient is summed",
            diagnosis=r"rank 0 never sums what B\d\.3 has found",
            edits=(("            program[-1] = Reduce(program[-1])\n", "            pass\n"),),
        ),
        Wrong(
            "summed after the first backward",
            diagnosis=r"rank 0 never sums what B\d\.3 has found",
            edits=(("program[-1] = Reduce(program[-1])", "program[-m] = Reduce(program[-m])"),),
        ),
        Wrong(
            "stages of a rank stand side by side",
            diagnosis=r"rank \d computes F\d\.0, and stage \d is on rank \d",
            edits=(("chunk * p + rank", "rank * v + chunk"),),
        ),
        Wrong(
            "backward in the order of forward",
            diagnosis=r"this order never ends: rank 0 waits in B0\.0",
            edits=(("for stage in reversed(own)", "for stage in own"),),
        ),
        Wrong(
            "the last micro-batch is forgotten",
            diagnosis=r"F0\.3 is missing",
            edits=(("for k in range(m)]", "for k in range(m - 1)]"),),
        ),
    ),
)
