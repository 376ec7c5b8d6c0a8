"""Drives of the chapter `context_parallel`: they go backward from attention, or let it take time."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from reference.context_parallel import plain

from ..overlap import Work
from .tensor_parallel import by_name


def there_and_back_from(
    names: Sequence[str], function: Callable[..., Any], arguments: dict[str, Any]
) -> dict[str, Any]:
    """It returns several tensors. Go backward from all of them to every argument that is a tensor of floats.

    The argument `upstreams` has the gradient of each tensor that it returns; the function does not see it. Compare what
    it returns, by these names, and each gradient by the name of its argument: "query.grad".
    """
    upstreams = arguments.pop("upstreams")
    leaves = {name: x for name, x in arguments.items() if isinstance(x, Tensor) and x.is_floating_point()}
    for leaf in leaves.values():
        leaf.requires_grad_()
    found = by_name(names, function(**arguments))
    pairs = zip(map(found.get, names), upstreams, strict=True)
    with_history = [(x, upstream) for x, upstream in pairs if isinstance(x, Tensor) and x.requires_grad]
    if terms := [(x * upstream).sum() for x, upstream in with_history if x.shape == upstream.shape]:
        sum(terms).backward()
    found = {name: x.detach() if isinstance(x, Tensor) else x for name, x in found.items()}
    return {**found, **{f"{name}.grad": leaf.grad for name, leaf in leaves.items()}}


def with_attention_that_takes_time(
    names: Sequence[str], function: Callable[..., Any], arguments: dict[str, Any]
) -> dict[str, Any]:
    """Give it `attend`, attention to one block, which takes the argument `seconds` on the model's clock.

    Compare what it returns, by these names, and all arguments.
    """
    seconds, work = arguments.pop("seconds"), Work()

    def attend(query: Tensor, key: Tensor, value: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
        work(seconds)
        return plain.attend(query, key, value, seen)

    return {**arguments, **by_name(names, function(**arguments, attend=attend)), **work.notes}
