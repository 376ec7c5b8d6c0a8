"""How many activations a rank holds at most, as a formula: of one stage and one micro-batch each.

| order         | at most                                  | because a rank begins with                              |
|---------------|------------------------------------------|---------------------------------------------------------|
| GPipe         | m                                        | all its forward work                                    |
| 1F1B          | p - rank, or m                           | a micro-batch for each stage from here to the end       |
| interleaved   | (v - 1) p + 2 (p - 1 - rank) + 1, or m v | all of its v stages but one, and the way there and back |
| breadth-first | m v                                      | all its forward work                                    |

A rank holds most when it has done the forward before its first backward. From then on one goes for each that comes.
`validate` counts the same in any schedule.
"""

from reference.errors import BadInput


def peak_activations(order: str, rank: int, p: int, m: int, v: int) -> int:
    """The most that a rank holds.

    Args:
        order: "GPipe", "1F1B", "interleaved" or "breadth-first".
        rank: 0 to p - 1.
        p: ranks.
        m: micro-batches; of "interleaved" a multiple of p.
        v: stages on a rank; 1 of "GPipe" and "1F1B".

    Raises:
        BadInput: if it is another order, or "interleaved" and m is no multiple of p.

    Narayanan et al. 2021, "Efficient large-scale language model training on GPU clusters using Megatron-LM", sec. 2.2.
    """
    after = p - 1 - rank
    before_the_first_backward = {
        "GPipe": m,
        "1F1B": after + 1,
        "interleaved": (v - 1) * p + 2 * after + 1,
        "breadth-first": m * v,
    }
    if order not in before_the_first_backward:
        raise BadInput(f"an order is one of {', '.join(before_the_first_backward)}, not {order}")
    if order == "interleaved" and m % p:
        raise BadInput(f"interleaved micro-batches go in groups of {p}: take a multiple, not {m}")
    return min(before_the_first_backward[order], m * v)
