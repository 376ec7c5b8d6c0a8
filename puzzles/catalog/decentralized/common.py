"""What several puzzles of this chapter share: an island with a parabola, and all islands in one process."""

import torch

FLOAT = 8


def parabola(case, rank):
    """Equal weights on all ranks, and a parabola of each rank's own."""
    return {
        "weight": case.normal(0, case.length, name="weight"),
        "curvature": case.normal(rank, case.length, name="curvature").abs().clamp(0.2, 2.0),
        "target": case.normal(rank, case.length, name="target"),
        "rate": 0.25,
    }


def step_alone(weight, own):
    """An island's step; a new tensor."""
    return weight - own["rate"] * own["curvature"] * (weight - own["target"])


def rounds_in_one_process(inputs, rounds, inner_steps, meet):
    """All islands, side by side: `meet(weights)` gives the weight that all begin the next round with."""
    weights = [each["weight"] for each in inputs]
    for _ in range(rounds):
        for _ in range(inner_steps):
            weights = [step_alone(weight, own) for weight, own in zip(weights, inputs, strict=True)]
        weights = [meet(weights)] * len(inputs)
    return weights[0]


def with_sgd_outside(start, rate, momentum):
    """The outer optimizer, by torch itself: what `rounds_in_one_process` takes as `meet`."""
    anchor = torch.nn.Parameter(start.clone())
    optimizer = torch.optim.SGD([anchor], lr=rate, momentum=momentum, nesterov=momentum > 0)

    def meet(weights):
        anchor.grad = anchor.detach() - torch.stack(weights).mean(0)
        optimizer.step()
        return anchor.detach().clone()

    return meet
