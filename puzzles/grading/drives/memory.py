"""How the puzzles of the chapter `memory` call a solution: with a small model, several steps in a row, a host.

Models are made of torch's own modules: what those compute counts as memory of the solution that calls them.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from reference.memory.lab.host import Host

from . import gone_back


def small_model(weights: Mapping[str, Tensor], dropout: float = 0.0) -> nn.Sequential:
    """Linear, GELU, dropout, linear, with these weights; an embedding before that, where they have one.

    Args:
        weights: "first.weight" (H, D), "first.bias" (H), "last.weight" (V, H), "last.bias" (V), and perhaps
            "embedding.weight" (V, D); copied, all of one dtype.
        dropout: the share of elements that is dropped; 0 leaves the module out.
    """
    (hidden, width), (out, _) = weights["first.weight"].shape, weights["last.weight"].shape
    layers = {"embedding": nn.Embedding(out, width)} if "embedding.weight" in weights else {}
    layers |= {"first": nn.Linear(width, hidden), "gelu": nn.GELU()}
    layers |= {"dropout": nn.Dropout(dropout)} if dropout else {}
    model = nn.Sequential(OrderedDict(**layers, last=nn.Linear(hidden, out))).to(weights["last.bias"].dtype)
    model.load_state_dict(weights)
    return model


def gradients_of(model: nn.Module, prefix: str = "") -> dict[str, Tensor | None]:
    """The gradient of each parameter, by its name."""
    return {f"{prefix}{name}.grad": parameter.grad for name, parameter in model.named_parameters()}


def on_a_model(function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Give the function a `model` with the argument `weights`. Compare what it returns, and all gradients.

    And whether what it returns has a history, which would keep a graph alive.
    """
    model = small_model(arguments.pop("weights"))
    loss = function(model=model, **arguments)
    history = isinstance(loss, Tensor) and loss.requires_grad
    return {"returns": loss, "the result has a history": history, **gradients_of(model)}


def through_blocks(wrapper: Callable[..., Tensor], arguments: dict[str, Any]) -> dict[str, Any]:
    """Call `wrapper(function, x, shift)` for one block after the other, then go backward from the argument `upstream`.

    The argument `blocks` has the weights of each. A function adds `shift` to x, and sends it through its block. `first`
    says that x and shift come from the data, and need no gradient. Random numbers begin at `seed`, and some are drawn
    between forward and backward, as a layer further on would.

    Compare the output, all gradients, and the random numbers that the next caller would draw; and, as "runs", how
    often a block was called.
    """
    blocks = [small_model(weights, arguments["dropout"]) for weights in arguments["blocks"]]
    x, shift = (arguments[name].requires_grad_(not arguments["first"]) for name in ("x", "shift"))
    runs = [0] * len(blocks)

    def function_of(index: int) -> Callable[[Tensor, Tensor], Tensor]:
        def function(x: Tensor, shift: Tensor) -> Tensor:
            runs[index] += 1
            return blocks[index](x + shift)

        return function

    torch.manual_seed(arguments["seed"])
    output = x
    for index in range(len(blocks)):
        output = wrapper(function_of(index), output, shift)
    torch.rand(7)
    found = {"returns": gone_back(output, arguments["upstream"]), "runs": max(runs)}
    found |= {"x.grad": x.grad, "shift.grad": shift.grad, "random numbers afterwards": torch.rand(7)}
    for index, block in enumerate(blocks):
        found |= gradients_of(block, f"block {index}, ")
    return found


def mixed_precision_steps(function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Call it once for each step's list in the argument `gradients`.

    Compare what it returned each time, and all weights and gradients afterwards.
    """
    steps = arguments.pop("gradients")
    norms = [function(gradients=gradients, **arguments) for gradients in steps]
    weights = {f"{kind} {i}": x for kind in ("masters", "working") for i, x in enumerate(arguments[kind])}
    return {"returns": norms, **weights, "gradients": steps}


def scaled_steps(function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Call it for one step after the other, with float16 gradients that are scaled as it asks for.

    The argument `gradients` has the true ones of each step, in float32. Compare the scale and the number of good steps
    after each step, and the masters after the last.
    """
    scale, good_steps, history = arguments.pop("scale"), 0, []
    for true in arguments.pop("gradients"):
        gradients = [(gradient * scale).half() for gradient in true]
        answer = function(gradients=gradients, scale=scale, good_steps=good_steps, **arguments)
        if not isinstance(answer, tuple) or len(answer) != 2:
            return {"scale and good steps": answer}
        scale, good_steps = answer
        history.append(list(answer))
    masters = {f"masters {i}": master for i, master in enumerate(arguments["masters"])}
    return {"scale and good steps": history, **masters}


def with_a_host(function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Call it for one step after the other, with a host that has zeros for the moments of each parameter.

    The argument `gradients` has those of each step. Compare the parameters and the gradients afterwards.
    """
    parameters, host = arguments["parameters"], Host()
    for i, parameter in enumerate(parameters):
        host.store(f"m{i}", torch.zeros_like(parameter))
        host.store(f"v{i}", torch.zeros_like(parameter))
    steps = arguments.pop("gradients")
    for step, gradients in enumerate(steps, 1):
        function(gradients=gradients, fetch=host.fetch, store=host.store, step=step, **arguments)
    return {**{f"parameter {i}": parameter for i, parameter in enumerate(parameters)}, "gradients": steps}
