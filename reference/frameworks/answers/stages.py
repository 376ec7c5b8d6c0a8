"""Which form of data parallelism has said something, by what it has said in a step."""

from collections.abc import Sequence

NUMBERS = 4  # elements: losses, norms and flags are all-reduces of so few


def which_stage(said: Sequence[tuple[str, int, int]]) -> str:
    """The form of data parallelism that makes these calls in a step. With one micro-batch zero2 is zero1.

    Args:
        said: the calls of one rank in order, (operation, elements of all ranks together, bytes of each).

    Returns:
        "ddp", "zero1", "zero2", "zero3", "kept" or "hsdp".
    """
    large = [(operation, elements) for operation, elements, _ in said if elements > NUMBERS]
    total = dict.fromkeys(("all_reduce", "all_gather", "reduce_scatter"), 0)
    for operation, elements in large:
        total[operation] += elements
    gathered, reduced = total["all_gather"], total["reduce_scatter"]
    if total["all_reduce"]:
        return "hsdp" if gathered else "ddp"
    if gathered > 1.5 * reduced:
        return "zero3"
    if reduced > 1.5 * gathered:
        return "zero2"
    return "kept" if large[0][0] == "all_gather" else "zero1"
