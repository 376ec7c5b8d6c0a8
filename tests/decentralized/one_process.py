"""Islands in one process: a model and an optimizer for each, and a function that does what they do together.

It shares nothing with the engines but the model and the batches: the outer optimizer is `torch.optim.SGD`.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from reference.choices import IslandText, LateRate, Outer
from reference.config import TrainConfig, learning_rate
from reference.data_parallel import gather_full
from reference.decentralized.parameter_server import Arrival
from reference.memory.precision import PRECISIONS
from reference.models import PRESETS, architecture, create, token_loss
from reference.models.data import Batches
from reference.models.moe_config import Balance, MoEConfig
from reference.parallelize import DEFAULT_PLAN, Plan
from reference.train import Training, batches_for
from reference.zero.plain_matrices import muon

Models = list[nn.Module]
Meet = Callable[[int, Models], None]
"""Islands meet after so many steps."""
Correct = Callable[[int, nn.Module], None]
"""What an island does with the gradients of its model."""

STEPS, H = 7, 3
ENDS = (3, 6, 7)
EXACT = TrainConfig(
    PRESETS["tiny"], steps=STEPS, batch=8, sequence=16, warmup=2, clip=0.5, precision=PRECISIONS["fp64"]
)
EXPERTS = MoEConfig(
    layers=2, width=32, heads=4, kv_heads=2, hidden=96, expert_hidden=16, experts=4, top_k=2, balance=Balance.NONE
)


def config_of(outer: Outer, islands: int = 2, **options) -> TrainConfig:
    """A short run in float64."""
    return replace(EXACT, outer=outer, islands=islands, **({"inner_steps": H} | options))


def leave(island: int, model: nn.Module) -> None:
    """Change no gradient."""


def read(batches: Batches, config: TrainConfig, step: int, island: int) -> tuple[Tensor, Tensor]:
    """What an island reads: its part of a batch, or a batch of its part of the text."""
    n, windows = config.islands, batches.windows
    if config.meets.island_text is IslandText.SHARED:
        return batches.of_step(step, island, n)
    begin, end = windows * island // n, windows * (island + 1) // n
    epoch, number = divmod(step, (end - begin) // (batches.batch // n))
    shuffle = np.random.default_rng([config.seed, epoch]).permutation(end - begin)
    chosen = shuffle[number * batches.batch // n :][: batches.batch // n] + begin
    places = torch.from_numpy(chosen * config.sequence)[:, None] + torch.arange(config.sequence + 1)
    tokens = torch.from_numpy(batches.text.copy())[places].long()
    return tokens[:, :-1], tokens[:, 1:]


def alone(config: TrainConfig, meet: Meet, make=torch.optim.AdamW, correct: Correct = leave) -> Models:
    """Train islands side by side. Returns their models."""
    batches, islands = batches_for(config, config.islands), config.islands
    models = [create(architecture, config.model, config.seed, dtype=torch.float64) for _ in range(islands)]
    options = {"betas": (0.9, 0.95), "weight_decay": config.weight_decay} if make is torch.optim.AdamW else {}
    optimizers = [make(model.parameters(), lr=1.0, **options) for model in models]
    for step in range(config.steps):
        for island, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            tokens, targets = read(batches, config, step, island)
            optimizer.zero_grad()
            token_loss(model(tokens), targets, batches.tokens // islands).backward()
            with torch.no_grad():
                correct(island, model)
            nn.utils.clip_grad_norm_(model.parameters(), config.clip)
            optimizer.param_groups[0]["lr"] = learning_rate(config, step)
            optimizer.step()
        with torch.no_grad():
            meet(step + 1, models)
    return models


class MuonAndAdamW:
    """Muon for matrices of hidden layers, as its pseudocode has it, and AdamW for all else."""

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float) -> None:
        parameters, decay = list(parameters), EXACT.weight_decay
        self.matrices = {
            p: torch.zeros_like(p) for p in parameters if p.dim() == 2 and EXACT.model.vocabulary not in p.shape
        }
        others = [p for p in parameters if p not in self.matrices]
        self.adamw = torch.optim.AdamW(others, lr=lr, betas=(0.9, 0.95), weight_decay=decay)
        self.param_groups = self.adamw.param_groups

    def zero_grad(self) -> None:
        for parameter in self.matrices:
            parameter.grad = None
        self.adamw.zero_grad()

    @torch.no_grad()
    def step(self) -> None:
        self.adamw.step()
        (group,) = self.param_groups
        for parameter, momentum in self.matrices.items():
            muon(parameter, parameter.grad, momentum, group["lr"], group["weight_decay"])


def named(model: nn.Module) -> dict[str, Tensor]:
    return dict(model.named_parameters())


def means(models: Models) -> dict[str, Tensor]:
    """Of each parameter, over islands."""
    return {name: torch.stack([named(model)[name].detach() for model in models]).mean(0) for name in named(models[0])}


def all_take(models: Models, values: dict[str, Tensor]) -> None:
    for model in models:
        for name, parameter in named(model).items():
            parameter.copy_(values[name])


class OuterSGD:
    """A global model, and torch's own optimizer on it."""

    def __init__(self, like: nn.Module, rate: float, momentum: float) -> None:
        self.anchors = {name: nn.Parameter(p.detach().clone()) for name, p in named(like).items()}
        nesterov = momentum > 0
        self.optimizers = {
            name: torch.optim.SGD([p], lr=rate, momentum=momentum, nesterov=nesterov)
            for name, p in self.anchors.items()
        }

    def step(self, name: str, gradient: Tensor) -> Tensor:
        self.anchors[name].grad = gradient.clone()
        self.optimizers[name].step()
        return self.anchors[name].detach()


def initial(config: TrainConfig) -> nn.Module:
    return create(architecture, config.model, config.seed, dtype=torch.float64)


def on_ranks(
    config: TrainConfig, plan: Plan = DEFAULT_PLAN, stop: int | None = None, inside=None
) -> tuple[dict[str, Tensor], list[float]]:
    """Train on the world; the parameters of this rank's island, and its parts of losses.

    Args:
        config, plan: of the run.
        stop: after so many steps.
        inside: the inner optimizer; AdamW by default.
    """
    training = Training(config, dist.group.WORLD, torch.device("cpu"), plan)
    if inside is not None:
        policy = getattr(training.updates, "inner", training.updates)
        policy.optimizer = inside([part.master for part in training.form.parts])
    losses = []
    for step in range(stop or config.steps):
        losses.append(float(training.backward(step)))
        training.update(step)
    return gather_full(training.form), losses


def far_apart(found: dict[str, Tensor], model: nn.Module | dict[str, Tensor]) -> float:
    """The largest difference of any element."""
    wanted = named(model) if isinstance(model, nn.Module) else model
    assert found.keys() == wanted.keys()
    return max(float((found[name] - wanted[name].detach()).abs().max()) for name in found)


def late_rounds_alone(
    config: TrainConfig, arrivals: list[Arrival], rate: float, momentum: float, make: Callable = torch.optim.AdamW
) -> dict[str, Tensor]:
    """Asynchronous DiLoCo: each round of each island from the version that it has read, in the order they came."""
    n, batches = config.islands, batches_for(config, config.islands)
    models = [initial(config) for _ in range(n)]
    options = {"betas": (0.9, 0.95), "weight_decay": config.weight_decay} if make is torch.optim.AdamW else {}
    optimizers = [make(model.parameters(), lr=1.0, **options) for model in models]
    versions = [{name: p.detach().clone() for name, p in named(models[0]).items()}]
    velocity, waiting = ({name: torch.zeros_like(p) for name, p in versions[0].items()} for _ in range(2))
    ends = [0, *sorted({*range(config.meets.inner_steps, config.steps, config.meets.inner_steps), config.steps})]
    for arrival in arrivals:
        model, optimizer = models[arrival.worker], optimizers[arrival.worker]
        with torch.no_grad():
            for name, parameter in named(model).items():
                parameter.copy_(versions[arrival.read][name])
        for step in range(*ends[arrival.step : arrival.step + 2]):
            tokens, targets = batches.of_step(step, arrival.worker, n)
            optimizer.zero_grad()
            token_loss(model(tokens), targets, batches.tokens // n).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip)
            optimizer.param_groups[0]["lr"] = learning_rate(config, step)
            optimizer.step()
        late = 1 if config.meets.late_rate is LateRate.CONSTANT else max(1, arrival.staleness)
        now = {name: value.clone() for name, value in versions[-1].items()}
        for name, value in now.items():
            change = (versions[arrival.read][name] - named(model)[name].detach()) / late
            value -= rate / n * change
            waiting[name] += change
            if (arrival.version + 1) % n == 0:
                velocity[name] = momentum * velocity[name] + waiting[name] / n
                value -= rate * momentum * velocity[name]
                waiting[name].zero_()
        versions.append(now)
    return versions[-1]
