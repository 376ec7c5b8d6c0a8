"""frameworks.deepspeed_to_fsdp2: the same bytes, told in other words."""

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Scale, Wrong, cases, drawn
from reference.frameworks.answers.translated import to_fsdp2

SAID = {  # which of the three sizes are written down
    "all": ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"),
    "no batch": ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps"),
    "no micro-batch": ("train_batch_size", "gradient_accumulation_steps"),
    "no accumulation": ("train_batch_size", "train_micro_batch_size_per_gpu"),
    "the batch alone": ("train_batch_size",),
    "the micro-batch alone": ("train_micro_batch_size_per_gpu",),
}
KINDS = {"bf16": "bfloat16", "fp32": "float32"}


def sizes(case):
    """Windows of a micro-batch, and micro-batches: where accumulation is not said and cannot follow, there is one."""
    return case.windows, 1 if "alone" in case.said else case.micro_batches


def configuration(case, rank):
    windows, micro_batches = sizes(case)
    known = {
        "train_batch_size": windows * micro_batches * case.ranks,
        "train_micro_batch_size_per_gpu": windows,
        "gradient_accumulation_steps": micro_batches,
    }
    config = {name: known[name] for name in SAID[case.said]} | {"zero_optimization": {"stage": case.stage}}
    if case.stage == 3 and case.node > 1:
        config["zero_optimization"]["zero_hpz_partition_size"] = case.node
    if case.bf16:
        config["bf16"] = {"enabled": True}
    if case.sent:
        config["communication_data_type"] = case.sent
    return {"config": config, "ranks": case.ranks}


def told(case, inputs):
    windows, micro_batches = sizes(case)
    table = {1: (False, False, False), 2: (False, False, True), 3: (case.node if case.node > 1 else True, True, True)}
    dtype = KINDS[case.sent] if case.sent else "bfloat16" if case.bf16 else "float32"
    return [(windows, micro_batches, *table[case.stage], dtype)]


PUZZLE = Puzzle(
    name="frameworks.deepspeed_to_fsdp2",
    title="From DeepSpeed to fully_shard",
    statement="""
        A run is configured for DeepSpeed, and shall be continued with torch's `fully_shard`, such that the same bytes
        travel in a step of K micro-batches:

            stage 1   gradients once, parameters once
            stage 2   gradients in each micro-batch, parameters once
            stage 3   gradients in each micro-batch, parameters twice in each: before forward, and before backward
            with zero_hpz_partition_size = s above 1, parameters come from s ranks alone the second time

        `fully_shard` has these settings. `reshard_after_forward` says whether parameters that were gathered for forward
        are dropped afterwards (True), kept for backward (False), or kept by s ranks together (a number s). And before
        each micro-batch but the last a loop may tell the model `set_reshard_after_backward(False)`, which keeps them
        until the next micro-batch, and `set_requires_gradient_sync(False)`, which lets gradients wait in full.

        In DeepSpeed train_batch_size = train_micro_batch_size_per_gpu · gradient_accumulation_steps · ranks, and what
        is missing follows; accumulation is 1 where it cannot follow. Gradients travel in communication_data_type
        ("fp32" or "bf16"), or, where that is not said, in what the model computes with: bfloat16 with bf16.enabled, and
        float32 without.

        Args:
            config: as in ds_config.json; it may lack everything but zero_optimization.stage and one of the sizes.
            ranks: n.

        Returns: (windows of a micro-batch on a rank, K, reshard_after_forward, what set_reshard_after_backward is
        given before all micro-batches but the last, what set_requires_gradient_sync is given there, "float32" or
        "bfloat16": `reduce_dtype`).

        Budget: a few look-ups.
        """,
    function=to_fsdp2,
    cases=cases(
        worlds=(1,),
        stage=(1, 2, 3),
        said=("all",),
        windows=(2,),
        micro_batches=(4,),
        ranks=(8,),
        node=(1,),
        bf16=(False,),
        sent=("",),
    )
    + cases(
        worlds=(1,),
        stage=(3,),
        said=tuple(SAID),
        windows=(3,),
        micro_batches=(4,),
        ranks=(16,),
        node=(8,),
        bf16=(True,),
        sent=("", "fp32"),
    )
    + cases(
        worlds=(1,),
        stage=(2,),
        said=("no micro-batch", "the batch alone"),
        windows=(6,),
        micro_batches=(2,),
        ranks=(4,),
        node=(1,),
        bf16=(False,),
        sent=("bf16",),
    ),
    drawn=(
        drawn(
            worlds=(1,),
            stage=(1, 2, 3),
            said=tuple(SAID),
            windows=range(1, 9),
            micro_batches=range(1, 9),
            ranks=range(2, 64),
            node=(1, 2, 4),
            bf16=(False, True),
            sent=("", "fp32", "bf16"),
        ),
    ),
    scale=Scale(
        cases(
            worlds=(1,),
            stage=(3,),
            said=("no micro-batch", "no accumulation"),
            windows=(10**9,),
            micro_batches=(10**9 + 7,),
            ranks=(10**6,),
            node=(8,),
            bf16=(True,),
            sent=("",),
        ),
        "windows, micro-batches or ranks",
    ),
    inputs=configuration,
    oracle=told,
    budgets=(
        Budget(
            Measure.LINES,
            target=lambda case: 40,
            optimum=lambda case: 10,
            why="each setting follows from one or two entries",
        ),
    ),
    hints=(
        "For each stage: how often do parameters travel in a step of K micro-batches, and how often gradients? Which "
        "of the three settings decides each of these?",
        "Parameters travel once a step only if they are dropped neither after forward nor after a backward that is not "
        "the last. Gradients travel once only if they wait.",
        "Stage 1 is False, False, False; stage 2 is False, False, True; stage 3 is True (or s), True, True. Of batch, "
        "micro-batch and accumulation, find the micro-batch first: batch // (ranks · (accumulation or 1)).",
    ),
    wrong=(
        Wrong(
            "ZeRO-2 is reshard_after_forward=False alone",
            diagnosis=r"stage=1.*result\[3\]: expected False, got True|expected False, got True",
            edits=(("after_forward, stage == 3, stage >= 2", "after_forward, True, stage >= 2"),),
        ),
        Wrong(
            "gradients wait in stage 2",
            diagnosis=r"result\[4\]: expected True, got False",
            edits=(("stage >= 2, reduced", "stage == 3, reduced"),),
        ),
        Wrong(
            "hpZ is forgotten",
            diagnosis=r"result\[2\]: expected 8, got True",
            edits=(("(node if node > 1 else True) if stage == 3 else False", "stage == 3"),),
        ),
        Wrong(
            "the batch is that of a rank",
            diagnosis=r"expected 3, got",
            edits=(("batch // (ranks * (micro_batches or 1))", "batch // (micro_batches or 1)"),),
        ),
        Wrong(
            "accumulation must be said",
            diagnosis=r"result\[1\]: expected 4, got 1",
            edits=(("batch // (ranks * windows) if batch else 1", "1"),),
        ),
        Wrong(
            "gradients travel in what is computed with",
            diagnosis=r"result\[5\]: expected 'float32', got 'bfloat16'",
            edits=(('config.get("communication_data_type")', '""'),),
        ),
        Wrong(
            "sizes are tried out",
            diagnosis=r"right, but it runs [\d,]+ lines where 40 must do.*\n.*one or two entries",
            edits=(
                (
                    "        windows = batch // (ranks * (micro_batches or 1))\n",
                    "        windows = 0\n        while (windows + 1) * ranks * (micro_batches or 1) <= batch:\n"
                    "            windows += 1\n            for _ in range(20):\n                pass\n",
                ),
            ),
        ),
    ),
)
