"""What a rank sends for a layer of experts that lie whole on ep ranks, and whose matrices etp ranks share.

Whole experts: a row for each choice goes to the rank of its expert, and what is made of it comes back; in backward the
same again. Of these rows 1/ep stay where they are, so however many ranks there are, they are never more than all.
Shared matrices: all of the ranks that share need each other's rows, and each returns its part of every sum. So what a
rank sends grows with their number. Experts are narrow, and cutting them makes them narrower; that is why they are
seldom cut (Liu et al. 2025, "MoE parallel folding").

It is what `Dispatch` sends where choices fall evenly on experts, without counts.
"""


def bytes_of_experts(tokens: int, k: int, width: int, size: int, ep: int, etp: int) -> tuple[int, int]:
    """Bytes that a rank sends for one layer, forward and backward: along ep, and along etp.

    Args:
        tokens: T, of a rank.
        k: experts of a token.
        width: D.
        size: bytes of an element.
        ep: ranks that have all experts together; it divides T k.
        etp: ranks that share the matrices of the same experts.
    """
    rows = tokens * k * width * size
    return 4 * (ep - 1) * (rows // ep), 4 * (etp - 1) * rows
