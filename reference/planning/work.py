"""What one rank computes for one micro-batch: FLOPs of matrix products, bytes that they touch, and bytes between them.

All are counts, of a layer's forward and backward, as columns over layouts. Seconds are made of them in `step.py`.

| letter | number                                        |
|--------|-----------------------------------------------|
| T      | tokens of a micro-batch on a rank, b s / c    |
| D, F   | width of the stream, and inside feed-forwards |
| A, K   | width of all queries, and of all keys         |

A product [m, k] x [k, n] takes 2 m k n FLOPs and touches 2 (m k + k n + m n) bytes. Backward has two of the same size
for each of forward: for the input's gradient and for the weight's. What lies between products reads and writes numbers
of 2 bytes, masks of 1.
"""

from dataclasses import dataclass

import numpy as np

from reference.choices import Recompute

from .job import AttentionKernel, Job
from .layouts import Column, Layouts

HALF = 2  # bytes of a number in bfloat16

# Bytes that are read and written for each number, forward and backward, in the order of the kernels:
NORM = (2 + 2, 2 + 2 + 2)  # x; then x and the gradient, and what it becomes
RESIDUAL = (2 + 2 + 2, 2 + 2)  # two are read, their sum is written
DROPOUT = (1, 1)  # a mask
GELU = (2 + 2, 2 + 2 + 2)
SWIGLU = (4 + 2, 4 + 2 + 4)
ROTARY = (2 + 2, 2 + 2)
SCORES = (2 + (2 + 2) + (2 + 2 + 1) + 2, (2 + 2) + (2 + 1 + 2) + (2 + 2 + 2) + 2)  # made, softmax, dropout, used
LOGITS = (2 + 4, 4 + 2)  # made, read for a softmax in float32


@dataclass(frozen=True)
class Work:
    """Counts of one rank for one micro-batch, forward and backward.

    Attributes:
        flops: of matrix products.
        touched: bytes that these products read and write.
        attention: FLOPs of scores and of what they weigh, without those that a causal mask saves.
        moved: bytes between products.
        kernels: that are started.
    """

    flops: Column = 0.0
    touched: Column = 0.0
    attention: Column = 0.0
    moved: Column = 0.0
    kernels: Column = 0.0

    def __add__(self, other: "Work") -> "Work":
        return Work(*(mine + theirs for mine, theirs in zip(_columns(self), _columns(other), strict=True)))

    def __mul__(self, times: Column) -> "Work":
        return Work(*(column * times for column in _columns(self)))

    __rmul__ = __mul__


def _columns(work: Work) -> tuple[Column, ...]:
    return work.flops, work.touched, work.attention, work.moved, work.kernels


@dataclass(frozen=True)
class Passes:
    """Forward, what is computed again in backward, and backward."""

    forward: Work
    again: Work
    backward: Work

    @property
    def all(self) -> Work:
        """Together."""
        return self.forward + self.again + self.backward

    def __add__(self, other: "Passes") -> "Passes":
        return Passes(self.forward + other.forward, self.again + other.again, self.backward + other.backward)

    def __mul__(self, times: Column) -> "Passes":
        return Passes(self.forward * times, self.again * times, self.backward * times)

    __rmul__ = __mul__


def product(rows: Column, inner: Column, columns: Column, each: Column = 1.0) -> Work:
    """[rows, inner] x [inner, columns], `each` times."""
    touched = HALF * (rows * inner + inner * columns + rows * columns)
    return Work(flops=2 * each * rows * inner * columns, touched=each * touched, kernels=each)


def layer(job: Job, layouts: Layouts, experts: bool) -> Passes:
    """One layer, dense or with experts."""
    fed = mixture(job, layouts) if experts else feed_forward(job, layouts, job.model.hidden)
    between, core = residuals(job, layouts), scores(job, layouts)
    around = projections(job, layouts)
    whole = between + around + fed + core
    match layouts.recompute:
        case Recompute.FULL:
            again = whole.forward
        case Recompute.SELECTIVE:
            again = core.forward
        case Recompute.NONE:
            again = Work()
    return Passes(whole.forward, again, whole.backward)


def expert_share(job: Job) -> float:
    """The part of a model's layers that have experts."""
    return len(job.model.expert_layers) / job.model.layers if job.model.experts else 0.0


def mean_layer(job: Job, layouts: Layouts) -> Passes:
    """A layer as they are in the mean, of those with experts and those without."""
    share = expert_share(job)
    dense = layer(job, layouts, experts=False)
    return (1 - share) * dense + share * layer(job, layouts, experts=True) if share else dense


def projections(job: Job, layouts: Layouts) -> Passes:
    """Queries, keys and values, and the output projection."""
    model, tokens, t = job.model, layouts.tokens(job), layouts.tp
    keys = 2 * np.maximum(model.kv_heads / t, 1) * model.head_dim  # more ranks than heads: each has a copy of one
    queries = model.attended / t
    forward = product(tokens, model.width, queries + keys) + product(tokens, queries, model.width)
    turned = tokens * (queries + keys / 2)
    return Passes(
        forward + Work(moved=ROTARY[0] * turned, kernels=2),
        Work(),
        2 * forward + Work(moved=ROTARY[1] * turned, kernels=2),
    )


def scores(job: Job, layouts: Layouts) -> Passes:
    """Attention's core, between the projections."""
    model, t = job.model, layouts.tp
    pairs = layouts.micro_batch * job.sequence * (job.sequence / layouts.cp) * model.heads / t
    if job.attention is AttentionKernel.FLASH:
        one = Work(attention=4 * pairs / 2 * model.head_dim, kernels=1)
        return Passes(one, Work(), 2.5 * one)  # backward makes the scores once more: five products for two
    made = Work(attention=4 * pairs * model.head_dim, kernels=5)
    return Passes(made + Work(moved=SCORES[0] * pairs), Work(), 2 * made + Work(moved=SCORES[1] * pairs))


def feed_forward(job: Job, layouts: Layouts, hidden: float) -> Passes:
    """One that all tokens go through."""
    tokens, inside = layouts.tokens(job), hidden / layouts.tp
    return _fed(job, tokens, inside, 1.0)


def mixture(job: Job, layouts: Layouts) -> Passes:
    """A router, experts, and those that all tokens share; each rank has as many rows as any other."""
    model, tokens, t = job.model, layouts.tokens(job), layouts.tp
    here = model.experts / layouts.ep
    rows = tokens / t * layouts.etp * model.top_k
    routed = _fed(job, rows / here, model.expert_hidden / layouts.etp, here)
    copies = Work(moved=rows * model.width * (HALF + HALF), kernels=4)  # put in order, and back
    routed = routed + Passes(copies * 2, Work(), copies * 2)
    if not model.shared_experts:
        return routed
    return routed + feed_forward(job, layouts, model.shared_experts * model.expert_hidden)


def _fed(job: Job, rows: Column, inside: Column, each: Column) -> Passes:
    width, gated = job.model.width, job.model.gated
    forward = product(rows, width, (1 + gated) * inside, each) + product(rows, inside, width, each)
    bent = SWIGLU if gated else GELU
    return Passes(
        forward + Work(moved=each * bent[0] * rows * inside, kernels=each),
        Work(),
        2 * forward + Work(moved=each * bent[1] * rows * inside, kernels=each),
    )


def residuals(job: Job, layouts: Layouts) -> Passes:
    """Two norms and two sums; on a slice of the tokens with sequence parallelism, else on all of them."""
    slices = layouts.tp if layouts.sequence_parallel else 1
    numbers = 2 * layouts.tokens(job) * job.model.width / slices
    masks = DROPOUT if job.attention is AttentionKernel.WRITTEN else (0, 0)
    forward, backward = (sum(each) for each in zip(NORM, RESIDUAL, masks, strict=True))
    return Passes(Work(moved=forward * numbers, kernels=4), Work(), Work(moved=backward * numbers, kernels=4))


def head(job: Job, layouts: Layouts) -> Passes:
    """Logits and their loss, on the last stage."""
    tokens, words = layouts.tokens(job), job.model.vocabulary / layouts.tp
    forward = product(tokens, job.model.width, words)
    return Passes(
        forward + Work(moved=LOGITS[0] * tokens * words, kernels=4),
        Work(),
        2 * forward + Work(moved=LOGITS[1] * tokens * words, kernels=4),
    )


def model_flops(job: Job) -> float:
    """FLOPs that a step needs, of all ranks: forward and backward, nothing computed again, no causal saving.

    Each weight of a product takes 6 for each token that meets it, attention 12 s A for each layer and token: as
    Megatron's and most papers' throughputs count (Narayanan et al. 2021, sec. 5.1; PaLM, Chowdhery et al. 2022,
    appendix B).
    """
    one = Layouts()
    flops = job.model.layers * mean_layer(job, one).forward.flops
    pairs = 4 * job.sequence**2 * job.model.attended * job.model.layers
    return float(3 * job.batch * (flops + pairs + head(job, one).forward.flops))


def computed_again(job: Job, layouts: Layouts) -> Column:
    """FLOPs of a step over those that it needs: above 1 where something is computed again."""
    passes = mean_layer(job, layouts)
    again, once = (each.flops + each.attention for each in (passes.again, passes.forward + passes.backward))
    end = head(job, layouts).all.flops / job.model.layers
    return 1 + again / (once + end)
