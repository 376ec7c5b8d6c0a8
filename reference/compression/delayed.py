"""Linear layers of 8-bit numbers whose scales come from the steps before, under any plan.

This is `plain_low_bits.DelayedScale` in `low_bits`. To find a scale now is to look at all numbers before the product,
and with tensor parallelism to wait for a message in each layer. A scale from the past needs neither: numbers are
rounded at once, their largest is noted on the way, and after the step one message tells what all have noted.

| scale of     | one for          | known from              | agreed, once in a step, over       |
|--------------|------------------|-------------------------|------------------------------------|
| what goes in | a layer          | the largest of 16 steps | all ranks that have the layer      |
| gradients    | a layer, in E5M2 | likewise                | likewise                           |
| weights      | a matrix         | now: they change once   | as in `low_bits` and `gathered`    |

Tensors of a layer are spread over all ranks that have the layer, tokens here and features there: not over other stages
of a pipeline, which are not asked. The first step has no past, and multiplies in full. A number that has grown beyond
the past is cut off; one that is not finite is not remembered, since no scale would come of it for 16 steps; and where
all were zero, as gradients are behind weights of zero, a scale that follows from that would lose the first others.

Micikevicius et al. 2022, "FP8 formats for deep learning" (2209.05433), section 3.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from math import isfinite

import torch
import torch.distributed as dist
from torch import Tensor

from reference.collectives.communicator import Communicator
from reference.compression.low_bits import LowBits, Round
from reference.compression.plain_low_bits import E5M2, FP8, EightBitNumbers, codes, scale_of
from reference.models.ops import Linear, Ops

INPUT, GRADIENT = "input", "gradient"
NUMBERS = {INPUT: FP8, GRADIENT: E5M2}
STEPS = 16  # that are remembered


class PastScales:
    """What layers remember of the largest numbers of the steps before.

    Args:
        names: of all layers of this rank, as in the whole model.
        communicator: of all ranks that have these layers.
    """

    def __init__(self, names: Mapping[object, str], communicator: Communicator) -> None:
        self.names, self.communicator = names, communicator
        self.history: dict[str, deque[float]] = {}
        self._scale: dict[str, float] = {}
        self._now: dict[str, Tensor] = {}

    def round(self, layer: Linear, kind: str, x: Tensor, notes: bool = True) -> Tensor:
        """`x` as 8-bit numbers say it; its largest is noted for later, if it is to count."""
        key = f"{self.names[getattr(layer, 'of', layer)]}.{kind}"
        if notes:
            largest = x.abs().amax()
            self._now[key] = torch.maximum(self._now[key], largest) if key in self._now else largest
        if key not in self._scale:
            return x
        return codes(x, self._scale[key], NUMBERS[kind]).to(x.dtype) * self._scale[key]

    def end_step(self) -> None:
        """Remember what this step has noted on all ranks that have these layers. They call this together."""
        keys = sorted(self._now)
        if not keys:
            return
        known = torch.stack([self._now[key].float() for key in keys])
        agreed = known.clone()
        if self.communicator.size() > 1:
            self.communicator.all_reduce(agreed, dist.ReduceOp.MAX)
        for key, largest in zip(keys, torch.maximum(agreed, known).tolist(), strict=True):
            if isfinite(largest) and largest > 0:
                self._remember(key, [*self.history.get(key, ()), largest])
        self.forget()

    def forget(self) -> None:
        """Forget what was noted since the last step."""
        self._now.clear()

    def state_dict(self) -> dict[str, list[float]]:
        """Of the layers of this rank; `saved_scales` has those of all stages."""
        return {key: list(known) for key, known in self.history.items()}

    def load_state_dict(self, state: Mapping[str, Sequence[float]]) -> None:
        """Remember what those have of which some were this rank's layers, on whatever ranks."""
        here = set(self.names.values())
        self.history.clear()
        self._scale.clear()
        for key, known in state.items():
            if key.rpartition(".")[0] in here:
                self._remember(key, known)

    def _remember(self, key: str, known: Sequence[float]) -> None:
        self.history[key] = deque(known, STEPS)
        numbers: EightBitNumbers = NUMBERS[key.rpartition(".")[2]]
        self._scale[key] = float(scale_of(torch.tensor(max(self.history[key])), numbers))


class Delayed(LowBits):
    """Linear layers whose products are of fp8 numbers with scales from the past.

    By no kernel: on GPUs, too, codes times scales are multiplied in the dtype that is computed in.

    Args:
        inside: that make the products.
        scales: of this rank's layers.
        tensor: ranks of the tensor axes, if there are several; they agree on weights.
    """

    def __init__(self, inside: Ops, scales: PastScales, tensor: Communicator | None = None) -> None:
        super().__init__(inside, FP8, tensor)
        self.scales = scales

    def input_rounding(self, layers: Sequence[Linear], split: bool) -> Round:
        """As for `LowBits`. What is only evaluated is not noted."""
        notes = torch.is_grad_enabled()
        return lambda x: [self.scales.round(layers[0], INPUT, x, notes)]

    def gradient_rounding(self, layers: Sequence[Linear], split: bool) -> Round:
        """As for `LowBits`."""
        return lambda *gradients: [
            self.scales.round(layer, GRADIENT, each) for layer, each in zip(layers, gradients, strict=True)
        ]

    def _has_kernel(self, x: Tensor, layers: Sequence[Linear]) -> bool:
        return False
