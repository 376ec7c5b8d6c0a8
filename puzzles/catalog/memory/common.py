"""Models, inputs, oracles and claims that several puzzles of this chapter share."""

from typing import Any

import torch
from torch import Tensor

from puzzles.grading.drives.memory import gradients_of, small_model
from puzzles.grading.puzzle import Case, Claim, Inputs
from reference.trace import Trace

WIDTH, HIDDEN = 5, 14  # of a block


def weights(case: Case, width: int, hidden: int, out: int, name: str = "") -> dict[str, Tensor]:
    """Of a small model: see `puzzles.grading.drives.memory.small_model`. All in float64."""
    shapes = {
        "first.weight": (hidden, width), "first.bias": (hidden,), "last.weight": (out, hidden), "last.bias": (out,)
    }  # fmt: skip
    return {key: case.normal(0, *shape, name=f"{name} {key}") * 0.5 for key, shape in shapes.items()}


def blocks_and_data(case: Case, rank: int) -> dict[str, Any]:
    """Two blocks, the input of the first, and a gradient of what the second returns."""
    return {
        "blocks": [weights(case, WIDTH, HIDDEN, WIDTH, name) for name in ("lower", "upper")],
        "dropout": case.dropout,
        "first": case.first,
        "seed": case.seed + 1,
        "x": case.normal(rank, case.rows, WIDTH),
        "shift": case.normal(rank, WIDTH, name="shift"),
        "upstream": case.normal(rank, case.rows, WIDTH, name="upstream"),
    }


def forward_and_backward(case: Case, inputs: Inputs) -> list[dict[str, Any]]:
    """What autograd does by itself, with the same random numbers."""
    given = inputs[0]
    blocks = [small_model(each, given["dropout"]) for each in given["blocks"]]
    x, shift = (given[name].requires_grad_(not given["first"]) for name in ("x", "shift"))
    output = x
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(given["seed"])
        for block in blocks:
            output = block(output + shift)
        torch.rand(7)
        (output * given["upstream"]).sum().backward()
        afterwards = torch.rand(7)
    gradients = [gradients_of(block, f"block {index}, ") for index, block in enumerate(blocks)]
    values = {"returns": output.detach(), "x.grad": x.grad, "shift.grad": shift.grad}
    return [{**values, "random numbers afterwards": afterwards, **gradients[0], **gradients[1]}]


def once_there_once_back(case: Case, inputs: Inputs, outputs: list[dict[str, Any]], trace: Trace) -> list[Claim]:
    """A function runs forward once, and once more for backward."""
    runs = outputs[0]["runs"]
    return [Claim(runs <= 2, f"a function runs {runs} times where 2 must do")]


def output_bytes(case: Case) -> int:
    """Of what a block returns."""
    return 8 * case.rows * WIDTH


def output_and_anchor(case: Case) -> int:
    """Of what a block returns, and of one number that requires a gradient."""
    return output_bytes(case) + 8
