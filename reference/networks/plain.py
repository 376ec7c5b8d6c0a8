"""How long an all-reduce takes in the α-β model: a message of b bytes takes α + b/β.

α is the latency (s), β the bandwidth of a link in one direction (B/s). Every rank sends one message and receives one
at a time. n ranks, S bytes on each:

| algorithm          | time                                      | good for                                      |
|--------------------|-------------------------------------------|-----------------------------------------------|
| naive              | 2(n-1) (α + S/β)                          | nothing; simple                               |
| ring               | 2(n-1) (α + S/(nβ))                       | large tensors, and links to neighbours only   |
| recursive doubling | log2 n (α + S/β)                          | small tensors                                 |
| halving-doubling   | 2 log2 n · α + 2(n-1)/n · S/β             | the rest, where any two ranks are well linked |

The two logarithmic ones need n to be a power of two. Otherwise the ranks beyond the largest power of two p first hand
their tensor to a partner, p ranks continue, and the partners hand back the sum: 2 (α + S/β) more.

Hockney 1994; Thakur, Rabenseifner & Gropp 2005, "Optimization of collective communication operations in MPICH".
"""


def naive_time(ranks: int, size: float, alpha: float, beta: float) -> float:
    """Seconds that a naive all-reduce takes: n-1 tensors into rank 0, n-1 out of it, one after another.

    Args:
        ranks: n.
        size: S, bytes of the tensor that each rank brings.
        alpha: latency of a message, in seconds.
        beta: bandwidth of a link in one direction, in bytes per second.
    """
    return 2 * (ranks - 1) * (alpha + size / beta)


def ring_time(ranks: int, size: float, alpha: float, beta: float) -> float:
    """Seconds that a ring all-reduce takes: 2(n-1) steps, a chunk of size/n bytes in each.

    Args:
        ranks: n, the ranks of the ring.
        size: bytes of the tensor that each rank brings.
        alpha: latency of a message, in seconds.
        beta: bandwidth of a link in one direction, in bytes per second.
    """
    return 2 * (ranks - 1) * (alpha + size / ranks / beta)


def recursive_doubling_time(ranks: int, size: float, alpha: float, beta: float) -> float:
    """Seconds that recursive doubling takes: whole tensors, to partners 1, 2, 4, ... away. As `naive_time`."""
    rounds = ranks.bit_length() - 1
    beyond = ranks - 2**rounds
    return (rounds + 2 * bool(beyond)) * (alpha + size / beta)


def halving_doubling_time(ranks: int, size: float, alpha: float, beta: float) -> float:
    """Seconds that Rabenseifner's all-reduce takes: halves, quarters, ... and back. Arguments as for `naive_time`."""
    rounds = ranks.bit_length() - 1
    power = 2**rounds
    folded = 2 * (alpha + size / beta) if ranks > power else 0.0
    return folded + 2 * rounds * alpha + 2 * (power - 1) / power * size / beta
