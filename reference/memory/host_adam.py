"""Adam whose state stays in the host's memory: the device sees one parameter's share of it at a time.

Two moments in float32 are 8 of the 16 bytes that a parameter costs in mixed precision, and they are needed once a
step. Kept on the host and fetched one parameter at a time, they take twice the largest parameter of the device's
memory, and 16 bytes a parameter over the bus at each step. `reference.memory.offload` does it the other way around, as
Ren et al. 2021, "ZeRO-Offload", do: the update is computed on the host, and only gradient and weight travel.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor


class Host:
    """Memory outside the device. What goes in and out is copied; nothing is shared."""

    def __init__(self) -> None:
        self._arrays: dict[str, np.ndarray] = {}

    def store(self, name: str, value: Tensor) -> None:
        """Copy a tensor to the host, in place of what had this name."""
        self._arrays[name] = value.detach().cpu().numpy().copy()

    def fetch(self, name: str) -> Tensor:
        """A new tensor on the device. Raises KeyError where nothing was stored under this name."""
        array = torch.from_numpy(self._arrays[name])
        return torch.empty_like(array).copy_(array)


def offloaded_adam(
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    fetch: Callable[[str], Tensor],
    store: Callable[[str, Tensor], None],
    step: int,
    learning_rate: float = 1e-3,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
) -> None:
    """One step of Adam (Kingma & Ba 2015), in place.

    Args:
        parameters: float32 or float64.
        gradients: of the same shapes and dtypes.
        fetch: gives the moments of parameter i by their names, "m{i}" and "v{i}"; zeros before the first step.
        store: takes them back: `Host.fetch` and `Host.store`, for example.
        step: the number of this step; the first is 1.
    """
    for i, (parameter, gradient) in enumerate(zip(parameters, gradients, strict=True)):
        m = fetch(f"m{i}").mul_(beta1).add_(gradient, alpha=1 - beta1)
        v = fetch(f"v{i}").mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        store(f"m{i}", m)
        store(f"v{i}", v)
        root = v.div_(1 - beta2**step).sqrt_().add_(epsilon)
        parameter.addcdiv_(m, root, value=-learning_rate / (1 - beta1**step))
