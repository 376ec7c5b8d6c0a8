"""Which experts tokens choose, while a model runs: what routers have scored is read where they return it."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from reference.models.moe import mixtures_in
from reference.models.routing import choose, scores_of


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
