"""frameworks.plan_to_megatron: what follows from other numbers has no flag."""

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Scale, Wrong, cases, drawn
from reference.frameworks.answers.megatron_flags import to_megatron

FORMS = ("flat", "ddp", "zero1", "zero2", "fsdp", "hsdp")
TALKS = {"ring": "p2p", "all-gather": "all_gather", "ulysses": "a2a"}
METHODS = tuple(TALKS)
RECOMPUTE = ("none", "selective", "full")


def plan_of(case, rank):
    """Fields that are not as by default; and two that may be left to their default."""
    plan = {"data_parallel": case.form, "micro_batches": case.micro_batches, "recompute": case.recompute}
    plan = {name: value for name, value in plan.items() if value not in ("flat", 1, "none")}
    if case.tp > 1:
        plan |= {"tensor_parallel": case.tp, "sequence_parallel": True}
    if case.pp > 1:
        plan["pipeline_parallel"] = case.pp
        if case.stages > 1:
            plan |= {"schedule": "interleaved"} | ({"stages_per_rank": case.stages} if case.stages != 2 else {})
    if case.cp > 1:
        plan |= {"context_parallel": case.cp, "context_method": case.method}
    if case.ep > 1:
        plan["expert_parallel"] = case.ep
    if case.form == "hsdp" and case.copies != 2:
        plan["dp_replicate"] = case.copies
    replicas = case.copies * case.shards
    batch = case.windows * case.micro_batches * replicas
    return {"plan": plan, "ranks": replicas * case.tp * case.pp * case.cp, "batch": batch}


def told(case, inputs):
    """By what the case says, one flag after the other."""
    wanted = [
        ("--tensor-model-parallel-size", case.tp, case.tp > 1),
        ("--sequence-parallel", True, case.tp > 1),
        ("--pipeline-model-parallel-size", case.pp, case.pp > 1),
        ("--num-virtual-stages-per-pipeline-rank", case.stages, case.pp > 1 and case.stages > 1),
        ("--context-parallel-size", case.cp, case.cp > 1),
        ("--cp-comm-type", TALKS[case.method], case.cp > 1 and case.method != "ring"),
        ("--expert-model-parallel-size", case.ep, case.ep > 1),
        ("--recompute-granularity", case.recompute, case.recompute != "none"),
        ("--recompute-method", "uniform", case.recompute == "full"),
        ("--recompute-num-layers", 1, case.recompute == "full"),
        ("--overlap-grad-reduce", True, case.form == "ddp"),
        ("--use-distributed-optimizer", True, case.form in FORMS[2:]),
        ("--use-megatron-fsdp", True, case.form in FORMS[3:]),
        ("--data-parallel-sharding-strategy", "optim_grads", case.form == "zero2"),
        ("--data-parallel-sharding-strategy", "optim_grads_params", case.form in ("fsdp", "hsdp")),
        ("--num-distributed-optimizer-instances", case.copies, case.form == "hsdp"),
        ("--global-batch-size", inputs[0]["batch"], True),
        ("--micro-batch-size", case.windows, True),
    ]
    words = [flag if value is True else f"{flag}={value}" for flag, value, is_said in wanted if is_said]
    return [sorted(words)]


PUZZLE = Puzzle(
    name="frameworks.plan_to_megatron",
    title="Our plan as Megatron's flags",
    statement="""
        A plan of this course shall run in Megatron. These are its flags:

            tensor_parallel      --tensor-model-parallel-size
            sequence_parallel    --sequence-parallel, without a value
            pipeline_parallel    --pipeline-model-parallel-size
            stages_per_rank      --num-virtual-stages-per-pipeline-rank, with schedule "interleaved"
            context_parallel     --context-parallel-size
            context_method       --cp-comm-type: "ring" is p2p, its default, "all-gather" is all_gather, "ulysses" a2a
            expert_parallel      --expert-model-parallel-size
            recompute            --recompute-granularity, "selective" or "full"; what is full takes
                                 --recompute-method uniform and --recompute-num-layers 1 besides
            data_parallel        "flat" nothing; "ddp" --overlap-grad-reduce; "zero1" --use-distributed-optimizer;
                                 "zero2" and "fsdp" the same, and --use-megatron-fsdp with
                                 --data-parallel-sharding-strategy optim_grads or optim_grads_params;
                                 "hsdp" as "fsdp", and --num-distributed-optimizer-instances as dp_replicate

        How many replicas there are has no flag: Megatron divides the ranks by tensor, pipeline and context parallelism.
        Experts are shared out among ranks that are replicas for everything else, and divide nothing. Nor has the number
        of micro-batches one: Megatron knows --global-batch-size, windows of a step of all ranks, and
        --micro-batch-size, windows of one micro-batch on one replica, and both are always said.

        Args:
            plan: the fields that differ from `Plan()`: data_parallel "flat", all sizes and micro_batches 1, schedule
                "1f1b", recompute "none"; stages_per_rank and dp_replicate are 2 where they are needed and not there.
            ranks: n.
            batch: windows of all ranks and micro-batches in a step.

        Returns: the words of the command line in alphabetical order, such as "--global-batch-size=512" and, without a
        value, "--sequence-parallel". No word that would say what Megatron does anyway.

        Budget: a few look-ups.
        """,
    function=to_megatron,
    cases=cases(
        worlds=(1,),
        form=FORMS,
        tp=(1, 4),
        pp=(2,),
        stages=(1, 2),
        cp=(1,),
        method=("ring",),
        ep=(1,),
        recompute=("none",),
        copies=(2,),
        shards=(3,),
        windows=(2,),
        micro_batches=(8,),
    )
    + cases(
        worlds=(1,),
        form=("zero1", "hsdp"),
        tp=(2,),
        pp=(1,),
        stages=(1,),
        cp=(2,),
        method=METHODS,
        ep=(4,),
        recompute=RECOMPUTE,
        copies=(4,),
        shards=(2,),
        windows=(3,),
        micro_batches=(1, 4),
    ),
    drawn=(
        drawn(
            worlds=(1,),
            form=FORMS,
            tp=(1, 2, 8),
            pp=(1, 2, 4),
            stages=(1, 2, 3),
            cp=(1, 2, 4),
            method=METHODS,
            ep=(1, 2, 8),
            recompute=RECOMPUTE,
            copies=range(2, 5),
            shards=range(1, 9),
            windows=range(1, 9),
            micro_batches=range(1, 17),
        ),
    ),
    scale=Scale(
        cases(
            worlds=(1,),
            form=("fsdp",),
            tp=(8,),
            pp=(16,),
            stages=(1,),
            cp=(16,),
            method=("ring",),
            ep=(1,),
            recompute=("full",),
            copies=(2,),
            shards=(10**6,),
            windows=(10**6 + 3,),
            micro_batches=(10**9,),
        ),
        "windows, micro-batches or ranks",
    ),
    inputs=plan_of,
    oracle=told,
    budgets=(
        Budget(
            Measure.LINES,
            target=lambda case: 90,
            optimum=lambda case: 30,
            why="each flag follows from one or two fields",
        ),
    ),
    hints=(
        "Start with the number of replicas. Which of the four axes divide the ranks, and which one does not?",
        "batch = windows of a micro-batch · micro_batches · replicas; and replicas = ranks / (tensor · pipeline · "
        "context).",
        "Sizes above 1 become their flags; then a flag for each of sequence_parallel, schedule, context_method and "
        "recompute; then the form of data parallelism: every form from zero1 on takes --use-distributed-optimizer.",
    ),
    wrong=(
        Wrong(
            "experts divide the ranks",
            diagnosis=r"--micro-batch-size",
            edits=(('"context_parallel"):\n', '"context_parallel", "expert_parallel"):\n'),),
        ),
        Wrong(
            "ranks of a context read windows of their own",
            diagnosis=r"--micro-batch-size",
            edits=((', "pipeline_parallel", "context_parallel"):\n', ', "pipeline_parallel"):\n'),),
        ),
        Wrong(
            "the micro-batch is that of all micro-batches",
            diagnosis=r"--micro-batch-size",
            edits=(('(replicas * plan.get("micro_batches", 1))', "replicas"),),
        ),
        Wrong(
            "FSDP without the distributed optimizer",
            diagnosis=r"expected \d+ values",
            edits=(('if form in ("zero1", *SHARDS):', 'if form == "zero1":'),),
        ),
        Wrong(
            "ZeRO-2 is the distributed optimizer",
            diagnosis=r"expected \d+ values",
            edits=(("    if form in SHARDS:\n", '    if form in ("fsdp", "hsdp"):\n'),),
        ),
        Wrong(
            "full recomputation is a granularity alone",
            diagnosis=r"expected \d+ values",
            edits=(('if plan["recompute"] == "full":', 'if plan["recompute"] == "uniform":'),),
        ),
        Wrong(
            "an interleaved schedule without stages",
            diagnosis=r"expected \d+ values",
            edits=(('if plan.get("schedule") == "interleaved":', 'if "stages_per_rank" in plan:'),),
        ),
        Wrong(
            "sizes are tried out",
            diagnosis=r"right, but it runs [\d,]+ lines where 90 must do.*\n.*one or two fields",
            edits=(
                (
                    '    flags["--global-batch-size"] = batch\n',
                    '    flags["--global-batch-size"] = batch\n    for _ in range(min(batch, 10**5)):\n        pass\n',
                ),
            ),
        ),
    ),
)
