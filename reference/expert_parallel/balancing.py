"""How busy experts are, over all ranks, and the step that evens it out without a loss.

An auxiliary loss has a gradient of its own, which disturbs the one that is wanted. A bias has none: it is added to
scores when experts are chosen, and nowhere else. After each step the bias of an expert that got more tokens than the
mean falls by a constant, and that of any other rises (Wang et al. 2024, "Auxiliary-loss-free load balancing strategy
for mixture-of-experts", algorithm 1). The mean of all biases changes no choice; so it is kept at zero.

Counts are of a whole step, whatever micro-batches and ranks it is cut into, and no gradient depends on them: so the
bias is the same on all ranks, and that of one process.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from reference.collectives.communicator import Communicator
from reference.models.moe import MixtureOfExperts, mixtures_in
from reference.models.moe_config import Balance, MoEConfig


@dataclass(frozen=True)
class StepLoad:
    """Of one step, over all ranks."""

    counts: Tensor  # [layers with experts, E] of int64: choices
    dropped: int  # of them
    loss: float  # auxiliary, of all layers

    @property
    def imbalance(self) -> float:
        """Of the worst layer: tokens of its busiest expert, as a multiple of the mean. 1 where no layer has any."""
        counts = self.counts.double()
        return float((counts.amax(1) / counts.mean(1).clamp(min=1e-9)).max()) if len(counts) else 1.0

    @property
    def dropped_share(self) -> float:
        """Of all choices."""
        return self.dropped / max(1, int(self.counts.sum()))


class Balancing:
    """The routers of a model, as one of its ranks sees them.

    Args:
        model: with the layers of this rank.
        config: of the whole model.
        everyone: all ranks, each with other tokens or other layers; None where there is one.
    """

    def __init__(self, model: nn.Module, config: MoEConfig, everyone: Communicator | None = None) -> None:
        self.config, self.everyone = config, everyone
        self.layers: Mapping[int, MixtureOfExperts] = mixtures_in(model)
        self.bias = torch.zeros(config.layers, config.experts, dtype=torch.float64)
        self._hand_out()

    def begin_step(self, tokens: int, scale: float = 1.0) -> None:
        """Count from zero.

        Args:
            tokens: of the whole step, by which losses are divided.
            scale: of the loss, where it is scaled for fp16.
        """
        for layer in self.layers.values():
            layer.load.begin_step(tokens, scale)

    def end_step(self) -> StepLoad:
        """Say what the step has seen, and move the bias. All ranks call it."""
        config, device = self.config, self._device()
        rows = torch.zeros(config.layers, config.experts + 2, dtype=torch.float64, device=device)
        for number, layer in self.layers.items():
            load = layer.load
            if load.counts is not None:
                rows[number, : config.experts] = load.counts
                rows[number, -2], rows[number, -1] = load.dropped, load.loss
        if self.everyone is not None and self.everyone.size() > 1:
            self.everyone.all_reduce(rows)
        rows = rows[list(config.expert_layers)].cpu()
        counts = rows[:, : config.experts]
        if config.balance is Balance.BIAS:
            self._move(counts)
        return StepLoad(counts.round().long(), round(float(rows[:, -2].sum())), float(rows[:, -1].sum()))

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run must know: the same on every rank."""
        return {"bias": self.bias.tolist()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from there."""
        self.bias = torch.tensor(state["bias"], dtype=torch.float64)
        self._hand_out()

    def _move(self, counts: Tensor) -> None:
        """A step of the bias of every layer."""
        for layer, of_experts in zip(self.config.expert_layers, counts, strict=True):
            self.bias[layer] = moved(self.bias[layer], of_experts, self.config.balance_rate)
        self._hand_out()

    def _hand_out(self) -> None:
        if self.config.balance is Balance.BIAS:
            for number, layer in self.layers.items():
                layer.load.bias = self.bias[number].to(self._device())

    def _device(self) -> torch.device:
        return next((layer.router.weight.device for layer in self.layers.values()), torch.device("cpu"))


def moved(bias: Tensor, counts: Tensor, rate: float) -> Tensor:
    """The bias [E] after a step in which experts got so many tokens, [E]."""
    after = bias + rate * (counts.mean() - counts).sign()
    return after - after.mean()
