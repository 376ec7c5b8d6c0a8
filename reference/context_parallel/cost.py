"""What context parallelism sends, computes and keeps. Exact, for any number of ranks.

One attention layer, S tokens in all on n ranks, S/n each; a *block* is a rank's keys and values, 2·B·K·(S/n)·d numbers.
A rank sends:

| method     | forward                    | backward                            | messages one after another |
|------------|----------------------------|-------------------------------------|----------------------------|
| ring       | n-1 blocks                 | n-1 blocks, n gradients of blocks   | n-1, and n                 |
| all-gather | n-1 blocks                 | n-1 blocks, n-1 gradients of blocks | n-1, and 2(n-1)            |
| Ulysses    | (n-1)/n of q, k, v and out | the same                            | 2(n-1), and 2(n-1)         |
| USP        | Ulysses on u ranks, and a ring on n/u, whose blocks are of the same size             |

Forward, a ring and an all-gather send 2·B·K·S·d numbers (n-1)/n times, and Ulysses 2·B·(H + K)·S·d of them, divided by
n. So Ulysses sends less from n > 1 + H/K on: from 3 ranks on where each head has keys of its own, from 10 on where
eight share them, as in Llama 3 70B. Which one is faster depends on the network, too: a ring hides behind the compute
of a block if that takes at least as long as the block travels (`hidden_from`).

Jacobs et al. 2023, "DeepSpeed Ulysses", sec. 3.2; Fang and Zhao 2024, "USP", table 1.
"""

from dataclasses import dataclass
from math import ceil, lcm

from reference.choices import ContextMethod
from reference.errors import BadInput

from .layouts import Layout
from .tokens import CAUSAL, Mask, work


@dataclass(frozen=True)
class AttentionShape:
    """One attention layer, on n ranks.

    Attributes:
        batch: B, sequences.
        heads, kv_heads: H of queries, K of keys and values.
        local: tokens that each rank holds of a sequence, with padding.
        head_dim: d.
        ranks: n.
        neighbours: u of USP, ranks that share out heads.
    """

    batch: int
    heads: int
    kv_heads: int
    local: int
    head_dim: int
    ranks: int
    neighbours: int = 1

    def __post_init__(self) -> None:
        if self.ranks % self.neighbours:
            raise BadInput(f"{self.ranks} ranks do not divide into families of {self.neighbours} neighbours")

    @property
    def out(self) -> int:
        """Elements of this rank's queries; of its outputs, as many."""
        return self.batch * self.heads * self.local * self.head_dim

    @property
    def block(self) -> int:
        """Elements of this rank's keys and values."""
        return 2 * self.batch * self.kv_heads * self.local * self.head_dim


@dataclass(frozen=True)
class Sent:
    """Elements that a rank sends in one attention layer.

    Attributes:
        forward, backward: in the dtype of activations.
        sums: gradients of keys and values that others add to, in backward: in float32 where activations have 16 bits.
    """

    forward: int
    backward: int
    sums: int

    def bytes(self, size: int, sum_size: int | None = None) -> int:
        """Bytes of all, where elements take `size` bytes, and sums `sum_size` or as many."""
        return (self.forward + self.backward) * size + self.sums * (sum_size or size)


NOTHING = Sent(0, 0, 0)


def sent(method: ContextMethod, shape: AttentionShape) -> Sent:
    """What a rank sends in one attention layer, forward and backward."""
    among, across = sent_by_group(method, shape)
    return Sent(among.forward + across.forward, among.backward + across.backward, among.sums + across.sums)


def sent_by_group(method: ContextMethod, shape: AttentionShape) -> tuple[Sent, Sent]:
    """The same in two: among ranks that share out heads, and among those that bring keys and values to queries.

    Each is all of them or none, but for USP, which has neighbours and a ring across.
    """
    n = shape.ranks
    match method:
        case ContextMethod.RING:
            return NOTHING, Sent((n - 1) * shape.block, (n - 1) * shape.block, n * shape.block if n > 1 else 0)
        case ContextMethod.ALL_GATHER:
            return NOTHING, Sent(*3 * ((n - 1) * shape.block,))
    u, copies = _neighbours(method, shape), _copies(method, shape)
    transposed = (2 * shape.out + copies * shape.block) * (u - 1) // u
    return Sent(transposed, transposed, 0), sent(ContextMethod.RING, _across(shape, u, copies))


def messages(method: ContextMethod, shape: AttentionShape) -> tuple[int, int]:
    """How many messages one after another, forward and backward."""
    n = shape.ranks
    match method:
        case ContextMethod.RING:
            return n - 1, n if n > 1 else 0
        case ContextMethod.ALL_GATHER:
            return n - 1, 2 * (n - 1)
    u = _neighbours(method, shape)
    forward, backward = messages(ContextMethod.RING, _across(shape, u, 1))
    return 2 * (u - 1) + forward, 2 * (u - 1) + backward


def kept(shape: AttentionShape, method: ContextMethod = ContextMethod.RING) -> int:
    """Elements that wait for backward on each rank: q, k, v, out, and a logsumexp for each query.

    Where Ulysses and USP copy heads of k and v, these are the copies.
    """
    return 2 * shape.out + _copies(method, shape) * shape.block + shape.batch * shape.heads * shape.local


def peak(method: ContextMethod, shape: AttentionShape, size: int, sum_size: int | None = None) -> int:
    """The most bytes that a rank holds while it computes forward, besides q, k and v; what kernels need not counted.

    Without a mask. A ring has a rank's own block, the one in use, and the one that arrives. An all-gather has its own
    and all others twice, until they are in order; or once, with the outputs of queries. Of these there are two, the sum
    and what is added to it, which is first made as wide as the sum; and five numbers of each query: logsumexps, and
    what merges them.

    Ulysses and USP have q, k and v of some heads and all neighbours' tokens besides, with copies of heads where they
    make any, and what their ring across has. When it has ended, this k and v are left, and four of q's size: q and the
    output, which wait for backward, the output that is sent back, and what arrives.

    Args:
        method, shape: what is computed.
        size: bytes of an element.
        sum_size: bytes of a sum, where they are others.
    """
    n, sum_size = shape.ranks, sum_size or size
    queries, block = shape.batch * shape.heads * shape.local, shape.block * size
    merged = (size + sum_size * (1 if size == sum_size else 2)) * shape.out + 5 * sum_size * queries
    match method:
        case ContextMethod.RING:
            return min(n, 3) * block + merged
        case ContextMethod.ALL_GATHER:
            return max((1 + 2 * n) * block if n > 1 else 0, (1 + n) * block + merged)
    across = _across(shape, _neighbours(method, shape), _copies(method, shape))
    arrived, ring = (shape.out + across.block) * size, peak(ContextMethod.RING, across, size, sum_size)
    return max(arrived + ring, (4 * shape.out + across.block) * size + queries * sum_size)


def pairs(layout: Layout, rank: int, mask: Mask = CAUSAL) -> int:
    """How many pairs of a query and a key a rank computes; of a head, in one sequence."""
    return sum(work(layout.tokens[rank], keys, mask) for keys in layout.tokens)


def efficiency(layout: Layout, mask: Mask = CAUSAL) -> float:
    """What share of the time ranks work, if each waits for the slowest at the end alone."""
    each = [pairs(layout, rank, mask) for rank in range(layout.ranks)]
    return sum(each) / (max(each) * len(each)) if max(each) else 1.0


def ring_efficiency(layout: Layout, mask: Mask = CAUSAL) -> float:
    """The same of a ring, where each step lasts as long as its slowest rank computes: all wait for the next block.

    A contiguous causal ring gives (n + 1) / (2n), but for the tokens on the diagonal: from step 0 on, some rank has a
    whole block to compute.
    """
    n = layout.ranks
    steps = [
        [work(layout.tokens[rank], layout.tokens[(rank - step) % n], mask) for rank in range(n)] for step in range(n)
    ]
    longest = sum(max(step) for step in steps)
    return sum(map(sum, steps)) / (n * longest) if longest else 1.0


def hidden_from(shape: AttentionShape, flops: float, beta: float, size: int = 2) -> int:
    """From how many tokens on a rank a ring's messages hide behind the compute of a block, forward: causal, zigzag.

    Half of a block of c tokens takes 2·B·H·c²·d operations, its keys and values are 2·B·K·c·d elements, so
    c >= K/H · flops · size / beta: batch, head size and number of ranks do not matter. (Without a mask, half as many:
    Liu et al. 2023, sec. 4, with K = H.)

    Args:
        shape: whose heads count.
        flops: operations that a rank does in a second.
        beta: bytes that it sends in a second.
        size: bytes of an element.
    """
    return ceil(shape.kv_heads * flops * size / (shape.heads * beta))


def seconds(
    method: ContextMethod, shape: AttentionShape, flops: float, alpha: float, beta: float, size: int = 2
) -> float:
    """How long forward takes where all ranks work alike: causal, zigzag. A ring computes while its messages travel.

    Args:
        method, shape: what is computed.
        flops: operations that a rank does in a second.
        alpha: latency of a message, in seconds.
        beta: bytes that a rank sends in a second.
        size: bytes of an element.
    """
    if method in (ContextMethod.RING, ContextMethod.ALL_GATHER):
        block = 2 * shape.batch * shape.heads * shape.local**2 * shape.head_dim / flops  # half of the pairs are masked
        message = alpha + shape.block * size / beta
        others = shape.ranks - 1
        return block + others * (max(block, message) if method is ContextMethod.RING else block + message)
    u, copies = _neighbours(method, shape), _copies(method, shape)
    transposed = 2 * (u - 1) * alpha + (2 * shape.out + copies * shape.block) * (u - 1) / u * size / beta
    return transposed + seconds(ContextMethod.RING, _across(shape, u, copies), flops, alpha, beta, size)


def best_method(
    shape: AttentionShape, flops: float, alpha: float, beta: float, size: int = 2
) -> tuple[ContextMethod, float]:
    """The method whose forward is shortest, and its seconds. Arguments as for `seconds`.

    Ulysses takes part where ranks divide the heads, and USP where neighbours do.
    """
    fitting = [ContextMethod.RING, ContextMethod.ALL_GATHER]
    fitting += [ContextMethod.ULYSSES] if shape.heads % shape.ranks == 0 else []
    fitting += [ContextMethod.USP] if 1 < shape.neighbours < shape.ranks and shape.heads % shape.neighbours == 0 else []
    times = {method: seconds(method, shape, flops, alpha, beta, size) for method in fitting}
    best = min(times, key=times.__getitem__)
    return best, times[best]


def _neighbours(method: ContextMethod, shape: AttentionShape) -> int:
    """How many ranks share out heads: u."""
    return {ContextMethod.ULYSSES: shape.ranks, ContextMethod.USP: shape.neighbours}.get(method, 1)


def _copies(method: ContextMethod, shape: AttentionShape) -> int:
    """How many of each head of keys there must be, so that u divides them."""
    return lcm(shape.kv_heads, _neighbours(method, shape)) // shape.kv_heads


def _across(shape: AttentionShape, u: int, copies: int) -> AttentionShape:
    """What the ring across has: u ranks' tokens, a u-th of the heads."""
    kv_heads = shape.kv_heads * copies // u if copies * shape.kv_heads % u == 0 else shape.kv_heads
    return AttentionShape(shape.batch, shape.heads // u, kv_heads, shape.local * u, shape.head_dim, shape.ranks // u)
