"""Train a GPT on N ranks: the loop, readable top to bottom.

    torchrun --nproc-per-node 4 -m reference.train          on gloo, or on NCCL where every rank has a GPU
    rankwise train --ranks 4                                the same loop on a warm cluster of this machine

What is learned is one thing, `TrainConfig`; how the work is laid out over ranks is another, `Plan`. The loop is the
same for all plans, and so are the numbers that come out of it.

One rule makes N ranks equal to one: each rank divides the sum of its token losses by the number of tokens of *all*
ranks and micro-batches, before backward. Parts of the loss and of the gradients then add up, whatever the layout.
"""

import time
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor

from reference import on_gpus
from reference.choices import MOMENTUM_TRAVELS, LinearNumbers, Optimizer, Outer
from reference.collectives.default import Communicate, over
from reference.compression.choice import compressor_of
from reference.compression.one_bit_adam import Momenta
from reference.compression.saved_scales import SavedScales
from reference.config import TrainConfig
from reference.data_parallel.remembered import nothing_remembered
from reference.decentralized.aggregation import require_agreement
from reference.decentralized.asynchronous import order_of
from reference.decentralized.islands import MeetingUpdates, Outside, island_size
from reference.dtypes import accumulator
from reference.engine import Batch
from reference.errors import BadInput
from reference.expert_parallel.balancing import Balancing, StepLoad
from reference.memory.loss_scaling import scaler_of
from reference.memory.offload import Offload
from reference.models.data import Batches, file_text, python_text
from reference.optimizers import optimizer_for
from reference.parallelize import DEFAULT_PLAN, Plan, parallelize
from reference.report import Report, StepReport, silent
from reference.resilience.spikes import SpikeGuard
from reference.saves import Saves, saving
from reference.updates import EveryStep


class Training:
    """A model on the ranks of `group`, which all make one and take the same steps, each with its part of the batch.

    Args:
        config: what to learn. With islands each has its own model, and `loss_group` is of this rank's.
        group: n ranks that share each batch; one rank is as good as many.
        device: where this rank computes.
        plan: how the work is laid out.
        communicate: makes what strategies talk through, as for `parallelize`.

    Raises:
        BadInput: if text, batch, plan and ranks do not fit.
    """

    def __init__(
        self,
        config: TrainConfig,
        group: dist.ProcessGroup,
        device: torch.device,
        plan: Plan = DEFAULT_PLAN,
        communicate: Communicate = over,
    ) -> None:
        self.config, self.group, self.device, self.plan = config, group, device, plan
        require_fit(config, plan, group.size())
        outside = Outside(config, group, communicate)
        self.batches = outside.batches(batches_for(config, plan.dp_size(group.size()), plan.micro_batches))
        group = outside.group  # from here on: the ranks of this one's island
        parallel = parallelize(
            config.model,
            plan,
            group,
            device,
            config.precision,
            config.seed,
            communicate,
            config.sequence,
            config.linear,
            compressor_of(config, momenta := Momenta()),
        )
        self.model, self.loss, self.form = parallel.model, parallel.loss, parallel.form
        self.data, self.loss_group = parallel.data, parallel.loss_group
        self.context_rank = plan.mesh(group.size(), config.model).coordinates(group.rank())["cp"]
        self.engine, self.inference, self.parameters = parallel.engine, parallel.inference, parallel.parameters
        self.scales = parallel.scales
        self.optimizer = optimizer_for(config, plan, self.form, communicate(group))
        momenta.attach(self.form.parts, self.optimizer)
        self.scaler = scaler_of(config.precision)
        self.updates = EveryStep(config, self.form, self.optimizer, self.scaler, device)
        self.saved = outside.saved(self.form, self.optimizer)
        self.balancing = Balancing(self.model, config.model, over(group)) if config.model.experts else None
        self.load: StepLoad | None = None  # of experts, in the step before
        self.stateful = {"scaler": self.scaler}  # what a checkpoint keeps by name, besides masters and optimizer
        if self.balancing:
            self.stateful["balancing"] = self.balancing
        if self.scales:
            self.stateful["scales"] = SavedScales(self.scales, group)
        if config.outer is not Outer.NONE:
            self.updates = MeetingUpdates(self.updates, outside.meeting(self.form, self.optimizer), config)
            self.stateful["islands"] = self.updates
        self.guard = SpikeGuard(self, config.spikes) if config.spikes else None
        if self.engine.needs_warm_up and on_gpus.is_gpu(device):
            self.warm_up()

    def backward(self, step: int) -> Tensor:
        """Forward and backward of this rank's part of a batch. Masters have the whole gradient afterwards.

        Returns:
            The part of the loss, in nats per token, of the ranks that read what this one reads: a scalar. In a
            pipeline, on ranks that have the last stage, and zero on the others.
        """
        read = [self._batch(step, k) for k in range(self.plan.micro_batches)]
        if self.balancing:
            self.balancing.begin_step(self.batches.tokens, self.scaler.scale(1.0))
        parts: list[Tensor] = []

        def loss(logits: Tensor, k: int) -> Tensor:
            part = self.loss(logits, read[k].targets, self.batches.tokens)
            parts.append(part.detach())
            return self.scaler.scale(part)

        with self.config.precision.products():
            self.engine.step(lambda k: read[k].inputs, loss)
        self.form.reduce_gradients()
        dtype = accumulator(self.config.precision.compute)  # of losses, also where there is none
        return sum(parts, torch.zeros((), dtype=dtype, device=self.device))

    def warm_up(self) -> None:
        """Use every kernel of a step of a pipeline once, before messages are under way: see `reference.on_gpus`.

        It reads a micro-batch, sums its gradients over the data axis as a step does, and forgets them.
        """
        batch = self._batch(0, 0)
        slices = self.plan.tensor_parallel if self.plan.sequence_parallel else 1
        shape = batch.tokens.shape[0], batch.tokens.shape[1] // slices, self.config.model.width
        like = torch.randn(shape, dtype=self.config.precision.compute, device=self.device)

        parts: list[Tensor] = []

        def loss(logits: Tensor, k: int) -> Tensor:
            parts.append(self.loss(logits, batch.targets, self.batches.tokens))
            return self.scaler.scale(parts[-1])

        with self.config.precision.products(), nothing_remembered(self.form):
            self.engine.warm_up(lambda k: batch.inputs, like, loss)
            self.form.reduce_gradients()
        self.form.end_step()
        if self.scales:
            self.scales.forget()

    def _batch(self, step: int, k: int) -> Batch:
        """What this rank reads in its k-th micro-batch of a step."""
        number, parts = self.data.rank() * self.plan.micro_batches + k, self.data.size() * self.plan.micro_batches
        tokens, targets = (to_device(x, self.device) for x in self.batches.of_step(step, number, parts))
        seeds = self.batches.dropout_seeds(step, number, parts) if self.config.model.dropout > 0 else None
        return self.own(Batch.of(tokens, targets, None if seeds is None else to_device(seeds, self.device)))

    def own(self, batch: Batch) -> Batch:
        """What this rank holds of whole windows. Targets, which know what follows a token, are cut as tokens are."""
        if self.plan.context_parallel == 1:
            return batch
        return batch.of_rank(self.plan.layout(batch.tokens.shape[1]), self.context_rank)

    def update(self, step: int) -> float:
        """Update the parameters with the gradients that are there. Returns the norm of these, before clipping."""
        norm = self.updates.step(step)
        self.end_step()
        return norm

    def end_step(self) -> None:
        """After an update, counted or not: what else ranks agree on once in a step."""
        if self.scales:
            self.scales.end_step()
        if self.balancing:
            self.load = self.balancing.end_step()

    def told(self) -> list[str]:
        """What a person should know at the end, besides the loss."""
        spikes = [str(spike) for spike in self.guard.spikes] if self.guard else []
        return spikes + (self.updates.told() if self.config.outer is not Outer.NONE else [])

    def steps(self, first: int, last: int) -> Iterator[tuple[int, float, float]]:
        """Take steps, one by one: the number of each, its loss in nats per token, and the norm of its gradients."""
        for step in range(first, last):
            loss = self.backward(step)
            norm = self.update(step)
            yield step, summed(loss, self.loss_group), norm


def train(
    config: TrainConfig,
    group: dist.ProcessGroup,
    device: torch.device,
    plan: Plan = DEFAULT_PLAN,
    report: Report = silent,
    saves: Saves | None = None,
) -> Training:
    """Train on the ranks of `group`, which all call this with the same arguments.

    Args:
        config, group, device, plan: as for `Training`.
        report: told of every step.
        saves: where to save, and whether to resume from what is there.

    Raises:
        BadInput: if text, batch, plan and ranks do not fit, or a checkpoint cannot be saved or loaded.
        Preempted: if a rank was told to stop (SIGTERM), once all have saved.
        TooManySpikes: if the loss spikes again and again.
    """
    training = Training(config, group, device, plan)
    first, last = saves.begin(training) if saves else 0, config.stop_after or config.steps
    began = time.perf_counter()
    with saving(saves, training, last) as at_boundary:
        for step, loss, gradient_norm in (training.guard or training).steps(first, last):
            seconds = time.perf_counter() - began
            tokens = (step + 1) * training.batches.tokens * config.islands
            load = (training.load.imbalance, training.load.dropped_share) if training.load else ()
            report(StepReport(step + 1, loss, gradient_norm, tokens, seconds, first, *load))
            at_boundary(step + 1)
    return training


def require_fit(config: TrainConfig, plan: Plan, ranks: int) -> None:
    """See whether so many ranks can be laid out as a plan says, in islands if there are any.

    Raises:
        BadInput: that says what does not divide, or does not go together.
    """
    plan.require_fit(island_size(config, ranks), config.model, config.sequence)
    plan.require_compression(config)
    if config.spikes and plan.offload is not Offload.NONE:
        raise BadInput("snapshots take the memory that --offload saves: leave it out, or --spike-deviations")
    if config.outer is not Outer.NONE:
        _require_islands(config, plan)


def _require_islands(config: TrainConfig, plan: Plan) -> None:
    """See whether islands can meet in such a run. Raises BadInput with what would work."""
    order_of(config.meets, config.islands)
    require_agreement(config.meets, config.islands)
    if config.precision.by_chance:
        raise BadInput("islands meet with sums of weights, of which 16 bits would lose most: take --precision bf16")
    if config.linear is LinearNumbers.FP8_DELAYED:
        raise BadInput("islands have numbers of their own, and would have other scales each: take --linear fp8")
    if config.outer is Outer.SCAFFOLD and config.precision.scaled:
        raise BadInput(
            "scaffold counts the gradients of each step, and fp16 leaves steps out whose gradients are infinite: take "
            "--precision bf16"
        )
    if config.spikes:
        raise BadInput("each island has losses of its own, and would go back alone: leave out --spike-deviations")
    if config.optimizer in (Optimizer.ADAMW_8_BIT, Optimizer.SOAP):
        raise BadInput(
            f"islands meet with states that tests hold to one process, and {config.optimizer}'s is not one "
            "of them yet: take adamw or muon"
        )
    if config.optimizer in MOMENTUM_TRAVELS:
        raise BadInput(
            f"the momentum of {config.optimizer} is what its replicas say to each other, and knows nothing of a step "
            "that islands take together: take adamw with --compress one-bit"
        )
    if plan.offload is not Offload.NONE:
        raise BadInput(
            "islands keep an anchor and a velocity, as large as the moments, where parameters are, and sum them there: "
            "what --offload would spare"
        )


def to_device(x: Tensor, device: torch.device) -> Tensor:
    """`x` on a device. To a GPU it travels from page-locked memory, and is not waited for here."""
    return x.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else x.to(device)


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
    return Batches.of(text, config.sequence, config.batch, config.seed, config.model.objective)


def summed(x: Tensor, group: dist.ProcessGroup) -> float:
    """The sum of all ranks' scalar `x`."""
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
            loss = forward_loss(training, tokens, targets, batches.held_out_tokens)
        part += loss if counts and loss is not None else 0.0
    return summed(part, training.loss_group)


def forward_loss(training: Training, tokens: Tensor, targets: Tensor, global_tokens: int) -> Tensor | None:
    """The part of the loss that these tokens make; None on ranks of a pipeline that do not have the last stage."""
    batch = training.own(Batch.of(tokens, targets))
    return training.inference(batch.tokens.shape).step(
        lambda k: batch.inputs, lambda logits, k: training.loss(logits, batch.targets, global_tokens)
    )


if __name__ == "__main__":
    import sys

    from reference.launch import main

    sys.exit(main())
