"""The oracle: the same training in one process, without a word of `torch.distributed`.

Whatever is spread over ranks must give its losses, its gradients and its parameters. In float64 the order of additions
is all that differs, and that costs about 1e-15 at each step; a forgotten gradient, a wrong scale or a token read
twice costs at least 1e-3. So a bound of 1e-10 tells them apart without an argument about rounding.

`alone` is the loop, for any model and any loss; `one_process` is `alone` for a `TrainConfig`. Late gradients, which
belong to other algorithms, have an oracle of their own beside their tests.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Function

from reference.choices import LinearNumbers, Optimizer
from reference.collectives.default import Communicate, over
from reference.compression.by_chance import noise_of
from reference.compression.plain_low_bits import (
    E5M2,
    FP8,
    INT8,
    DelayedScale,
    EightBitNumbers,
    carried,
    eight_bit_adamw,
    linear,
    rounded,
)
from reference.config import TrainConfig, learning_rate
from reference.data_parallel import gather_full
from reference.errors import BadInput
from reference.expert_parallel.balancing import Balancing
from reference.models import architecture, create, token_loss
from reference.models.ops import Linear, Ops, equip
from reference.parallelize import DEFAULT_PLAN, Plan
from reference.train import Training, batches_for, summed
from reference.zero import plain_matrices
from reference.zero.matrix_routes import is_matrix

SMALLEST = 1e-6
"""Of the largest value of all tensors: a tensor below that is compared with that. Where a window repeats one byte, the
gradients of queries and keys are zeros, of which rounding leaves 1e-19."""


@dataclass(frozen=True)
class Record:
    """What a run went through, by the names of the whole model's parameters."""

    losses: list[float]  # of every step, in nats per token
    gradient_norms: list[float]  # of every step
    gradients: dict[str, Tensor]  # of the last step, summed over ranks, before clipping
    parameters: dict[str, Tensor]  # after the last step


class Step(NamedTuple):
    """What a step of one process found."""

    loss: Tensor  # a scalar
    gradient_norm: Tensor  # of all gradients, before clipping: a scalar
    gradients: dict[str, Tensor]  # before clipping, dense, by name; not of what is frozen or was not used


def alone(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    loss: Callable[[int], Tensor],
    steps: int,
    *,
    clip: float = inf,
    rate: Callable[[int], float] | None = None,
    zeros: bool = False,
) -> Iterator[Step]:
    """Train in one process, and yield each step when the parameters have been updated.

    Args:
        model: whole.
        optimizer: over what learns; None leaves all as it is.
        loss: of the whole batch of a step.
        steps: how many.
        clip: largest norm of all gradients.
        rate: the learning rate of a step; by default the optimizer's.
        zeros: what was not used has a gradient of zero, as in a shard, instead of none: Adam moves it all the same.
    """
    learning = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    for number in range(steps):
        model.zero_grad()
        of_step = loss(number)
        of_step.backward()
        for parameter in learning.values():
            if zeros and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        gradients = {name: _copy(p.grad) for name, p in learning.items() if p.grad is not None}
        norm = torch.stack([gradient.norm() for gradient in gradients.values()]).norm()
        if clip < inf:
            nn.utils.clip_grad_norm_(learning.values(), clip)
        if optimizer is not None:
            for group in optimizer.param_groups:
                group["lr"] = group["lr"] if rate is None else rate(number)
            optimizer.step()
        yield Step(of_step.detach(), norm, gradients)


def record(model: nn.Module, steps: Iterable[Step]) -> Record:
    """Let a model go through its steps, and keep what they find."""
    losses, norms, gradients = [], [], {}
    for step in steps:
        losses.append(step.loss.item())
        norms.append(float(step.gradient_norm))
        gradients = step.gradients
    learnt = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}
    return Record(losses, norms, gradients, learnt)


def one_process(config: TrainConfig, readers: int = 1, micro_batches: int = 1) -> Record:
    """Train alone, in `config.precision.master`: one process reads every batch whole.

    Weights that are rounded by chance are in `config.precision.compute`, with values that the masters could have.

    Args:
        config: what to learn.
        readers, micro_batches: of a plan. They decide which windows ranks read at the same time, and nothing depends on
            that but the load of experts where it is taken over a micro-batch.
    """
    batches = batches_for(config, world_size=1)
    chance = config.precision.by_chance
    model = create(
        architecture, config.model, config.seed, dtype=config.precision.compute if chance else config.precision.master
    )
    if chance:
        give_values_of(model, config.precision.master)
    delayed = PlainDelayed()
    if config.linear is not LinearNumbers.SAME:
        numbers = INT8 if config.linear is LinearNumbers.INT8 else FP8
        equip(model, lambda _: delayed if config.linear is LinearNumbers.FP8_DELAYED else PlainLowBits(numbers))
    optimizer = plain_optimizer(config, model)
    balancing = Balancing(model, config.model) if config.model.experts else None

    def read(step: int, k: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """What all readers read in a micro-batch: tokens, targets and seeds of dropout."""
        parts = [(reader * micro_batches + k, readers * micro_batches) for reader in range(readers)]
        tokens, targets = map(torch.cat, zip(*(batches.of_step(step, *part) for part in parts), strict=True))
        has_dropout = config.model.dropout > 0
        return tokens, targets, torch.cat([batches.dropout_seeds(step, *p) for p in parts]) if has_dropout else None

    def loss(step: int) -> Tensor:
        delayed.end_step()
        if balancing:
            if step:
                balancing.end_step()
            balancing.begin_step(batches.tokens)
        losses = []
        for k in range(micro_batches):
            tokens, targets, seeds = read(step, k)
            losses.append(token_loss(model(tokens, dropout_seeds=seeds), targets, batches.tokens))
        return torch.stack(losses).sum()

    steps = config.stop_after or config.steps
    return record(model, alone(model, optimizer, loss, steps, clip=config.clip, rate=partial(learning_rate, config)))


@torch.no_grad()
def give_values_of(model: nn.Module, dtype: torch.dtype) -> None:
    """Round the parameters of a model to another dtype; they stay in their own."""
    for parameter in model.parameters():
        parameter.copy_(parameter.to(dtype))


class PlainLowBits(Ops):
    """Linear layers by products of 8-bit numbers."""

    def __init__(self, numbers: EightBitNumbers) -> None:
        self.numbers = numbers

    def column_linear(self, x: Tensor, *layers: Linear) -> tuple[Tensor, ...]:
        """[B, S, D] -> [B, S, F_i] each."""
        return tuple(self.row_linear(x, layer) for layer in layers)

    def row_linear(self, x: Tensor, layer: Linear) -> Tensor:
        """[B, S, F] -> [B, S, D]."""
        made = linear(x, layer.weight, self.numbers)
        return made if layer.bias is None else made + layer.bias


class PlainDelayed(Ops):
    """Linear layers by products of 8-bit numbers, whose scales come from the steps before; weights have theirs now."""

    def __init__(self) -> None:
        self.scales: dict[tuple[int, str], DelayedScale] = {}

    def column_linear(self, x: Tensor, *layers: Linear) -> tuple[Tensor, ...]:
        """[B, S, D] -> [B, S, F_i] each."""
        return tuple(self.row_linear(x, layer) for layer in layers)

    def row_linear(self, x: Tensor, layer: Linear) -> Tensor:
        """[B, S, F] -> [B, S, D]."""
        kinds = {"input": FP8, "gradient": E5M2}
        pair = (self.scales.setdefault((id(layer), k), DelayedScale(numbers)) for k, numbers in kinds.items())
        made = DelayedLinear.apply(x, layer.weight, *pair)
        return made if layer.bias is None else made + layer.bias

    def end_step(self) -> None:
        """Remember the largest numbers."""
        for scale in self.scales.values():
            scale.end_step()


class DelayedLinear(Function):
    """`apply(x, weight, scale, scale of gradients)`: x Wᵀ; a weight learns in full."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, scale: DelayedScale, of_gradients: DelayedScale) -> Tensor:
        few = rounded(weight, weight.abs().amax(), FP8)
        ctx.save_for_backward(x, few)
        ctx.of_gradients = of_gradients
        return scale.round(x) @ few.T

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        x, few = ctx.saved_tensors
        of_weight = gradient.flatten(0, -2).T @ x.flatten(0, -2)
        return ctx.of_gradients.round(gradient) @ few, of_weight, None, None


class PlainMatrices(torch.optim.AdamW):
    """AdamW for all but matrices of hidden layers, which `update` takes whole, one at a time.

    Args:
        model: whole.
        update: a matrix, its gradient, what is remembered of it, learning rate and decay.
    """

    def __init__(self, model: nn.Module, update: Callable[..., None], **options: Any) -> None:
        self.update, named = update, list(model.named_parameters())
        super().__init__([p for name, p in named if not is_matrix(name, p.shape)], **options)
        self.matrices = [p for name, p in named if is_matrix(name, p.shape)]
        self.remembered: dict[tuple[nn.Parameter, int], dict[str, Tensor]] = {}

    @torch.no_grad()
    def step(self) -> None:
        """One step."""
        super().step()
        (options,) = self.param_groups
        for parameter in self.matrices:
            experts = parameter.view(-1, *parameter.shape[-2:])
            gradients = torch.zeros_like(experts) if parameter.grad is None else parameter.grad.view_as(experts)
            for number, (matrix, gradient) in enumerate(zip(experts, gradients, strict=True)):
                state = self.remembered.setdefault((parameter, number), {})
                self.update(matrix, gradient, state, options["lr"], options["weight_decay"])


def _muon(matrix: Tensor, gradient: Tensor, state: dict[str, Tensor], rate: float, decay: float) -> None:
    momentum = state.setdefault("momentum", torch.zeros_like(matrix))
    plain_matrices.muon(matrix, gradient, momentum, rate, decay)


def _shampoo(matrix: Tensor, gradient: Tensor, state: dict[str, Tensor], rate: float, decay: float) -> None:
    if not state:
        rows, columns = matrix.shape
        sums = {"rows": matrix.new_zeros(rows, rows), "columns": matrix.new_zeros(columns, columns)}
        state.update(momentum=torch.zeros_like(matrix), **sums)
    plain_matrices.shampoo(matrix, gradient, **state, rate=rate, decay=decay)


class PlainFewBits(torch.optim.Optimizer):
    """AdamW whose moments are packed, or whose weights are rounded by chance to values of bfloat16; or both.

    Args:
        model: whole.
        config: of the run.
        decay: of weights.
        betas: as for AdamW.
    """

    def __init__(self, model: nn.Module, config: TrainConfig, weight_decay: float, betas: tuple[float, float]) -> None:
        self.config, self.names = config, {parameter: name for name, parameter in model.named_parameters()}
        super().__init__(model.parameters(), {"lr": 0.0, "weight_decay": weight_decay, "betas": betas})

    @torch.no_grad()
    def step(self) -> None:
        """One step."""
        (options,) = self.param_groups
        rest = {"rate": options["lr"], "decay": options["weight_decay"], "betas": options["betas"]}
        chance = self.config.precision.by_chance
        for parameter in options["params"]:
            state, gradient = self.state[parameter], parameter.grad
            weight, gradient = (x.float() if chance else x.clone() for x in (parameter, gradient))
            if self.config.optimizer is Optimizer.ADAMW_8_BIT:
                eight_bit_adamw(weight, gradient, state, **rest)
            else:
                _adamw(weight, gradient, state, **rest)
            if chance:
                places = torch.arange(weight.numel()).view(weight.shape)
                weight = carried(weight, noise_of(self.config.seed, state["step"], self.names[parameter], places))
            parameter.copy_(weight)


def _adamw(
    weight: Tensor, gradient: Tensor, state: dict[str, Any], rate: float, decay: float, betas: tuple[float, float]
) -> None:
    m, v = (state.setdefault(name, torch.zeros_like(weight)) for name in ("m", "v"))
    m.lerp_(gradient, 1 - betas[0])
    v.lerp_(gradient.square(), 1 - betas[1])
    step = state["step"] = state.get("step", 0) + 1
    weight.mul_(1 - rate * decay)
    root = (v / (1 - betas[1] ** step)).sqrt() + 1e-8
    weight.addcdiv_(m / (1 - betas[0] ** step), root, value=-rate)


def _soap(matrix: Tensor, gradient: Tensor, state: dict[str, Tensor], rate: float, decay: float) -> None:
    if not state:
        state.update(plain_matrices.soap_memory(*matrix.shape, dtype=matrix.dtype))
    plain_matrices.soap(matrix, gradient, state, rate, decay)


def plain_optimizer(config: TrainConfig, model: nn.Module) -> torch.optim.Optimizer:
    """What updates a whole model in one process.

    Raises:
        BadInput: for an optimizer that is made for several.
    """
    options = {"betas": (0.9, 0.95), "weight_decay": config.weight_decay}
    if config.precision.by_chance or config.optimizer is Optimizer.ADAMW_8_BIT:
        return PlainFewBits(model, config, **options)
    make = {
        Optimizer.ADAMW: lambda: torch.optim.AdamW(model.parameters(), **options),
        Optimizer.MUON: lambda: PlainMatrices(model, _muon, **options),
        Optimizer.SHAMPOO: lambda: PlainMatrices(model, _shampoo, **options),
        Optimizer.SOAP: lambda: PlainMatrices(model, _soap, **options),
        Optimizer.SGD: lambda: torch.optim.SGD(model.parameters(), weight_decay=config.weight_decay),
    }
    if config.optimizer not in make:
        raise BadInput(f"in one process no momentum travels, and {config.optimizer} is about nothing else: take adamw")
    return make[config.optimizer]()


def on_ranks(
    config: TrainConfig,
    group: dist.ProcessGroup,
    device: torch.device | str = "cpu",
    plan: Plan = DEFAULT_PLAN,
    communicate: Communicate = over,
) -> Record:
    """Train on the ranks of `group` as `reference.train` does, and keep what `one_process` keeps."""
    training = Training(config, group, torch.device(device), plan, communicate)
    losses, norms, gradients = [], [], {}
    last = (config.stop_after or config.steps) - 1
    for step in range(last + 1):
        losses.append(summed(training.backward(step), training.loss_group))
        if step == last:
            gradients = gather_full(training.form, lambda part: part.master.grad)
        norms.append(training.update(step))
    return Record(losses, norms, gradients, gather_full(training.form))


def largest_difference(mine: Record, oracle: Record) -> dict[str, float]:
    """How far `mine` is from `oracle`, for each kind of number that they hold.

    Returns:
        `relative_difference`, of the worst tensor where there are several.
    """
    return {
        "losses": relative_difference(mine.losses, oracle.losses),
        "gradient norms": relative_difference(mine.gradient_norms, oracle.gradient_norms),
        "gradients": _worst(mine.gradients, oracle.gradients),
        "parameters": _worst(mine.parameters, oracle.parameters),
    }


def relative_difference(mine: Tensor | list[float], oracle: Tensor | list[float], least: float = 0.0) -> float:
    """The largest absolute difference over the largest absolute value of `oracle`; infinite if a NaN is among them.

    Args:
        mine, oracle: of one shape.
        least: that a difference is compared with, at least: below it values are what rounding leaves of a zero.
    """
    mine, oracle = (torch.as_tensor(x, dtype=torch.float64) for x in (mine, oracle))
    if torch.equal(mine, oracle):  # all zeros, too
        return 0.0
    difference = float((mine - oracle).abs().max() / max(float(oracle.abs().max()), least))
    return difference if difference == difference else float("inf")


def _copy(gradient: Tensor) -> Tensor:
    """Of a sparse one with all its zeros."""
    return gradient.to_dense() if gradient.is_sparse else gradient.clone()


def _worst(mine: dict[str, Tensor], oracle: dict[str, Tensor]) -> float:
    if mine.keys() != oracle.keys():
        raise ValueError(f"not the same parameters: {sorted(mine.keys() ^ oracle.keys())}")
    noise = SMALLEST * max((float(x.abs().max()) for x in oracle.values() if x.numel()), default=0.0)
    return max(relative_difference(mine[name], oracle[name], noise) for name in oracle)
