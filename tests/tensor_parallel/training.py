"""A language model on two axes of ranks, through what `tests.data_parallel.training` has one process go through.

Several trainings are one call of a cluster, in whose world they have both axes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from reference.cluster import Cluster
from reference.collectives.default import over
from reference.collectives.differentiable import join
from reference.data_parallel import DataParallel, gather_full, gradient_norm
from reference.data_parallel.replicated import DistributedDataParallel
from reference.engine import ForwardOnly, OneStage
from reference.memory.precision import PRECISIONS, Precision
from reference.mesh import DATA, TENSOR
from reference.models import GPTConfig
from reference.on_mesh import Along, OnMesh
from reference.parallelize import Parallel, Plan, groups_of, parallelize
from reference.sequence_parallel import SequenceRegion
from reference.sharding import Placement, Slices
from reference.tensor_parallel import Region, spec_of, vocabulary

from ..data_parallel.training import OPTIMIZERS, Language, Record, differences, gradient_of, one_process, summed
from .split import split_gpt

EXACT = 1e-10  # in float64 the order of additions costs about 1e-15 a step, any mistake at least 1e-3
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Case:
    """One training."""

    plan: Plan
    task: Language = field(default_factory=Language)
    optimizer: str = "Adam"
    precision: str = "fp64"
    steps: int = 2


class Place(NamedTuple):
    """Which elements of the model a rank holds: those from `begin` on of a block of a parameter."""

    name: str
    block: Slices | None
    begin: int


class Found(NamedTuple):
    """What a rank has written down, and what it holds in the end."""

    record: Record
    held: dict[Place, Tensor]


def model_for(t: int, kv_heads: int = 1, tied: bool = False) -> GPTConfig:
    """A GPT that t ranks can share. Of its 17 tokens some have fewer than others, and of eight ranks two have none."""
    heads = max(t, 2)
    return GPTConfig(2, 4 * heads, heads, kv_heads, hidden=3 * heads, vocabulary=17, tied=tied)


def train(case: Case) -> Found:
    """Go through `case` on all ranks."""
    precision, last = PRECISIONS[case.precision], case.plan.micro_batches - 1
    parallel = laid_out(case.task, case.plan, precision)
    form, data = parallel.form, parallel.data
    masters = [part.master for part in form.parts] or [torch.nn.Parameter(torch.empty(0))]
    optimizer = OPTIMIZERS[case.optimizer](masters)
    record: Record = {}
    for step in range(case.steps):
        losses = []
        for k in range(last + 1):
            with form.micro_batch(last=k == last):
                part = data.rank() * (last + 1) + k
                loss = loss_of(case.task, parallel, step, part, data.size() * (last + 1))
                loss.backward()
            losses.append(loss.detach().double())
        form.reduce_gradients()
        record |= {f"loss of step {step}": summed(losses, data), f"norm in step {step}": norm_of(form)}
        if step == case.steps - 1:
            record |= {f"gradient of {name}": gradient for name, gradient in gather_full(form, gradient_of).items()}
        optimizer.step()
        form.end_step()
    record |= {f"parameter {name}": parameter for name, parameter in gather_full(form).items()}
    held = {Place(part.name, part.block, part.begin): part.master.detach().clone() for part in form.parts}
    return Found(record | {"output": output_of(case.task, parallel)}, held)


def laid_out(task: Language, plan: Plan, precision: Precision) -> Parallel:
    """As `parallelize` does. What is partly frozen is laid out by hand, with DDP on the data axis."""
    if not task.frozen:
        return parallelize(task.config, plan, dist.group.WORLD, CPU, precision)
    groups = groups_of(plan, dist.group.WORLD, task.config)
    region = (SequenceRegion if plan.sequence_parallel else Region)(groups.along(*TENSOR))
    model, placed = split_gpt(task.config, region, plan.recompute, precision.master)
    for name, parameter in model.named_parameters():
        parameter.requires_grad = not name.startswith(task.frozen)
    specs = {name: spec_of(name, task.config.layout, plan.sequence_parallel) for name in placed}
    placed = {
        name: Placement.of(where.shape, specs[name], groups.mesh, dist.get_rank()) for name, where in placed.items()
    }
    data = groups.along(*DATA)
    form = OnMesh([Along(DistributedDataParallel(model, data, precision))], placed, groups)
    loss = partial(vocabulary.token_loss, group=region.group, vocabulary=task.config.vocabulary)
    engine, parameters = OneStage(model, form, plan.micro_batches), dict(model.named_parameters())
    return Parallel(model, loss, form, data, data, engine, lambda _: ForwardOnly(model), parameters)


def loss_of(task: Language, parallel: Parallel, step: int, part: int, parts: int) -> Tensor:
    """As `Language.loss`, by what makes losses of parts of logits."""
    rows = task.windows(step).tensor_split(parts)[part]
    return parallel.loss(parallel.model(rows[:, :-1]), rows[:, 1:], task.rows * task.sequence)


def norm_of(form: DataParallel) -> Tensor:
    """Of all gradients; what several ranks of the tensor axis have counts once."""
    return gradient_norm([part.master.grad for part in form.parts if part.is_primary], form.shard_groups)


@torch.no_grad()
def output_of(task: Language, parallel: Parallel) -> Tensor:
    """Logits of all ranks' parts of the vocabulary, side by side, without padding."""
    logits = parallel.model(task.windows(step=-1)[:2, : task.sequence])
    if isinstance(parallel.form, OnMesh):
        logits = join(logits, over(parallel.loss.keywords["group"]).group, dim=-1)
    return logits[..., : task.config.vocabulary]


def train_all(cases: Sequence[Case]) -> list[Found]:
    """One after the other."""
    return [train(case) for case in cases]


def found_of(cluster: Cluster, cases: Sequence[Case]) -> list[list[Found]]:
    """What each rank has found, case by case."""
    return [list(of_case) for of_case in zip(*cluster.run(train_all, cases), strict=True)]


def oracle_of(case: Case, world_size: int) -> Record:
    """The same in one process and float64."""
    parts = case.plan.dp_size(world_size) * case.plan.micro_batches
    oracle = one_process(case.task, case.optimizer, parts, steps=case.steps)
    return oracle | {"output": oracle["output"][:, : case.task.sequence]}


def wrong(found: Sequence[Found], oracle: Record, bound: float = EXACT) -> dict[str, float]:
    """What differs by more than `bound` from the oracle on some rank."""
    worst: dict[str, float] = {}
    for record, _ in found:
        for name, difference in differences(record, oracle).items():
            worst[name] = max(difference, worst.get(name, 0.0))
    return {name: difference for name, difference in worst.items() if not difference <= bound}


def apart(found: Sequence[Found]) -> list[Place]:
    """What two ranks hold in different bits."""
    first: dict[Place, Tensor] = {}
    same = {place: True for one in found for place in one.held}
    for one in found:
        for place, value in one.held.items():
            same[place] &= torch.equal(value, first.setdefault(place, value))
    return [place for place in same if not same[place]]
