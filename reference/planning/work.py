"""What one rank computes for one micro-batch: FLOPs of matrix products, bytes that they write, and bytes between them.

All are counts, of a layer's forward and backward, as columns over layouts. Seconds are made of them in `step.py`.

| letter | number                                        |
|--------|-----------------------------------------------|
| T      | tokens of a micro-batch on a rank, b s / c    |
| D, F   | width of the stream, and inside feed-forwards |
| A, K   | width of all queries, and of all keys         |

A product [m, k] x [k, n] takes 2 m k n FLOPs and writes 2 m n bytes: reading its factors hides behind multiplying, and
beginning and ending a tile of the result does not. Backward has two products for each of forward: for the input's
gradient and for the weight's. What lies between products reads and writes numbers of 2 bytes, masks of 1.
"""

from dataclasses import dataclass, replace

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
        written: bytes of what these products make.
        attention: FLOPs of flash attention, without those that a causal mask saves.
        moved: bytes between products.
        kernels: that are started.
    """

    flops: Column = 0.0
    written: Column = 0.0
    attention: Column = 0.0
    moved: Column = 0.0
    kernels: Column = 0.0

    def __add__(self, other: "Work") -> "Work":
        return Work(*(mine + theirs for mine, theirs in zip(_columns(self), _columns(other), strict=True)))

    def __mul__(self, times: Column) -> "Work":
        return Work(*(column * times for column in _columns(self)))

    __rmul__ = __mul__


def _columns(work: Work) -> tuple[Column, ...]:
    return work.flops, work.written, work.attention, work.moved, work.kernels


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


def product(rows: Column, inner: Column, columns: Column, each: Column = 1.0) -> Passes:
    """[rows, inner] x [inner, columns], `each` times; backward makes the gradients of both factors."""
    flops = 2 * each * rows * inner * columns
    forward = Work(flops, HALF * each * rows * columns, kernels=each)
    backward = 2 * forward
    return Passes(forward, Work(), backward)


def between(bytes: tuple[int, int], numbers: Column, kernels: Column = 1.0) -> Passes:
    """What lies between products: so many bytes for each number, forward and backward."""
    forward, backward = (Work(moved=each * numbers, kernels=kernels) for each in bytes)
    return Passes(forward, Work(), backward)


def layer(job: Job, layouts: Layouts, experts: bool) -> Passes:
    """One layer, dense or with experts."""
    fed = mixture(job, layouts) if experts else feed_forward(job, layouts, job.model.hidden)
    core = scores(job, layouts)
    whole = residuals(job, layouts) + projections(job, layouts) + core + fed
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
    """Queries, keys and values, and the output projection; with rotary positions in models of the time of gates."""
    model, tokens, t = job.model, layouts.tokens(job), layouts.tp
    keys = np.maximum(model.kv_heads / t, 1) * model.head_dim  # more ranks than heads: each has a copy of one
    queries = model.attended / t
    multiplied = product(tokens, model.width, queries + 2 * keys) + product(tokens, queries, model.width)
    return multiplied + between(ROTARY, tokens * (queries + keys), 2) * model.gated


def scores(job: Job, layouts: Layouts) -> Passes:
    """Attention's core, between the projections."""
    model, t = job.model, layouts.tp
    pairs = layouts.micro_batch * job.sequence * (job.sequence / layouts.cp) * model.heads / t
    if job.attention is AttentionKernel.FLASH:
        one = Work(attention=4 * pairs / 2 * model.head_dim, kernels=1)
        return Passes(one, Work(), 2.5 * one)  # backward makes the scores once more: five products for two
    made = Work(4 * pairs * model.head_dim, kernels=2)  # masked ones, too
    return Passes(made, Work(), 2 * made) + between(SCORES, pairs, 3)


def feed_forward(job: Job, layouts: Layouts, hidden: float) -> Passes:
    """One that all tokens go through."""
    return _fed(job, layouts.tokens(job), hidden / layouts.tp)


def _fed(job: Job, rows: Column, inside: Column, each: Column = 1.0) -> Passes:
    width, gated = job.model.width, job.model.gated
    multiplied = product(rows, width, (1 + gated) * inside, each) + product(rows, inside, width, each)
    return multiplied + between(SWIGLU if gated else GELU, each * rows * inside, each)


def mixture(job: Job, layouts: Layouts) -> Passes:
    """A router, experts, and those that all tokens share; each rank has as many rows as any other."""
    model, tokens = job.model, layouts.tokens(job)
    here = model.experts / layouts.ep
    rows = tokens / layouts.tp * layouts.etp * model.top_k
    put_in_order = between((HALF + HALF, HALF + HALF), 2 * rows * model.width, 4)  # and back
    routed = _fed(job, rows / here, model.expert_hidden / layouts.etp, here) + put_in_order
    routed = routed + router(job, layouts)
    shared = model.shared_experts * model.expert_hidden
    return routed + feed_forward(job, layouts, shared) if shared else routed


def router(job: Job, layouts: Layouts) -> Passes:
    """Logits of a layer's experts, for the rank's part of the tokens; no count of model FLOPs has them."""
    return product(layouts.tokens(job) / layouts.tp, job.model.width, job.model.experts)


def residuals(job: Job, layouts: Layouts) -> Passes:
    """Two norms and two sums; on a slice of the tokens with sequence parallelism, else on all of them."""
    slices = layouts.tp if layouts.sequence_parallel else 1
    masks = DROPOUT if job.attention is AttentionKernel.WRITTEN else (0, 0)
    forward, backward = (sum(each) for each in zip(NORM, RESIDUAL, masks, strict=True))
    return between((forward, backward), 2 * layouts.tokens(job) * job.model.width / slices, 4)


def head(job: Job, layouts: Layouts) -> Passes:
    """Logits, whose bytes the loss counts, and their loss, on the last stage."""
    tokens, words = layouts.tokens(job), job.model.vocabulary / layouts.tp
    one = Work(2 * tokens * job.model.width * words, kernels=1)
    return Passes(one, Work(), 2 * one) + between(LOGITS, tokens * words, 4)


def model_flops(job: Job) -> float:
    """FLOPs that a step needs, of all ranks: forward and backward, nothing computed again, no causal saving.

    Each weight of a product takes 6 for each token that meets it, attention 12 s A for each layer and token: as
    Megatron's and most papers' throughputs count (Narayanan et al. 2021, sec. 5.1; PaLM, Chowdhery et al. 2022,
    appendix B).
    """
    one, counted = Layouts(), replace(job, attention=AttentionKernel.FLASH)  # whose pairs are no products
    each = mean_layer(counted, one).forward.flops - expert_share(job) * router(job, one).forward.flops
    flops = job.model.layers * each
    pairs = 4 * job.sequence**2 * job.model.attended * job.model.layers
    return float(3 * job.batch * (flops + pairs + head(job, one).forward.flops))


def computed_again(job: Job, layouts: Layouts) -> Column:
    """FLOPs of a step over those that it needs: above 1 where something is computed again."""
    passes = mean_layer(job, layouts)
    again, once = (each.flops + each.attention for each in (passes.again, passes.forward + passes.backward))
    end = head(job, layouts).all.flops / job.model.layers
    return 1 + again / (once + end)
