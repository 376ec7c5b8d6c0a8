"""Which experts tokens choose, while a model runs: what routers have scored is read where they return it.

Where they go in the end is another matter: a full expert takes no more. That is read where it is decided.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from reference.models.moe import mixtures_in
from reference.models.ops import Around, Layer, Ops, equip
from reference.models.routing import choose, scores_of
from reference.zero.module_calls import in_backward


@contextmanager
def choices_of(model: nn.Module) -> Iterator[dict[int, list[Tensor]]]:
    """Note what the routers of a model choose inside, before any capacity.

    Args:
        model: or the stages of a rank; nothing of it changes.

    Yields:
        By the number of a block, a tensor [tokens, k] of int64 for each time that its router was asked.
    """
    found: dict[int, list[Tensor]] = {}
    hooks = []
    for number, layer in mixtures_in(model).items():
        noted = found.setdefault(number, [])

        def note(router: nn.Module, given: tuple, logits: Tensor, layer=layer, noted=noted) -> None:
            chosen = choose(scores_of(logits.detach(), layer.config), layer.config, layer.load.bias)
            noted.append(chosen.flatten(0, -2).cpu())

        hooks.append(layer.router.register_forward_hook(note))
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def routes_in(model: nn.Module) -> Iterator[dict[int, list[Tensor]]]:
    """Note where the tokens of a model go inside, after any capacity: what `expert_parallel.cost.Routes` is made of.

    Args:
        model: or the stages of a rank; its layers have other ops meanwhile, which change nothing.

    Yields:
        By the number of a block, a tensor [tokens, k] of int64 for each micro-batch, below 0 for nowhere.
    """
    number_of = {layer: number for number, layer in mixtures_in(model).items()}
    found: dict[int, list[Tensor]] = {number: [] for number in number_of.values()}
    before = {module: module.ops for module in model.modules() if isinstance(module, Layer)}
    equip(model, lambda ops: NotesDecisions(ops, lambda layer, experts: found[number_of[layer]].append(experts)))
    try:
        yield found
    finally:
        for layer, ops in before.items():
            layer.ops = ops


class NotesDecisions(Around):
    """Ops that tell what is decided, once: a block that is computed again in backward decides nothing new.

    Args:
        inside: ops of the model.
        note: told of the layer with experts, and of where its tokens go, [tokens, k].
    """

    def __init__(self, inside: Ops, note: Callable[[nn.Module, Tensor], None]) -> None:
        super().__init__(inside)
        self._note = note

    def decide(self, function: Callable[..., tuple[Tensor, ...]], *inputs: Tensor) -> tuple[Tensor, ...]:
        """As those inside."""
        decided = self.inside.decide(function, *inputs)
        if not in_backward():
            self._note(function.__self__, decided[0].flatten(0, -2).to("cpu", torch.int64))
        return decided
