"""Adapters of what surrounds a step: who reads what, sums of gradients, norms, the optimizer, the order of stages."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd import Function

from reference.collectives.default import over
from reference.data_parallel.gradient_sync import ParameterShard, trainable
from reference.data_parallel.norm import EPSILON
from reference.dtypes import accumulator
from reference.mesh import Mesh
from reference.models.data import Batches, order
from reference.models.layout import SplitExperts, split_of
from reference.parallelize import spec_in_plan
from reference.pipeline_parallel.schedule import Schedule
from reference.updates import EveryStep

from ..grading.schedules import Pipe
from .layers import HEAD, HiddenStates, every
from .said import Said

Function_ = Callable[..., Any]
BUCKET_BYTES = 16_384  # of the small models of the card: several buckets
ENOUGH = 1e300  # a limit that clips nothing


# Who reads what.


@dataclass(frozen=True, eq=False)
class Dealt(Batches):
    """Batches whose windows a learner's code deals out."""

    deal: Function_ = None  # (batches, step, rank, ranks) -> windows

    def _windows(self, step: int, rank: int, world_size: int) -> NDArray[Any]:
        return self.deal(self, step, rank, world_size)


def dealt(make: Callable[[Function_, Any], Function_]) -> Callable[[Function_, Any], None]:
    """The adapter of who reads what: `make(function, training)` deals."""

    def take(function: Function_, parts: Any) -> None:
        def put(training: Any) -> None:
            given = {field.name: getattr(training.batches, field.name) for field in fields(Batches)}
            training.batches = Dealt(**given, deal=make(function, training))

        parts.after.append(put)

    return take


def by_rows(function: Function_, training: Any) -> Function_:
    """`data_parallel.shard_batch`: its rows of a batch that all know."""

    def deal(batches: Batches, step: int, rank: int, ranks: int) -> NDArray[Any]:
        epoch, step = divmod(step, batches.windows // batches.batch)
        whole = order(batches.windows, batches.seed, epoch)[step * batches.batch : (step + 1) * batches.batch]
        return function(torch.from_numpy(whole.copy()), group=training.data).numpy()

    return deal


def by_places(function: Function_, training: Any) -> Function_:
    """`data_parallel.deal_an_epoch`: places in the shuffle."""

    def deal(batches: Batches, step: int, rank: int, ranks: int) -> NDArray[Any]:
        of_epoch = batches.windows // batches.batch
        epoch, step = divmod(step, of_epoch)
        begin, end = function(of_epoch * batches.batch, batches.batch, step, rank, ranks)
        return order(batches.windows, batches.seed, epoch)[begin:end]

    return deal


def by_samples(function: Function_, training: Any) -> Function_:
    """`resilience.resume_data_order`: samples of a step, whatever came before."""

    def deal(batches: Batches, step: int, rank: int, ranks: int) -> NDArray[Any]:
        samples = batches.windows // batches.batch * batches.batch
        mine = function(
            step,
            batches.batch,
            samples,
            lambda epoch: order(batches.windows, batches.seed, epoch)[:samples].tolist(),
            group=training.data,
        )
        return torch.tensor(mine, dtype=torch.int64).numpy()

    return deal


def by_size(function: Function_, training: Any) -> Function_:
    """`resilience.elastic_batch`: windows of a run whose number of ranks may change."""

    def deal(batches: Batches, step: int, rank: int, ranks: int) -> NDArray[Any]:
        begin, end, *_ = function(step, rank, [(0, ranks)], batches.batch, batches.batch)
        of_epoch = batches.windows // batches.batch * batches.batch
        return order(batches.windows, batches.seed, begin // of_epoch)[begin % of_epoch :][: end - begin]

    return deal


# The loss.


def weighted(function: Function_, parts: Any) -> None:
    """Each token counts the same, by `data_parallel.token_weighted_loss`."""

    def put(training: Any) -> None:
        def loss(logits: Tensor, targets: Tensor, global_tokens: int) -> Tensor:
            losses = F.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="none")
            return function(losses, group=training.data)

        training.loss = loss

    parts.after.append(put)


def vocabulary(function: Function_, parts: Any) -> None:
    """Of logits of which each rank has some, by `tensor_parallel.vocabulary_cross_entropy`."""

    def put(training: Any) -> None:
        group = training.loss.keywords["group"].group

        def loss(logits: Tensor, targets: Tensor, global_tokens: int) -> Tensor:
            flat = logits.to(accumulator(logits.dtype)).flatten(0, -2)
            return WithGradient.apply(lambda x: function(x, targets.flatten(), group=group), flat).sum() / global_tokens

        training.loss = loss

    parts.after.append(put)


class WithGradient(Function):
    """`apply(compute, x)`: compute gives a loss of each token, and the gradient of their sum."""

    @staticmethod
    def forward(ctx: Any, compute: Function_, x: Tensor) -> Tensor:
        losses, of_x = compute(x.detach())
        ctx.save_for_backward(of_x)
        return losses.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor]:
        (of_x,) = ctx.saved_tensors
        return None, gradient[:, None] * of_x


def chunked(function: Function_, parts: Any) -> None:
    """Head and loss at once, by `memory.chunked_loss`."""
    parts.ops.append((HEAD, every, HiddenStates))

    def put(training: Any) -> None:
        def loss(hidden: Tensor, targets: Tensor, global_tokens: int) -> Tensor:
            flat, weight = hidden.flatten(0, -2), training.model.head.weight
            return LossOfHead.apply(function, flat, weight, targets.flatten(), global_tokens)

        training.loss = loss

    parts.after.append(put)


class LossOfHead(Function):
    """`apply(function, hidden, weight, targets, tokens)`: gradients are made in forward."""

    @staticmethod
    def forward(ctx: Any, function: Function_, hidden: Tensor, weight: Tensor, targets: Tensor, tokens: int) -> Tensor:
        chunk = max(1, len(hidden) // 3)
        loss, *gradients = function(hidden.detach(), weight.detach(), targets, tokens, chunk)
        ctx.save_for_backward(*gradients)
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        of_hidden, of_weight = ctx.saved_tensors
        return None, gradient * of_hidden, gradient * of_weight, None, None


# Sums of gradients.


class Hooked:
    """Replicas whose gradients a learner's hooks sum while backward runs: one micro-batch in a step."""

    shard_groups, units = (), ()
    hooks: Function_  # (model, group) -> what waits

    def __init__(self, model: nn.Module, group: Any, precision: Any) -> None:
        named = trainable(model.named_parameters())
        self.parts = tuple(ParameterShard(name, p.shape, 0, p.numel(), p) for name, p in named.items())
        self._finish = self.hooks(model, over(group).group)

    @contextmanager
    def micro_batch(self, last: bool) -> Iterator[None]:
        """Hooks are called in here."""
        yield

    def reduce_gradients(self) -> None:
        """Wait."""
        self._finish()

    def begin_step(self) -> None:
        """Nothing to note."""

    def end_step(self) -> None:
        """Forget."""
        for part in self.parts:
            part.master.grad = None

    def gradients(self) -> list[Tensor]:
        """Those that are there."""
        return [part.master.grad for part in self.parts if part.master.grad is not None]


def hooks(function: Function_, parts: Any) -> None:
    """`data_parallel.gradient_hooks` and `overlapped_buckets`."""
    options = {"bucket_bytes": BUCKET_BYTES} if function.name.endswith("buckets") else {}

    class OwnHooks(Hooked):
        def hooks(self, model: nn.Module, group: Any) -> Function_:
            return function(model, group=group, **options)

    parts.form = OwnHooks


def sums(function: Function_, parts: Any) -> None:
    """`data_parallel.flat_bucket` and `naive_ddp`, through the communicator of the group."""

    def reduce(gradients: Sequence[Tensor], group: Any) -> None:
        said = Said(group, parts.collectives)
        function(gradients, group=group, all_reduce=lambda x, group: said.all_reduce(x))

    parts.form = reduce


def alike(function: Function_, parts: Any) -> None:
    """All ranks but the first begin with other weights, until `data_parallel.start_alike` has run."""

    def put(training: Any) -> None:
        if training.data.rank():
            with torch.no_grad():
                for parameter in training.model.parameters():
                    parameter.mul_(1.5)
        function(training.model, group=training.data)

    parts.after.append(put)


# Norms and the optimizer.


class ClippedShards(EveryStep):
    """Gradients in shards are clipped by `zero.clip_by_norm`."""

    clip_shards: Function_

    def finish(self, step: int, norm: Tensor, counts: bool) -> None:
        """Scaled as the reference scales, whose norm is longer by an epsilon."""
        gradients = [part.master.grad for part in self.form.parts]
        group = self.form.shard_groups[0]
        lengths = torch.zeros(group.size(), dtype=torch.int64)
        lengths[group.rank()] = sum(each.numel() for each in gradients)
        over(group).all_reduce(lengths)
        total, longest = int(lengths.sum()), int(lengths.max())
        shard = torch.zeros(longest, dtype=gradients[0].dtype)
        torch.cat([each.flatten() for each in gradients], out=shard[: int(lengths[group.rank()])])
        whole = self.clip_shards([shard], [total], ENOUGH, group=group)
        if whole + EPSILON > self.config.clip:
            limit = self.config.clip * float(whole) / (float(whole) + EPSILON)
            self.clip_shards([shard], [total], limit, group=group)
        for gradient, part in zip(
            gradients,
            shard.split([each.numel() for each in gradients] + [longest - int(lengths[group.rank()])]),
            strict=False,
        ):
            gradient.copy_(part.view_as(gradient))
        super().finish(step, torch.zeros((), dtype=torch.float64), counts)


class NormOverAxes(EveryStep):
    """The norm of all gradients by `composition.norm_over_all_axes`."""

    norm: Function_

    def measure(self) -> tuple[Tensor, bool]:
        """As the reference's, with another norm."""
        _, finite = super().measure()
        gradients = [part.master.grad for part in self.form.parts]
        return self.norm(gradients, [self.split[part.name] for part in self.form.parts]), finite


def clipping(function: Function_, parts: Any) -> None:
    """`zero.clip_by_norm`."""

    def put(training: Any) -> None:
        before = training.updates
        training.updates = ClippedShards(before.config, before.form, before.optimizer, before.scaler, before.device)
        training.updates.clip_shards = function

    parts.after.append(put)


def norms(function: Function_, parts: Any) -> None:
    """`composition.norm_over_all_axes`: its axes are pp, dp, tp, edp and ep."""

    def put(training: Any) -> None:
        plan, model, before = training.plan, training.config.model, training.updates
        mesh, experts = plan.mesh(training.group.size(), model), plan.expert_mesh(training.group.size(), model)
        sizes = {
            "pp": mesh.size("pp"),
            "dp": mesh.size("dp_replicate", "dp_shard", "cp"),
            "tp": mesh.size("tp_head", "tp_copy"),
            "edp": experts.size("edp"),
            "ep": experts.size("ep"),
        }
        split = {}
        for name in [part.name for part in training.form.parts]:
            axes = {axis for axis in spec_in_plan(name, model, plan).split if not axis.startswith("tp_copy")}
            of_experts = model.experts and isinstance(split_of(name, model.layout), SplitExperts)
            known = ("pp", "ep") if of_experts else ("pp", "tp")
            split[name] = tuple(axis for axis in known if any(each.startswith(axis) for each in axes))
        training.updates = NormOverAxes(before.config, before.form, before.optimizer, before.scaler, before.device)
        training.updates.split = split
        training.updates.norm = lambda gradients, split: function(gradients, split, sizes, group=training.group)

    parts.after.append(put)


class OnTheHost(torch.optim.Optimizer):
    """Adam by `memory.offloaded_adam`, its state in a dictionary; weights decay before, as AdamW's do."""

    def __init__(self, function: Function_, like: torch.optim.Optimizer) -> None:
        (group,) = like.param_groups
        self.function, self.host, self.number = function, {}, 0
        super().__init__(group["params"], {name: group[name] for name in ("lr", "betas", "weight_decay", "eps")})

    @torch.no_grad()
    def step(self) -> None:
        """One step."""
        (group,) = self.param_groups
        parameters = [each for each in group["params"] if each.grad is not None]
        for index, each in enumerate(parameters):
            each.mul_(1 - group["lr"] * group["weight_decay"])
            for moment in "mv":
                self.host.setdefault(f"{moment}{index}", torch.zeros_like(each))
        self.number += 1
        self.function(
            [each.data for each in parameters],
            [each.grad for each in parameters],
            lambda name: self.host[name].clone(),
            lambda name, x: self.host[name].copy_(x),
            self.number,
            group["lr"],
            *group["betas"],
            group["eps"],
        )


def adam(function: Function_, parts: Any) -> None:
    """`memory.offloaded_adam`."""

    def put(training: Any) -> None:
        training.optimizer = training.updates.optimizer = OnTheHost(function, training.optimizer)

    parts.after.insert(0, put)


# The order of stages, and who is where.


def ordered(*options: str) -> Callable[[Function_, Any], None]:
    """The adapter of an order of a pipeline: `function(rank, p, m)`, or with v where `options` says so."""

    def take(function: Function_, parts: Any) -> None:
        @cache
        def order_of(p: int, m: int, v: int) -> Schedule:
            more = {"v": v} if "v" in options else {}
            stages = p * (v if more else 1)
            pipe = Pipe.straight([stage % p for stage in range(stages)], m)
            return pipe.schedule([[str(each) for each in function(rank, p, m, **more)] for rank in range(p)])

        parts.order = order_of

    return take


class SeatedMesh(Mesh):
    """A mesh whose groups, or whose coordinates, a learner's code finds."""

    def __init__(self, mesh: Mesh, **functions: Function_) -> None:
        super().__init__(dict(zip(mesh.names, mesh.sizes, strict=True)))
        known = getattr(mesh, "functions", {})
        object.__setattr__(self, "functions", known | functions)

    def groups(self, *axes: str) -> list[tuple[int, ...]]:
        """By `composition.groups_along`."""
        if "groups" not in self.functions:
            return super().groups(*axes)
        return self.functions["groups"](self._numbers(axes), self.sizes)

    def coordinates(self, rank: int) -> dict[str, int]:
        """By `composition.coordinates_of_a_rank`."""
        if "coordinates" not in self.functions:
            return super().coordinates(rank)
        return dict(zip(self.names, self.functions["coordinates"](rank, self.sizes), strict=True))


def seated(what: str) -> Callable[[Function_, Any], None]:
    """The adapter of `groups` or `coordinates`."""

    def take(function: Function_, parts: Any) -> None:
        parts.seated.append(lambda mesh: SeatedMesh(mesh, **{what: function}))

    return take


# What outlives a rank.


def tool(name: str) -> Callable[[Function_, Any], None]:
    """The adapter of what the controls use between steps."""

    def take(function: Function_, parts: Any) -> None:
        parts.tools[name] = function

    return take
