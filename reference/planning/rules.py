"""The field's rules of thumb as a list of decisions, each with its reason and its source; and what each of them loses.

A layout begins as data parallelism alone. Each rule looks at it and decides some of its columns or choices; the next
one takes what comes out. What a rule loses is found by two searches: the fastest layout among those that agree with all
rules before it, and the fastest among those that agree with it, too. So losses multiply to that of the whole list.

    for decision in advise(job).decisions:
        print(decision.rule.name, decision.values)
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from reference.choices import Recompute
from reference.errors import BadInput
from reference.models.config import GPTConfig, preset
from reference.plan import PipelineSchedule

from .hardware import Gpu, GpuCluster
from .job import Job
from .layouts import SIZES, Layouts, Sharding
from .predict import Prediction, predict
from .refusals import CONDITIONS, misfit, values_of
from .search import SearchSpace, divisors, search, sums_gradients

LONG = 8192  # tokens: from here on a window is shared
FILLED = 4  # micro-batches for each stage: then a bubble is small


@dataclass(frozen=True)
class Rule:
    """One line of the list.

    Attributes:
        name: what it says.
        decides: columns and choices of a layout that it takes.
        apply: from a job and the layout so far, all of it in one column, to the next layout.
        because: its reason.
        source: who says so.
    """

    name: str
    decides: tuple[str, ...]
    apply: Callable[[Job, Layouts], Layouts]
    because: str
    source: str


def works(job: Job, layout: Layouts) -> bool:
    """Whether a single layout divides and fits."""
    return misfit(job, layout) is None and bool(predict(job, layout).fits)


def data_parallelism_first(job: Job, layout: Layouts) -> Layouts:
    """All ranks read windows of their own, and share out the optimizer's state."""
    return Layouts(dp=job.cluster.gpus, sharding=Sharding.ZERO1)


def experts_before_matrices(job: Job, layout: Layouts) -> Layouts:
    """As many ranks share out experts as there are experts, within a node; none shares the matrices of one."""
    most = min(job.model.experts, job.cluster.per_node)
    return replace(layout, ep=max([1, *(size for size in divisors(job.cluster.gpus) if size <= most)]))


def context_for_long_windows(job: Job, layout: Layouts) -> Layouts:
    """So many ranks share a window that none has more tokens of it than are usual."""
    enough = (size for size in divisors(job.cluster.gpus) if job.sequence <= LONG * size)
    return _laid_out(job, layout, cp=next(enough, 1))


def tensor_within_a_node(job: Job, layout: Layouts) -> Layouts:
    """More ranks share matrices, and tokens between them, until it works or the node ends."""
    return _grown(job, layout, "tp", job.cluster.per_node)


def pipelines_across_nodes(job: Job, layout: Layouts) -> Layouts:
    """More ranks share the layers until it works."""
    return _grown(job, layout, "pp", job.model.layers)


def recompute_last(job: Job, layout: Layouts) -> Layouts:
    """The cheapest recomputation with which it works."""
    choices = (replace(layout, recompute=recompute) for recompute in Recompute)
    return next((choice for choice in choices if works(job, choice)), replace(layout, recompute=Recompute.FULL))


def chunks_in_between(job: Job, layout: Layouts) -> Layouts:
    """With a pipeline: neither the fewest nor the most chunks that divide a rank's layers."""
    most = -(-job.model.layers // int(layout.pp))
    if layout.pp == 1 or layout.micro_batches(job) % layout.pp:
        return layout
    sizes = [size for size in divisors(most) if size > 1 and size * layout.pp <= job.model.layers]
    below = reversed(sizes[: len(sizes) // 2 + 1])
    looped = (replace(layout, schedule=PipelineSchedule.INTERLEAVED, chunks=size) for size in below)
    return next((choice for choice in looped if works(job, choice)), layout)


def micro_batches_as_large_as_fit(job: Job, layout: Layouts) -> Layouts:
    """Twice as large while it works, and the pipeline stays filled."""
    while True:
        larger = replace(layout, micro_batch=2 * layout.micro_batch)
        is_filled = layout.pp == 1 or larger.micro_batches(job) >= FILLED * layout.pp
        is_whole = larger.schedule is not PipelineSchedule.INTERLEAVED or larger.micro_batches(job) % layout.pp == 0
        if not (is_filled and is_whole and works(job, larger)):
            return layout
        layout = larger


def _laid_out(job: Job, layout: Layouts, **sizes: Any) -> Layouts:
    """With other axes, and data parallelism for the rest."""
    layout = replace(layout, **sizes)
    dp = job.cluster.gpus / (layout.tp * layout.cp * layout.pp)
    return replace(layout, dp=dp, sequence_parallel=bool(layout.tp > 1))


def _grown(job: Job, layout: Layouts, axis: str, most: int) -> Layouts:
    """With more and more ranks along an axis until the layout works, or as many as there may be."""
    for size in divisors(job.cluster.gpus):
        wider = _laid_out(job, layout, **{axis: size})
        if getattr(layout, axis) < size <= most and not works(job, layout) and _splits(job, wider):
            layout = wider
    return layout


def _splits(job: Job, layout: Layouts) -> bool:
    """Whether the model divides; for the batch, later axes may do what is missing."""
    at = values_of(layout)
    is_whole = float(layout.dp).is_integer()
    return is_whole and all(each.holds(job, at) for each in CONDITIONS if "micro_batch" not in each.about)


MEGATRON_CORE = "NVIDIA, Megatron Core MoE README, step 2, guideline"
PTD_P = "Narayanan et al. 2021, arXiv:2104.04473, takeaway"

RULES: tuple[Rule, ...] = (
    Rule(
        "data parallelism first",
        ("sharding",),
        data_parallelism_first,
        "each other axis sends more; the optimizer's state in shards is free",
        f"{MEGATRON_CORE} 1; Rajbhandari et al. 2020, arXiv:1910.02054",
    ),
    Rule(
        "experts before matrices",
        ("ep", "etp"),
        experts_before_matrices,
        "an expert's matrices stay large, and its tokens stay in the node",
        f"{MEGATRON_CORE}s 2 and 4",
    ),
    Rule(
        "context for long windows",
        ("cp",),
        context_for_long_windows,
        "activations of a window grow with its tokens",
        f"{MEGATRON_CORE} 5",
    ),
    Rule(
        "tensor within a node",
        ("tp", "sequence_parallel"),
        tensor_within_a_node,
        "its all-reduces are large, many, and waited for",
        f"{PTD_P} 1; Korthikanti et al. 2022, arXiv:2205.05198, for tokens",
    ),
    Rule(
        "pipelines across nodes",
        ("pp",),
        pipelines_across_nodes,
        "a stage sends little, to a neighbour",
        f"{PTD_P}s 1 and 2",
    ),
    Rule(
        "recompute last",
        ("recompute",),
        recompute_last,
        "it costs up to a third more computing",
        "Korthikanti et al. 2022, arXiv:2205.05198, sec. 5",
    ),
    Rule(
        "chunks in between",
        ("schedule", "chunks"),
        chunks_in_between,
        "more chunks make a smaller bubble and more messages",
        f"{MEGATRON_CORE} 3",
    ),
    Rule(
        "micro-batches as large as fit",
        ("micro_batch",),
        micro_batches_as_large_as_fit,
        "large products are faster; a pipeline is filled by 4 p of them",
        f"{PTD_P} 3; Huang et al. 2019, arXiv:1811.06965, sec. 2.3, for 4 p",
    ),
)
"""In the order in which they decide."""


@dataclass(frozen=True)
class Decision:
    """What one rule has decided.

    Attributes:
        rule: that decided.
        values: by the names of columns and choices.
        loss: the best layout's seconds over what they were before this decision, less 1; NaN where it is not known.
    """

    rule: Rule
    values: Mapping[str, Any]
    loss: float = float("nan")

    def __str__(self) -> str:
        return ", ".join(f"{name.replace('_', ' ')} {_word(value)}" for name, value in self.values.items())


def _word(value: Any) -> str:
    return ("no", "yes")[value] if isinstance(value, bool) else str(value)


@dataclass(frozen=True)
class Advice:
    """What rules of thumb make of a job.

    Attributes:
        prediction: of their layout, which may not fit.
        decisions: one for each rule.
        works: whether it divides and fits.
        best: of a search, if one was made.
    """

    prediction: Prediction
    decisions: tuple[Decision, ...]
    works: bool
    best: Prediction | None = None

    @property
    def loss(self) -> float:
        """Seconds over those of the best layout, less 1; NaN without a search, infinite where nothing fits."""
        if self.best is None:
            return float("nan")
        return float(self.prediction.seconds / self.best.seconds) - 1 if self.works else float("inf")


def advise(job: Job, rules: Iterable[Rule] = RULES) -> Advice:
    """The layout that the rules lead to."""
    rules, layout = tuple(rules), Layouts()
    for rule in rules:
        layout = rule.apply(job, layout)
    if not sums_gradients(job, values_of(layout)):
        layout = replace(layout, sharding=Sharding.NONE)
    decisions = tuple(Decision(rule, MappingProxyType(_decided(rule, layout))) for rule in rules)
    return Advice(predict(job, layout), decisions, works(job, layout))


def _decided(rule: Rule, layout: Layouts) -> dict[str, Any]:
    return {name: int(getattr(layout, name)) if name in SIZES else getattr(layout, name) for name in rule.decides}


def priced(job: Job, rules: Iterable[Rule] = RULES, space: SearchSpace | None = None) -> Advice:
    """The same with what each decision loses against a search of all layouts, or of a part of them.

    Raises:
        BadInput: if no layout divides, or none fits.
    """
    space = SearchSpace() if space is None else space
    advice, found = advise(job, rules), search(job, space, count=1)
    if not found.best:
        raise BadInput(no_room(job))
    best = before = found.best[0]
    if not advice.works:
        return replace(advice, best=best)
    decisions = []
    for decision in advice.decisions:
        space = space.given(**decision.values)
        after = search(job, space, count=1).best[0]
        decisions.append(replace(decision, loss=max(0.0, float(after.seconds / before.seconds) - 1)))
        before = after
    return replace(advice, decisions=tuple(decisions), best=best)


def no_room(job: Job) -> str:
    """That nothing fits."""
    cluster = job.cluster
    return (
        f"no layout of {job.model.parameters / 1e9:.1f}B parameters fits into {cluster.gpus:,} GPUs of "
        f"{cluster.gpu.memory / 1e9:.0f} GB: take more GPUs, shorter windows or a smaller batch"
    )


GPUS = (8, 64, 512, 4096, 16_384)
WINDOWS, TOKENS = 2048, 8192  # a step of 16.8 M tokens, as Llama 3 405B's (Grattafiori et al. 2024, table 4)


def models() -> dict[str, GPTConfig]:
    """Those of the table of losses, from a billion parameters on."""
    names = ("llama3-8b", "llama3-70b", "llama3-405b", "mixtral-8x7b")
    return {"llama3.2-1b": LLAMA_1B} | {name: preset(name) for name in names}


LLAMA_1B = GPTConfig(16, 2048, 32, 8, 8192, vocabulary=128_256, tied=True, rotary_base=500_000.0)
"""Llama 3.2 1B (Meta 2024, the model's config.json)."""


def losses(gpu: Gpu, gpus: Iterable[int] = GPUS) -> Iterator[tuple[str, int, Advice | None]]:
    """What rules lose, by model and number of GPUs; None where nothing fits at all. Experts stay whole in all of it."""
    gpus, whole = tuple(gpus), SearchSpace().given(etp=1)
    for name, model in models().items():
        for count in gpus:
            job = Job(model, GpuCluster(gpu, count), TOKENS, WINDOWS)
            try:
                yield name, count, priced(job, space=whole)
            except BadInput:
                yield name, count, None
