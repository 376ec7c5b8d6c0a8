"""A layout as a `reference.plan.Plan`, with which this course really trains, and back; and as words."""

from collections.abc import Mapping
from math import prod
from typing import Any

from reference.choices import Recompute
from reference.errors import BadInput
from reference.plan import LOOPED, DataParallelism, PipelineSchedule, Plan

from .job import Job
from .layouts import SIZES, Layouts, Sharding
from .refusals import V_SHAPED, misfit

FORMS = {
    Sharding.NONE: DataParallelism.DDP,
    Sharding.ZERO1: DataParallelism.ZERO1,
    Sharding.ZERO2: DataParallelism.ZERO2,
    Sharding.FSDP: DataParallelism.FSDP,
}
SHARDINGS = {form: sharding for sharding, form in FORMS.items()} | {
    DataParallelism.NAIVE: Sharding.NONE,
    DataParallelism.FLAT: Sharding.NONE,
}


def plan_of(job: Job, layout: Layouts) -> Plan:
    """The plan that a single layout stands for.

    Raises:
        BadInput: if a plan does not take it, with the reason.
    """
    return Plan(
        data_parallel=FORMS[layout.sharding],
        micro_batches=int(layout.micro_batches(job)),
        recompute=layout.recompute,
        tensor_parallel=int(layout.tp),
        sequence_parallel=layout.sequence_parallel,
        context_parallel=int(layout.cp),
        expert_parallel=int(layout.ep),
        expert_tensor_parallel=int(layout.etp),
        pipeline_parallel=int(layout.pp),
        schedule=layout.schedule,
        stages_per_rank=int(layout.chunks) if layout.schedule in LOOPED else None,
    )


def layout_of(job: Job, plan: Plan) -> Layouts:
    """The layout of a plan on the GPUs of a job. What changes no count is left out, as how a window is shared.

    Raises:
        BadInput: for hybrid sharding, fewer bits and a learner's own form, of which nothing is predicted, and for a
            batch that does not divide.
    """
    if plan.data_parallel not in SHARDINGS:
        raise BadInput(f"nothing is predicted of {plan.data_parallel}: take one of {', '.join(SHARDINGS)}")
    if plan.sends_fewer_bits:
        raise BadInput("nothing is predicted of quantised weights and gradients or secondary shards: leave them out")
    dp = plan.dp_size(job.cluster.gpus)
    if dp == 0 or job.batch % (dp * plan.micro_batches):
        raise BadInput(f"{job.batch} windows do not divide among {dp} replicas of {plan.micro_batches} micro-batches")
    chunks = 2 if plan.schedule in V_SHAPED or plan.stages_per_rank is None else plan.stages_per_rank
    return Layouts(
        tp=plan.tensor_parallel,
        cp=plan.context_parallel,
        dp=dp,
        pp=plan.pipeline_parallel,
        ep=plan.expert_parallel,
        etp=plan.expert_tensor_parallel,
        micro_batch=job.batch // (dp * plan.micro_batches),
        chunks=chunks if plan.schedule in (*LOOPED, *V_SHAPED) else 1,
        sharding=SHARDINGS[plan.data_parallel],
        recompute=plan.recompute,
        schedule=plan.schedule,
        sequence_parallel=plan.sequence_parallel,
    )


CHOICES = (("sharding", Sharding), ("recompute", Recompute), ("schedule", PipelineSchedule))


def values_in(words: str) -> dict[str, Any]:
    """What a text says of a layout, by the names of columns and choices: the inverse of `str`.

    Args:
        words: as in "tp 8, pp 16, fsdp, recompute full, sequence parallel". Numbers have names; "none" has one, too.

    Raises:
        BadInput: for a part that means nothing, or that says again what another one has said.
    """
    values: dict[str, Any] = {}
    for part in filter(None, (part.strip() for part in words.replace("=", " ").split(","))):
        name, value = _meant(part)
        if name in values:
            raise BadInput(f"{part!r} says {name} for the second time")
        values[name] = value
    return values


def _meant(part: str) -> tuple[str, Any]:
    *before, last = part.lower().replace("_", " ").split() or [""]
    name = "_".join(before)
    if name in SIZES and last.isdecimal() and int(last) >= 1:
        return name, int(last)
    if last == "parallel" and name in ("sequence", "no_sequence"):
        return "sequence_parallel", name == "sequence"
    for choice, kind in CHOICES:
        if last in list(kind) and name in (choice, "" if last != "none" else choice):
            return choice, kind(last)
    known = ", ".join(word for _, kind in CHOICES for word in kind if word != "none")
    raise BadInput(
        f"{part!r} says nothing of a layout: name a size with a number of 1 or more ({', '.join(SIZES)}), or write "
        f"sequence parallel, {known}, or recompute none"
    )


def why_none(job: Job, values: Mapping[str, Any]) -> str:
    """Why no layout has these values: what does not divide where all others are as usual.

    Args:
        job: what is to be trained.
        values: by the names of columns and choices.
    """
    given = [axis for axis in ("tp", "cp", "pp") if axis in values]
    together = prod(values[axis] for axis in given)
    if "dp" not in values and job.cluster.gpus % together:
        words = " x ".join(f"{axis} {values[axis]}" for axis in given)
        return f"{job.cluster.gpus:,} GPUs do not divide into groups of {together:,}: {words}"
    rest = {"dp": job.cluster.gpus / together}
    schedule = values.get("schedule", PipelineSchedule.ONE_F_ONE_B)
    if values.get("chunks", 1) > 1 and "schedule" not in values:
        rest["schedule"] = PipelineSchedule.INTERLEAVED
    if schedule in (*LOOPED, *V_SHAPED):
        rest["chunks"] = 2
    wrong = misfit(job, Layouts(**{**rest, **values}))
    return wrong or "with the other sizes as they may be, something does not divide"
