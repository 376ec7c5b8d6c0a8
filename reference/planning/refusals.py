"""Why a layout is not taken: it does not divide, it does not fit, or another one is faster, and by what.

What must divide is a list of conditions, each of which looks at columns: `search.py` keeps the layouts for which all of
them hold, and a person who asks for one that is not there reads the first that does not. They say what
`reference.plan.Plan.require_fit` says, for many layouts at once and without torch.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

import numpy as np

from reference.plan import LOOPED, MOST_ACTIONS, PipelineSchedule

from .job import Job
from .layouts import Column, Layouts
from .memory import EVEN
from .predict import Prediction, predict
from .traffic import leaves_node

V_SHAPED = EVEN
"""Schedules with two stages on each rank, the first ones down one side of a V, the second ones up the other."""

Values = Mapping[str, Any]
"""Columns and choices of layouts, by their names."""


@dataclass(frozen=True)
class Condition:
    """Something that must hold of a layout.

    Attributes:
        about: names of the columns and choices that it looks at.
        holds: of a job and these, a mask.
        says: what is wrong where it does not hold, and what would do; of a job and the values of a single layout.
    """

    about: tuple[str, ...]
    holds: Callable[[Job, Values], Column]
    says: Callable[[Job, Values], str]


def _divides(whole: Column, by: Column) -> Column:
    return np.mod(whole, by) == 0


def _shared(about: str, among: str, whole: Callable[[Job], int], words: str) -> Condition:
    """So many of something divide among ranks of one axis."""
    return Condition(
        (about,),
        lambda job, at: _divides(whole(job), at[about]),
        lambda job, at: f"{whole(job):,} {words} do not divide among {at[about]:.0f} {among}",
    )


def _stages(at: Values) -> Column:
    return at["pp"] * at["chunks"]


def _has_chunks(job: Job, at: Values) -> Column:
    chunks, schedule = at["chunks"], at["schedule"]
    if schedule in LOOPED:
        return (chunks > 1) & (at["pp"] > 1)
    if schedule in V_SHAPED:
        return (chunks == 2) & (at["pp"] > 1)
    return (chunks == 1) & ((at["pp"] > 1) | (schedule is PipelineSchedule.ONE_F_ONE_B))


def _chunks_wanted(job: Job, at: Values) -> str:
    if at["pp"] == 1:
        return f"one stage is no pipeline: {at['schedule']} with {at['chunks']:.0f} chunks takes pp of 2 or more"
    wanted = "2 or more" if at["schedule"] in LOOPED else "2" if at["schedule"] in V_SHAPED else "1"
    return f"a rank has {wanted} chunks in {at['schedule']}, not {at['chunks']:.0f}"


def _expert_ranks(at: Values) -> Column:
    return at["tp"] * at["cp"] * at["dp"]


AXES = ("tp", "cp", "dp", "pp")

CONDITIONS: tuple[Condition, ...] = (
    Condition(
        AXES,
        lambda job, at: at["tp"] * at["cp"] * at["dp"] * at["pp"] == job.cluster.gpus,
        lambda job, at: (
            " x ".join(f"{name} {at[name]:.0f}" for name in AXES)
            + f" are {at['tp'] * at['cp'] * at['dp'] * at['pp']:,.0f} ranks, and there are {job.cluster.gpus:,} GPUs"
        ),
    ),
    _shared("tp", "tensor-parallel ranks", lambda job: job.model.heads, "heads"),
    _shared("tp", "tensor-parallel ranks", lambda job: job.model.hidden, "hidden features"),
    Condition(
        ("tp",),
        lambda job, at: _divides(job.model.kv_heads, at["tp"]) | _divides(at["tp"], job.model.kv_heads),
        lambda job, at: (
            f"{job.model.kv_heads} key-value heads do not divide among {at['tp']:.0f} tensor-parallel ranks, "
            "nor do these among them"
        ),
    ),
    _shared("cp", "ranks that share a window", lambda job: job.sequence, "tokens of a window"),
    Condition(
        ("sequence_parallel", "tp"),
        lambda job, at: np.logical_not(at["sequence_parallel"]) | (at["tp"] > 1),
        lambda job, at: "sequence parallelism shares tokens among tensor-parallel ranks: it takes tp of 2 or more",
    ),
    Condition(
        ("sequence_parallel", "tp", "cp"),
        lambda job, at: np.logical_not(at["sequence_parallel"]) | (at["cp"] > 1) | _divides(job.sequence, at["tp"]),
        lambda job, at: f"{job.sequence:,} tokens of a window do not divide among {at['tp']:.0f} tensor-parallel ranks",
    ),
    Condition(
        ("dp", "micro_batch"),
        lambda job, at: _divides(job.batch, at["dp"] * at["micro_batch"]),
        lambda job, at: (
            f"{job.batch:,} windows do not divide among {at['dp']:.0f} replicas in micro-batches of "
            f"{at['micro_batch']:.0f}"
        ),
    ),
    Condition(("schedule", "pp", "chunks"), _has_chunks, _chunks_wanted),
    Condition(
        ("pp", "chunks"),
        lambda job, at: (at["pp"] == 1) | (_stages(at) <= job.model.layers),
        lambda job, at: f"{job.model.layers} layers do not make {_stages(at):.0f} stages",
    ),
    Condition(
        ("dp", "micro_batch", "pp", "chunks"),
        lambda job, at: (at["pp"] == 1) | (2 * _stages(at) * job.batch <= MOST_ACTIONS * at["dp"] * at["micro_batch"]),
        lambda job, at: (
            f"{job.batch / (at['dp'] * at['micro_batch']):,.0f} micro-batches on {_stages(at):.0f} stages are a "
            f"schedule of more than {MOST_ACTIONS:,} actions"
        ),
    ),
    Condition(
        ("ep", "etp"),
        lambda job, at: (at["ep"] * at["etp"] == 1) | (at["ep"] <= job.model.experts),
        lambda job, at: (
            f"{at['ep']:.0f} ranks share out {job.model.experts} experts: each has one or more of them"
            if job.model.experts
            else "this model has no experts to share out: ep and etp are 1"
        ),
    ),
    Condition(
        ("etp",),
        lambda job, at: (at["etp"] == 1) | _divides(getattr(job.model, "expert_hidden", 1), at["etp"]),
        lambda job, at: f"{job.model.expert_hidden:,} features of an expert do not divide among {at['etp']:.0f} ranks",
    ),
    Condition(
        ("tp", "cp", "dp", "ep", "etp"),
        lambda job, at: _divides(_expert_ranks(at), at["ep"] * at["etp"]),
        lambda job, at: (
            f"{_expert_ranks(at):,.0f} ranks of a stage do not divide into {at['ep']:.0f} x {at['etp']:.0f} that share "
            "out experts"
        ),
    ),
)
"""All that must hold of a layout before it is worth a prediction."""


def values_of(layouts: Layouts) -> Values:
    """Columns and choices by their names."""
    return {each.name: getattr(layouts, each.name) for each in fields(layouts)}


def divides(job: Job, layouts: Layouts) -> Column:
    """A mask: for which layouts all conditions hold."""
    at = values_of(layouts)
    return np.logical_and.reduce([condition.holds(job, at) for condition in CONDITIONS])


def misfit(job: Job, layout: Layouts) -> str | None:
    """What does not divide in a single layout, if anything."""
    at = values_of(layout)
    return next((condition.says(job, at) for condition in CONDITIONS if not condition.holds(job, at)), None)


class Objection(StrEnum):
    """What can stand against a layout."""

    DIVIDES = "does not divide"
    MEMORY = "does not fit"
    NODE = "leaves the node"
    BUBBLE = "bubble"
    RECOMPUTE = "computes again"
    SLOWER = "slower"


@dataclass(frozen=True)
class Verdict:
    """One reason against a layout.

    Attributes:
        objection: its kind.
        amount: bytes that are missing, or a share: of the step, or of the best one's seconds.
        says: a sentence.
    """

    objection: Objection
    amount: float
    says: str

    def __str__(self) -> str:
        return self.says


MUCH = 0.1  # of a step: a bubble that is worth a word


def verdicts(job: Job, layout: Layouts, best: Prediction | None = None) -> list[Verdict]:
    """All that stands against a single layout; nothing against the best.

    Args:
        job: what is to be trained.
        layout: one.
        best: the prediction of the fastest that fits, if there is one.
    """
    if wrong := misfit(job, layout):
        return [Verdict(Objection.DIVIDES, 1.0, f"does not divide: {wrong}")]
    found = predict(job, layout)
    reasons = [_memory(found), _node(found), _bubble(found), _again(found)]
    if best is not None:
        reasons.append(_slower(found, best))
    return [reason for reason in reasons if reason]


def _memory(found: Prediction) -> Verdict | None:
    gpu = found.job.cluster.gpu
    over = float(found.bytes) - gpu.memory
    if over <= 0:
        return None
    part, size = max(found.room.items(), key=lambda each: float(each[1]))
    says = (
        f"does not fit by {gigabytes(over)}: the fullest rank holds {gigabytes(found.bytes)} and has "
        f"{gigabytes(gpu.memory)}; {part} take {gigabytes(size)}"
    )
    return Verdict(Objection.MEMORY, over, says)


def _node(found: Prediction) -> Verdict | None:
    """Of tensor parallelism, and of what experts share, when they go through the network between nodes."""
    layout, cluster = found.layouts, found.job.cluster
    for axis, ranks, words in (
        ("tp", layout.tp, f"tensor axis of {layout.tp:.0f}"),
        ("ep", layout.ep * layout.etp, f"expert axes of {layout.ep:.0f} x {layout.etp:.0f}"),
    ):
        if leaves_node(cluster, ranks):
            share = float(found.time[axis] / found.seconds)
            says = f"{words} leaves the node of {cluster.per_node} GPUs: {percent(share)} of the step is waiting for it"
            return Verdict(Objection.NODE, share, says)
    return None


def _bubble(found: Prediction) -> Verdict | None:
    share = float(found.time["bubble"] / found.seconds)
    if share < MUCH:
        return None
    m = float(found.layouts.micro_batches(found.job))
    says = f"bubble {percent(share)} of the step: {found.layouts.pp:.0f} stages for {m:.0f} micro-batches"
    return Verdict(Objection.BUBBLE, share, says)


def _again(found: Prediction) -> Verdict | None:
    share = float(found.hfu / found.mfu) - 1
    if share < MUCH:
        return None
    says = f"computes {percent(share)} again: recompute {found.layouts.recompute}"
    return Verdict(Objection.RECOMPUTE, share, says)


def _slower(found: Prediction, best: Prediction) -> Verdict | None:
    share = float(found.seconds / best.seconds) - 1
    if share <= 0:
        return None
    part, more = max(
        ((part, float(seconds - best.time[part])) for part, seconds in found.time.items()), key=lambda each: each[1]
    )
    says = f"{percent(share)} slower than the best ({best.layouts}): most of it is {part}, {more:.2f} s more of a step"
    return Verdict(Objection.SLOWER, share, says)


def gigabytes(size: Column) -> str:
    """10^9 bytes, as papers have it."""
    return f"{float(size) / 1e9:.1f} GB"


def percent(share: float) -> str:
    """With a digit behind the point where that is needed."""
    return f"{100 * share:.0f} %" if share >= MUCH else f"{100 * share:.1f} %"
