"""What a layer of experts takes on a rank: expert parallelism divides the experts, and not the tokens.

Along ep a rank sends its tokens' rows away, and as many come back from others: each rank has fewer experts and more
rows for each. An estimate that divides experts by ep and rows by ep divides twice (NVIDIA/Megatron-LM, pull requests
4687 and 6782). Ranks that share matrices gather each other's rows, so rows grow with etp as their features shrink.

`memory` has the same as columns; `reference.composition.answers.plan_bytes` has ZeRO besides.
"""

STATE = 18  # bytes of a parameter: 2 in bfloat16, 4 of its gradient, 12 of Adam and of the parameter in float32


def expert_bytes(
    tokens: int, width: int, experts: int, top_k: int, expert_hidden: int, tp: int, ep: int, etp: int
) -> tuple[int, int]:
    """Bytes of the state and of the activations of a layer's experts on one rank.

    Args:
        tokens: of a micro-batch of a replica; tp ranks share them out.
        width: D, numbers of a row.
        experts: E, of the layer; ep divides them.
        top_k: k, experts of a token; choices fall evenly.
        expert_hidden: F, features of a gated expert, of three matrices [D, F]; etp divides them.
        tp, ep, etp: ranks along each axis; tp divides the tokens.
    """
    parameters = experts // ep * 3 * width * expert_hidden // etp
    rows = tokens // tp * top_k * etp
    numbers = rows * (3 * expert_hidden // etp + 2 * width)
    return STATE * parameters, 2 * numbers
