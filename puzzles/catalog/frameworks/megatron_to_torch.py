"""frameworks.megatron_to_torch: flags of Megatron as a mesh, and what `fully_shard` and pipelining are told."""

from random import Random

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Scale, Wrong, cases, drawn
from reference.frameworks.answers.torch_mesh import to_torch

FORMS = ("replicas", "distributed optimizer", "no_shard", "optim", "optim_grads", "optim_grads_params")
FSDP = FORMS[2:]
SETTINGS = {"distributed optimizer": (False, False), "optim": (False, False), "optim_grads": (False, True)}


def pairs(case):
    """Flags with their values; "" for none."""
    data = case.copies * case.shards
    found = [("--micro-batch-size", case.windows), ("--global-batch-size", case.windows * case.micro_batches * data)]
    found += [("--num-layers", case.pp * case.stages * 3), ("--hidden-size", 4096), ("--bf16", "")]
    sizes = {"tensor-model": case.tp, "pipeline-model": case.pp, "context": case.cp}
    found += [(f"--{name}-parallel-size", size) for name, size in sizes.items() if size > 1]
    if case.tp > 1:
        found.append(("--sequence-parallel", ""))
    if case.pp > 1 and case.stages > 1:
        by_stages, by_layers = "--num-virtual-stages-per-pipeline-rank", "--num-layers-per-virtual-pipeline-stage"
        found.append((by_layers, 3) if case.by_layers else (by_stages, case.stages))
    if case.form != "replicas":
        found.append(("--use-distributed-optimizer", ""))
    if case.form in FSDP:
        found.append(("--use-megatron-fsdp", ""))
    if case.form in FSDP[1:]:
        found.append(("--data-parallel-sharding-strategy", case.form))
    elif case.form == "distributed optimizer":
        found.append(("--overlap-param-gather", ""))
    if case.copies > 1 and case.form in FSDP[1:]:
        found.append(("--num-distributed-optimizer-instances", case.copies))
    return found


def command_line(case, rank):
    draw = Random(f"{case.salt} {case.form}")
    found = pairs(case)
    draw.shuffle(found)
    flags = []
    for flag, value in found:
        if value == "":
            flags.append(flag)
        else:
            flags += [f"{flag}={value}"] if draw.random() < 0.5 else [flag, str(value)]
    return {"flags": flags, "ranks": case.tp * case.pp * case.cp * case.copies * case.shards}


def told(case, inputs):
    stages = case.stages if case.pp > 1 else 1
    schedule = "" if case.pp == 1 else "Schedule1F1B" if stages == 1 else "ScheduleInterleaved1F1B"
    rest = (case.micro_batches, stages, schedule)
    if case.form in ("replicas", "no_shard"):
        mesh = (case.pp, case.copies * case.shards, 1, case.cp, case.tp)
        return [(mesh, 1, None, None, *rest)]
    copies, shards = (1, case.copies * case.shards) if case.form not in FSDP else (case.copies, case.shards)
    mesh = (case.pp, copies, shards, case.cp, case.tp)
    return [(mesh, shards * case.cp, *SETTINGS.get(case.form, (True, True)), *rest)]


PUZZLE = Puzzle(
    name="frameworks.megatron_to_torch",
    title="From Megatron's flags to a mesh",
    statement="""
        A run was started with Megatron's flags, and shall be continued with torch's own pieces on the same ranks, such
        that the same ranks share the same things and the same bytes travel.

        Megatron numbers ranks along tensor parallelism first, then context, then data, then pipeline.
        `init_device_mesh` numbers them along the last dim first. The mesh shall have five dims, those of size 1 too:
        pipeline, replicas, shards, context, tensor. Ranks divided by tensor, pipeline and context are replicas, or
        shards, or, with --num-distributed-optimizer-instances R, R replicas of shards.

            neither of the two switches below       replicas
            --use-distributed-optimizer             shards: gradients travel once a step, parameters once
            --use-megatron-fsdp                     what --data-parallel-sharding-strategy says: no_shard, which is its
                                                    default, is replicas; optim is as above; optim_grads shards, too:
                                                    gradients travel in each micro-batch, parameters once;
                                                    optim_grads_params: parameters twice in each micro-batch

        Ranks of one context read the same windows, have parameters in common, and sum gradients like any replicas: so
        each parameter is shared out over shards and context together, for `fully_shard` a flattened dim of the mesh.

        --num-virtual-stages-per-pipeline-rank says how many stages a rank has, or else
        --num-layers-per-virtual-pipeline-stage does, with --num-layers; without both it has one. torch calls the
        schedules Schedule1F1B, and ScheduleInterleaved1F1B for several stages.

        Args:
            flags: the words of the command line, such as "--bf16", "--num-layers", "32", or "--num-layers=32". Some
                mean nothing here. The two batch sizes are always there: windows of a micro-batch of one replica, and of
                a step.
            ranks: n.

        Returns: (sizes of the mesh, ranks that share a parameter out, reshard_after_forward, what
        set_requires_gradient_sync is given before all micro-batches but the last, micro-batches of a step, stages of a
        rank, name of the schedule). Without shards the second is 1, and the two settings are None; without a pipeline
        the name is "".

        Budget: a look at each word.
        """,
    function=to_torch,
    cases=cases(
        worlds=(1,),
        form=FORMS,
        tp=(4,),
        pp=(2,),
        cp=(1, 2),
        copies=(1,),
        shards=(3,),
        stages=(1,),
        by_layers=(False,),
        windows=(2,),
        micro_batches=(8,),
        salt=(0,),
    )
    + cases(
        worlds=(1,),
        form=("optim_grads_params", "no_shard"),
        tp=(1, 2),
        pp=(1, 4),
        cp=(2,),
        copies=(2,),
        shards=(4,),
        stages=(2,),
        by_layers=(False, True),
        windows=(1,),
        micro_batches=(6,),
        salt=(1, 2),
    ),
    drawn=(
        drawn(
            worlds=(1,),
            form=FORMS,
            tp=(1, 2, 8),
            pp=(1, 2, 4),
            cp=(1, 2, 4),
            copies=(1, 2, 3),
            shards=range(1, 9),
            stages=(1, 2, 3),
            by_layers=(False, True),
            windows=range(1, 5),
            micro_batches=range(1, 17),
            salt=range(1000),
        ),
    ),
    scale=Scale(
        cases(
            worlds=(1,),
            form=("optim_grads",),
            tp=(8,),
            pp=(16,),
            cp=(4,),
            copies=(2,),
            shards=(10**6,),
            stages=(2,),
            by_layers=(True,),
            windows=(7,),
            micro_batches=(10**9,),
            salt=(1,),
        ),
        "windows, micro-batches or ranks",
    ),
    inputs=command_line,
    oracle=told,
    budgets=(
        Budget(
            Measure.LINES,
            target=lambda case: 250,
            optimum=lambda case: 80,
            why="one look at each word, and then each setting follows from one or two flags",
        ),
    ),
    hints=(
        "Turn the words into a dict first: split those with =, and let a flag that is followed by another have none.",
        "The last dim of a mesh is the one along which neighbouring ranks differ: tensor. The first is pipeline.",
        "data = ranks // (tensor · pipeline · context); micro-batches = global // (micro · data); a parameter is "
        "shared out over (data // copies) · context ranks. optim: False, False; optim_grads: False, True; "
        "optim_grads_params: True, True.",
    ),
    wrong=(
        Wrong(
            "ranks are numbered along data first",
            diagnosis=r"result\[0\]",
            edits=(
                (
                    "mesh = (pipeline, copies, data // copies, context, tensor)",
                    "mesh = (pipeline, context, copies, data // copies, tensor)",
                ),
            ),
        ),
        Wrong(
            "a context does not share parameters out",
            diagnosis=r"result\[1\]",
            edits=(("data // copies * context, not kept", "data // copies, not kept"),),
        ),
        Wrong(
            "a context reads windows of its own",
            diagnosis=r"result\[4\]",
            edits=(('(int(said["--micro-batch-size"]) * data)', '(int(said["--micro-batch-size"]) * data * context)'),),
        ),
        Wrong(
            "the distributed optimizer is ZeRO-2",
            diagnosis=r"result\[3\]",
            edits=(
                (
                    'sync = strategy != "optim_grads_params", strategy != "optim"',
                    'sync = strategy != "optim_grads_params", True',
                ),
            ),
        ),
        Wrong(
            "Megatron's FSDP shards by itself",
            diagnosis=r"result\[[01]\]",
            edits=(
                (
                    '"--data-parallel-sharding-strategy", "no_shard")',
                    '"--data-parallel-sharding-strategy", "optim_grads_params")',
                ),
            ),
        ),
        Wrong(
            "layers of a virtual stage are stages",
            diagnosis=r"result\[5\]",
            edits=(
                (
                    'int(said["--num-layers"]) // (pipeline * int(said["--num-layers-per-virtual-pipeline-stage"]))',
                    'int(said["--num-layers-per-virtual-pipeline-stage"])',
                ),
            ),
        ),
        Wrong(
            "words with = are not split",
            diagnosis=r"KeyError|expected",
            edits=(('[part for word in flags for part in word.split("=", 1)]', "list(flags)"),),
        ),
        Wrong(
            "sizes are tried out",
            diagnosis=r"right, but it runs [\d,]+ lines where 250 must do.*\n.*one or two flags",
            edits=(
                (
                    "    said = {}\n",
                    "    said = {}\n    for _ in range(min(ranks, 10**5)):\n"
                    "        for _ in range(20):\n            pass\n",
                ),
            ),
        ),
    ),
)
