"""What becomes of a step's gradients: a policy between backward and the report.

`EveryStep` updates the parameters after each batch, as synchronous training does. A policy is whatever has its `step`:
one that updates its own replica now, and all replicas together every so many steps, stands in the same place.
"""

import torch
from torch import Tensor

from reference.config import TrainConfig, learning_rate
from reference.data_parallel.gradient_sync import GradientSync
from reference.data_parallel.norm import clip, gradient_norm
from reference.memory.loss_scaling import LossScaler, NoScaler


class EveryStep:
    """Clip the gradients, take an optimizer step, let the model compute with it.

    Args:
        config: says how large steps are.
        form: whose masters have the gradients of the whole batch.
        optimizer: over these masters.
        scaler: of the loss. Where a gradient is not finite because of it, a step is left out.
        device: where this rank computes.
    """

    def __init__(
        self,
        config: TrainConfig,
        form: GradientSync,
        optimizer: torch.optim.Optimizer,
        scaler: LossScaler | NoScaler,
        device: torch.device,
    ) -> None:
        self.config, self.form, self.optimizer, self.scaler, self.device = config, form, optimizer, scaler, device

    def step(self, step: int) -> float:
        """Update the parameters, and forget the gradients. Returns the norm of all gradients before clipping."""
        norm, finite = self.measure()
        self.finish(step, norm, finite)
        return float(norm)

    def measure(self) -> tuple[Tensor, bool]:
        """The first half: gradients without the scale of the loss, their norm, and whether the scaler finds them good.

        Both are the same on all ranks that hold different parts.
        """
        gradients = [part.master.grad for part in self.form.parts]
        finite = self.scaler.unscale(gradients, self.form.shard_groups)
        counted = [part.master.grad for part in self.form.parts if part.is_primary]
        return gradient_norm(counted, self.form.shard_groups, self.device), finite

    def finish(self, step: int, norm: Tensor, counts: bool) -> None:
        """The second half: the update, if the step counts; and forget the gradients.

        Args:
            step: counted from 0.
            norm: of all gradients.
            counts: the same on every rank; False leaves the step out.
        """
        if counts:
            clip([part.master.grad for part in self.form.parts], norm, self.config.clip)
            for masters in self.optimizer.param_groups:
                masters["lr"] = learning_rate(self.config, step)
            self.optimizer.step()
        self.scaler.update(counts)
        self.form.end_step()
