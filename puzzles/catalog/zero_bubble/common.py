"""What several puzzles of this chapter share."""

from math import prod

from puzzles.grading.puzzle import RETURNS, Claim

DOUBLE = 8  # bytes of an element: everything is compared in float64
FEATURES, WIDTH, SAMPLES = 3, 4, 2  # of a stage: y and x; of a micro-batch


def shape_of(case):
    """Features of y and of x of a stage: the shape of its weight."""
    return case.get("features", FEATURES), case.get("width", WIDTH)


def weight_bytes(case):
    """Bytes of the weight of a stage."""
    return prod(shape_of(case)) * DOUBLE


def line_without_flush(ahead, micro_batches):
    """1F1B on a rank that is `ahead` forwards ahead of its backwards, over all micro-batches of a run."""
    forward, backward = [("F", k) for k in range(micro_batches)], [("B", k) for k in range(micro_batches)]
    pairs = [each for pair in zip(forward[ahead:], backward, strict=False) for each in pair]
    return forward[:ahead] + pairs + backward[max(micro_batches - ahead, 0) :]


def a_stage_in_flight(case, rank):
    """A line, the weight of its stage, and for the drive the micro-batches and what the loss wants of each."""
    count, (features, width) = case.count, shape_of(case)
    scale = (WIDTH / width) ** 0.5  # updates must not grow with the width
    return {
        "line": line_without_flush(case.ahead, count),
        "weight": case.normal(rank, features, width, name="weight"),
        "rate": 0.3 / (1 + case.ahead),
        "batches": [scale * case.normal(rank, SAMPLES, width, name=f"x {k}") for k in range(count)],
        "targets": [case.normal(rank, SAMPLES, features, name=f"target {k}") for k in range(count)],
        "samples": SAMPLES,
    }


class Stage:
    """What a drive's stage computes, for an oracle that knows the weights; `said` is in the order of the line."""

    def __init__(self, given):
        self.given, self.said, self.outputs = given, {"weight": given["weight"].clone()}, {}

    def forward(self, k, weight):
        """y = x weightᵀ."""
        self.outputs[k] = self.said[f"forward of micro-batch {k}"] = self.given["batches"][k] @ weight.T

    def backward(self, k, weight):
        """The gradient of x, through `weight`, is said; that of the weight is returned."""
        upstream = 2 / self.given["samples"] * (self.outputs[k] - self.given["targets"][k])
        self.said[f"backward of micro-batch {k}"] = upstream @ weight
        return upstream.T @ self.given["batches"][k]

    def ending(self, weight):
        """What must be there, with the weight that is returned."""
        return [{**self.said, RETURNS: weight}]


def at_most_alive(versions, outputs):
    """The claim that so many versions of the weight, without the first, are alive at a backward."""
    alive = outputs[0]["versions"]
    return [Claim(alive <= versions, f"{alive} versions of the weight are alive where {versions} must do")]
