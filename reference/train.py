"""Train a GPT on N ranks: the loop, readable top to bottom.

    torchrun --nproc-per-node 4 -m reference.train          on gloo, or on NCCL where every rank has a GPU
    rankwise train --ranks 4                                the same loop on a warm cluster of this machine

What is learned is one thing, `TrainConfig`; how the work is laid out over ranks is another, `Plan`. The loop is the
same for all plans, and so are the numbers that come out of it.

One rule makes N ranks equal to one: each rank divides the sum of its token losses by the number of tokens of *all*
ranks and micro-batches, before backward. Parts of the loss and of the gradients then add up, whatever the layout.
"""

import math
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from reference import on_gpus
from reference.data_parallel import UpdateForm, clip, gradient_norm
from reference.dtypes import accumulator
from reference.errors import BadInput
from reference.memory.loss_scaling import scaler_of
from reference.memory.offload import Offload, OffloadedOptimizer, home_of
from reference.memory.precision import PRECISIONS, Precision
from reference.models import PRESETS, GPTConfig
from reference.models.data import Batches, file_text, python_text
from reference.parallelize import SIMPLEST, Plan, parallelize
from reference.report import Report, Step, silent
from reference.saves import Saves


@dataclass(frozen=True)
class TrainConfig:
    """Everything that decides what is learned. The number of ranks is not part of it: it changes nothing."""

    model: GPTConfig = PRESETS["demo"]
    data: str | None = None  # a file of text; Python's own documentation by default
    steps: int = 300
    stop_after: int | None = None  # take only the first steps of those planned, 1 or more
    batch: int = 16  # windows in a step, of all ranks together
    sequence: int = 128  # tokens in a window
    learning_rate: float = 3e-3  # at its peak
    warmup: int = 20  # steps until the peak
    weight_decay: float = 0.1
    clip: float = 1.0  # a longer gradient is scaled down to this norm
    seed: int = 0
    precision: Precision = PRECISIONS["fp32"]

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise BadInput(f"training takes at least 1 step, not {self.steps}")
        if self.stop_after is not None and not 1 <= self.stop_after <= self.steps:
            raise BadInput(f"training stops after 1 to {self.steps} steps, not {self.stop_after}")
        if self.warmup < 0:
            raise BadInput(f"a warmup takes 0 steps or more, not {self.warmup}")
        if not self.clip > 0:
            raise BadInput(f"gradients are clipped to a positive norm, not {self.clip}")
        if not 0 < self.learning_rate < math.inf:
            raise BadInput(f"a learning rate is a positive number, not {self.learning_rate}")
        if self.seed < 0:
            raise BadInput(f"a seed is 0 or more, not {self.seed}")
        if self.model.vocabulary != 256:
            raise BadInput(f"tokens are bytes here, and this model has a vocabulary of {self.model.vocabulary:,}")


class Training:
    """A model on the ranks of `group`, which all make one and take the same steps, each with its part of the batch.

    Args:
        config: what to learn.
        group: n ranks that share each batch; one rank is as good as many.
        device: where this rank computes.
        plan: how the work is laid out.

    Raises:
        BadInput: if text, batch, plan and ranks do not fit.
    """

    def __init__(
        self, config: TrainConfig, group: dist.ProcessGroup, device: torch.device, plan: Plan = SIMPLEST
    ) -> None:
        self.config, self.group, self.device, self.plan = config, group, device, plan
        plan.require_fit(group.size(), config.model, config.sequence)
        self.batches = batches_for(config, plan.readers(group.size()), plan.accumulate)
        parallel = parallelize(config.model, plan, group, device, config.precision, config.seed)
        self.model, self.loss, self.form = parallel.model, parallel.loss, parallel.form
        self.data, self.losses = parallel.data, parallel.losses
        self.pipeline, self.inference = parallel.pipeline, parallel.inference
        self.optimizer = optimizer_for(config, plan, self.form)
        self.scaler = scaler_of(config.precision)
        if self.pipeline and on_gpus.is_gpu(device):
            self.warm_up()

    def backward(self, step: int) -> Tensor:
        """Forward and backward of this rank's part of a batch. Masters have the whole gradient afterwards.

        Returns:
            The part of the loss, in nats per token, of the ranks that read what this one reads: a scalar. In a
            pipeline, on ranks that have the last stage, and zero on the others.
        """
        read = [self._micro_batch(step, k) for k in range(self.plan.accumulate)]
        parts: list[Tensor] = []

        def loss(logits: Tensor, k: int) -> Tensor:
            part = self.loss(logits, read[k][1], self.batches.tokens)
            parts.append(part.detach())
            return self.scaler.scale(part)

        with self.config.precision.products():
            if self.pipeline:
                self.pipeline.step(lambda k: (read[k][0], positions_of(read[k][0]), read[k][2]), loss)
            else:
                for k, (tokens, _, noise) in enumerate(read):
                    with self.form.micro_batch(last=k == len(read) - 1):
                        loss(self.model(tokens, noise=noise), k).backward()
        self.form.collect()
        dtype = accumulator(self.config.precision.compute)  # of losses, also where there is none
        return sum(parts, torch.zeros((), dtype=dtype, device=self.device))

    def warm_up(self) -> None:
        """Use every kernel of a step of a pipeline once, before messages are under way: see `reference.on_gpus`.

        It reads a micro-batch, sums its gradients over the data axis as a step does, and forgets them.
        """
        tokens, targets, noise = self._micro_batch(0, 0)
        slices = self.plan.tensor_parallel if self.plan.sequence_parallel else 1
        shape = tokens.shape[0], tokens.shape[1] // slices, self.config.model.width
        like = torch.randn(shape, dtype=self.config.precision.compute, device=self.device)

        parts: list[Tensor] = []

        def loss(logits: Tensor, k: int) -> Tensor:
            parts.append(self.loss(logits, targets, self.batches.tokens))
            return self.scaler.scale(parts[-1])

        with self.config.precision.products():
            self.pipeline.warm_up(lambda k: (tokens, positions_of(tokens), noise), like, loss)
        self.form.collect()
        self.form.publish()

    def _micro_batch(self, step: int, k: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """Tokens, targets, and from what dropout follows: what this rank reads in its k-th micro-batch of a step."""
        number, parts = self.data.rank() * self.plan.accumulate + k, self.data.size() * self.plan.accumulate
        tokens, targets = (on_its_way(x, self.device) for x in self.batches.of_step(step, number, parts))
        if self.config.model.dropout == 0:
            return tokens, targets, None
        return tokens, targets, on_its_way(self.batches.noise(step, number, parts), self.device)

    def update(self, step: int) -> float:
        """Clip the gradients, take an optimizer step, forget the gradients.

        With a scaled loss the step is left out where a gradient is not finite.

        Returns:
            The norm of all gradients before clipping.
        """
        gradients = [part.master.grad for part in self.form.parts]
        finite = self.scaler.unscale(gradients, self.form.shards)
        counted = [part.master.grad for part in self.form.parts if part.is_primary]
        norm = gradient_norm(counted, self.form.shards, self.device)
        if finite:
            clip(gradients, norm, self.config.clip)
            for masters in self.optimizer.param_groups:
                masters["lr"] = learning_rate(self.config, step)
            self.optimizer.step()
        self.scaler.update(finite)
        self.form.publish()
        return float(norm)


def train(
    config: TrainConfig,
    group: dist.ProcessGroup,
    device: torch.device,
    plan: Plan = SIMPLEST,
    report: Report = silent,
    saves: Saves | None = None,
) -> Training:
    """Train on the ranks of `group`, which all call this with the same arguments.

    Args:
        config, group, device, plan: as of `Training`.
        report: told of every step.
        saves: where to save, and whether to go on from what is there.

    Raises:
        BadInput: if text, batch, plan and ranks do not fit, or a checkpoint cannot be saved or loaded.
    """
    training = Training(config, group, device, plan)
    first, last = saves.begin(training) if saves else 0, config.stop_after or config.steps
    began = time.perf_counter()
    for step in range(first, last):
        loss = training.backward(step)
        gradient_norm = training.update(step)
        seconds, tokens = time.perf_counter() - began, (step + 1) * training.batches.tokens
        report(Step(step + 1, summed(loss, training.losses), gradient_norm, tokens, seconds, first))
        if saves and saves.due(step + 1, last):
            saves.save(training, step + 1)
    return training


def on_its_way(x: Tensor, device: torch.device) -> Tensor:
    """`x` on a device. To a GPU it travels from page-locked memory, and nobody waits for it here."""
    return x.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else x.to(device)


def positions_of(tokens: Tensor) -> Tensor:
    """Where tokens [B, S] stand in their windows: [S]. Stages that see slices of them must be told."""
    return torch.arange(tokens.shape[1], device=tokens.device)


def batches_for(config: TrainConfig, world_size: int, accumulate: int = 1) -> Batches:
    """The data of a run.

    Raises:
        BadInput: if the file cannot be used, the text is too short, or the batch does not divide among ranks and
            micro-batches.
    """
    if config.batch % world_size:
        raise BadInput(f"a batch of {config.batch} windows does not divide among {world_size} ranks")
    if config.batch % (world_size * accumulate):
        share = config.batch // world_size
        raise BadInput(f"a rank's {share} windows of a batch do not divide among {accumulate} micro-batches")
    text = python_text() if config.data is None else file_text(config.data)
    return Batches.of(text, config.sequence, config.batch, config.seed)


def optimizer_for(config: TrainConfig, plan: Plan, form: UpdateForm) -> torch.optim.Optimizer:
    """AdamW (Loshchilov and Hutter 2019), with the second moment forgotten faster, as language models like it."""
    masters = [part.master for part in form.parts] or [torch.nn.Parameter(torch.empty(0))]  # a rank may have no part
    options = {"lr": config.learning_rate, "betas": (0.9, 0.95), "weight_decay": config.weight_decay}
    if plan.offload is Offload.NONE:
        return torch.optim.AdamW(masters, fused=True, **options)  # one pass over memory, not one for each operation
    return OffloadedOptimizer(torch.optim.AdamW, masters, home_of(plan.offload, plan.offload_folder), **options)


def learning_rate(config: TrainConfig, step: int) -> float:
    """A cosine from the peak down to a tenth, times a line up for `warmup` steps. `step` counts from 0."""
    warmth = min(1.0, (step + 1) / config.warmup) if config.warmup else 1.0
    return config.learning_rate * warmth * (0.55 + 0.45 * math.cos(math.pi * step / config.steps))


def summed(x: Tensor, group: dist.ProcessGroup) -> float:
    """The sum of everybody's scalar `x`."""
    whole = x.clone()
    dist.all_reduce(whole, group=group)
    return float(whole)


@torch.no_grad()
def validation_loss(training: Training) -> float:
    """Nats per token of the held-out text, which the ranks read together.

    A rank with fewer windows than others reads one again, and does not count it: where parameters are shared out, all
    must go through the model equally often.
    """
    batches, group, device = training.batches, training.data, training.device
    rank, world_size = group.rank(), group.size()
    mine = batches.validation(rank, world_size)
    spare = mine[-1] if mine else batches.of_step(0, rank, world_size)
    part = torch.zeros((), dtype=torch.float64, device=device)
    for number in range(batches.validation_rounds(world_size)):
        counts = number < len(mine)
        tokens, targets = (x.to(device) for x in (mine[number] if counts else spare))
        with training.config.precision.products():
            loss = forward_loss(training, tokens, targets, len(batches.held_out) * batches.sequence)
        part += loss if counts and loss is not None else 0.0
    return summed(part, training.losses)


def forward_loss(training: Training, tokens: Tensor, targets: Tensor, global_tokens: int) -> Tensor | None:
    """The part of the loss that these tokens make; None on ranks of a pipeline that do not have the last stage."""
    if training.inference is None:
        return training.loss(training.model(tokens), targets, global_tokens)
    return training.inference(tokens.shape).step(
        lambda k: (tokens, positions_of(tokens)), lambda logits, k: training.loss(logits, targets, global_tokens)
    )


if __name__ == "__main__":
    import sys

    from reference.launch import main

    sys.exit(main())
