"""From where on each kind of parallelism computes for longer than it sends, as one inequality for each.

C FLOP per second, W bytes per second and direction, z bytes of a number, n ranks that share:

| axis | what travels            | behind what it hides             | computing is longer from                         |
|------|-------------------------|----------------------------------|--------------------------------------------------|
| ddp  | gradients, all-reduced  | backward of a step               | (n-1)/n · z C / 2W tokens of a rank              |
| fsdp | weights and gradients   | the pass for which they come     | the same: 1.5 times as much, and forward helps   |
| tp   | the stream, all-reduced | one feed-forward, as long as it  | (n-1) z C / 2W features, whatever the batch      |
| cp   | keys and values         | attention of a block to a block  | K/A · z C / 2W tokens of a rank                  |
| pp   | the stream, once        | forward of a stage               | z C / (24 D W) layers, whatever the batch        |

z C / 2W is in all of them: how often a number must be multiplied and added to take as long as it travels. In 2 bytes,
at an H100's peak and its links' rates (`data/hardware.csv`), it is 2,200 within a node and 20,000 between nodes.

Rajbhandari et al. 2021 (arXiv:2104.07857), sec. 4, for ZeRO; Liu et al. 2023 (arXiv:2310.01889), sec. 3, for rings.
"""

WEIGHTS = 12  # D² of a layer


def computing_bound_from(
    strategy: str, ranks: int, flops: int, bandwidth: int, size: int, width: int, queries: int, keys: int
) -> int:
    """The least whole number, 1 or more, of what decides, from which on computing takes as long as sending or longer.

    Args:
        strategy: "ddp", "fsdp", "tp", "cp" or "pp".
        ranks: n, along this axis.
        flops: C, that a rank really computes in a second.
        bandwidth: W, bytes per second and direction of its link.
        size: z, bytes of a number.
        width: D.
        queries, keys: A and K, width of all heads of queries, and of all heads of keys.
    """
    above, below = {  # of so many times z C / 2W
        "ddp": (ranks - 1, ranks),
        "fsdp": (ranks - 1, ranks),
        "tp": (ranks - 1, 1),
        "cp": (keys, queries),
        "pp": (1, WEIGHTS * width),
    }[strategy]
    least = -(-size * flops * above // (2 * bandwidth * below))
    return max(1, least) if ranks > 1 else 1
