"""The best model for a budget: where its loss falls as fast with parameters as with tokens (Hoffmann et al. 2022)."""


def compute_optimal(flops: float, size: tuple[float, float], data: tuple[float, float]) -> tuple[float, float]:
    """Parameters N and tokens D with 6 N D = flops, for which A / N^α + B / D^β is least.

    Args:
        flops: of the whole training, forward and backward.
        size: A and α.
        data: B and β.
    """
    (a, alpha), (b, beta) = size, data
    pairs = flops / 6
    balance = (alpha * a / (beta * b)) ** (1 / (alpha + beta))
    parameters = balance * pairs ** (beta / (alpha + beta))
    return parameters, pairs / parameters
