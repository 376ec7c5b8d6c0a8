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
    return {
        key: case.normal(0, *shape, name=f"{name} {key}") * min(0.5, 2 * shape[-1] ** -0.5)
        for key, shape in shapes.items()
    }


def blocks_and_data(case: Case, rank: int) -> dict[str, Any]:
    """Blocks, two of them where the case does not say, the input of the first, and a gradient of the last's output."""
    width, hidden, count = case.get("width", WIDTH), case.get("hidden", HIDDEN), case.get("blocks", 2)
    return {
        "blocks": [weights(case, width, hidden, width, f"block {index}") for index in range(count)],
        "dropout": case.dropout,
        "first": case.first,
        "seed": case.seed + 1,
        "x": case.normal(rank, case.rows, width),
        "shift": case.normal(rank, width, name="shift"),
        "upstream": case.normal(rank, case.rows, width, name="upstream"),
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
    gradients: dict[str, Tensor | None] = {}
    for index, block in enumerate(blocks):
        gradients |= gradients_of(block, f"block {index}, ")
    values = {"returns": output.detach(), "x.grad": x.grad, "shift.grad": shift.grad}
    return [{**values, "random numbers afterwards": afterwards, **gradients}]


def once_there_once_back(case: Case, inputs: Inputs, outputs: list[dict[str, Any]], trace: Trace) -> list[Claim]:
    """A function runs forward once, and once more for backward."""
    runs = outputs[0]["runs"]
    return [Claim(runs <= 2, f"a function runs {runs} times where 2 must do")]


def output_bytes(case: Case) -> int:
    """Of what a block returns."""
    return 8 * case.rows * case.get("width", WIDTH)


def output_and_anchor(case: Case) -> int:
    """Of what a block returns, and of one number that requires a gradient."""
    return output_bytes(case) + 8
