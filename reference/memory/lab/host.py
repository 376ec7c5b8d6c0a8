"""The host's memory beside a device, for `plain.offloaded_adam`."""

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
