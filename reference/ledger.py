"""The ledger of a plan: each sum of a step, held to what the spec of its parameter says.

| sum                  | what is dyed                                        | whose parts it should hold           |
|----------------------|-----------------------------------------------------|--------------------------------------|
| gradient of a weight | what autograd finds, on each rank, each micro-batch | ranks along the batch's axes, and    |
|                      |                                                     | those of `partial`                   |
| loss                 | the part of each rank                               | ranks with other tokens or stages    |
| norm                 | each rank's part of one parameter                   | each element once, on whatever rank  |
| router               | counts of each rank                                 | ranks with other tokens              |

It takes one step of the plan itself, with its own forms, hooks and schedule: nothing is known of how they work.
"""

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

import torch
import torch.distributed as dist
from torch import Tensor

from reference.cluster import Cluster
from reference.collectives.default import Communicate, over
from reference.config import TrainConfig
from reference.data_parallel.norm import gradient_norm
from reference.memory.precision import PRECISIONS
from reference.mesh import EXPERT_GRADIENTS, GRADIENTS, TENSOR, Mesh
from reference.models import ModelConfig, architecture, create
from reference.models.layout import SplitExperts, split_of
from reference.parallelize import TABLE, spec_in_plan
from reference.plan import Plan
from reference.sharding import gradient_axes
from reference.trace.ledger import Dye, Entry, Ledger, dyed, entries_of, spanned
from reference.train import Training, summed


def ledger_of(config: TrainConfig, plan: Plan, cluster: Cluster, communicate: Communicate = over) -> Ledger:
    """Take one dyed step of a plan on the ranks of a cluster, traced.

    Args:
        config: what to learn; it is taken in float64, in which all digits have room.
        plan: how the work is laid out.
        cluster: of as many ranks.
        communicate: as for `parallelize`.
    """
    config = replace(config, precision=PRECISIONS["fp64"])
    entries, trace = cluster.trace(entries_of_step, config, plan, communicate)
    return Ledger(tuple(entry for of_rank in entries for entry in of_rank), trace)


def entries_of_step(config: TrainConfig, plan: Plan, communicate: Communicate = over) -> list[Entry]:
    """What one rank finds in a dyed step. All ranks call it."""
    return entries_of_training(Training(config, dist.group.WORLD, torch.device("cpu"), plan, communicate))


def entries_of_training(training: Training) -> list[Entry]:
    """The same of a run that is there, and is of no use afterwards: its gradients mean nothing."""
    config, plan = training.config, training.plan
    rank, dye = dist.get_rank(), Dye(dist.get_world_size())
    with dyed(training.parameters.values(), dye.of(rank)):
        training.backward(0)
    held: dict[str, list[Tensor]] = {}
    for part in training.form.parts:
        if part.master.grad is not None and part.master.grad.numel():
            held.setdefault(part.name, []).append(part.master.grad.flatten())
    gradients = {name: torch.cat(parts) for name, parts in held.items()}
    due, meshes = due_of(config, plan, rank)
    entries = [
        entry
        for name, gradient in gradients.items()
        for entry in entries_of({name: gradient}, due, meshes[name], rank, dye, uses_of(name, config.model, plan))
    ]
    return [*entries, *_of_loss(training, rank, dye), *_of_norm(training, rank), *_of_routers(training, rank, dye)]


def uses_of(name: str, model: ModelConfig, plan: Plan) -> int:
    """How often autograd finds a part of a gradient on one rank in a step.

    Once in each micro-batch; twice, if the table of a tied model is used by two stages of one rank.
    """
    of_rank = 1
    if name == TABLE and model.tied and plan.pipeline_parallel > 1:
        first, *_, last = plan.timetable().placement
        of_rank = 1 + (first == last)
    return of_rank * plan.micro_batches


def due_of(config: TrainConfig, plan: Plan, rank: int) -> tuple[Mapping[str, frozenset[int]], Mapping[str, Mesh]]:
    """Ranks whose parts a rank should find in the gradient of each parameter, and the mesh whose axes these go along.

    By specs alone: along the batch's axes, and those where each rank has a part.
    """
    ranks, model = dist.get_world_size(), config.model
    mesh, experts = plan.mesh(ranks, model), plan.expert_mesh(ranks, model)
    due, meshes = {}, {}
    for name, _ in create(architecture, model, device="meta").named_parameters():
        is_expert = isinstance(split_of(name, model.layout), SplitExperts)
        here, batch = (experts, EXPERT_GRADIENTS) if is_expert else (mesh, GRADIENTS)
        spec = spec_in_plan(name, model, plan)
        found = set(here.group_of(rank, *gradient_axes(spec, here, batch)))
        if "pp_ends" in spec.partial:
            ends = {plan.timetable().placement[stage] for stage in (0, -1)}
            found = {here.rank(**{**here.coordinates(other), "pp": end}) for other in found for end in ends}
        due[name], meshes[name] = frozenset(found), here
    return due, meshes


def _of_loss(training: Training, rank: int, dye: Dye) -> list[Entry]:
    """Losses of ranks that read other tokens, or have other stages, add up."""
    mesh = training.plan.mesh(dye.ranks, training.config.model)
    whole = summed(torch.tensor(dye.of(rank), dtype=torch.float64), training.loss_group)
    found = torch.tensor(whole, dtype=torch.float64)
    due = frozenset(mesh.group_of(rank, "pp", *GRADIENTS))
    return entries_of({"of a step": found}, {"of a step": due}, mesh, rank, dye, what="loss")


def _of_norm(training: Training, rank: int) -> list[Entry]:
    """Each element of each parameter counts once: on whatever rank, and on no two.

    One parameter after another, since the norm is one number. Of what a rank counts, one part is dyed.
    """
    ranks, model = dist.get_world_size(), training.config.model
    dye, mesh, entries = Dye(ranks, room=2 * ranks), training.plan.mesh(ranks, model), []
    apart = {member for group in training.form.shard_groups for member in dist.get_process_group_ranks(group)}
    reached = mesh.group_of(rank, *spanned(mesh, rank, apart))  # all groups, one after another
    counted: dict[str, int] = {}
    for part in training.form.parts:
        if part.is_primary:
            sizes = [box.numel for box, _ in part.pieces(part.master.detach())]
            counted[part.name] = counted.get(part.name, 0) + sum(sizes)
    for name, parameter in create(architecture, model, device="meta").named_parameters():
        mine = torch.tensor([dye.of(rank) ** 0.5 * bool(counted.get(name))], dtype=torch.float64)
        square = gradient_norm([mine], training.form.shard_groups).square()
        have = torch.zeros(ranks, dtype=torch.int64)
        have[rank] = counted.get(name, 0)
        dist.all_reduce(have)
        due = frozenset(other for other in reached if have[other])
        entries += entries_of({name: square}, {name: due}, mesh, rank, dye, what="norm")
        if (total := sum(int(have[other]) for other in due)) != parameter.numel():
            share = Fraction(total, parameter.numel())
            entries.append(Entry("norm", name, rank, (tuple(share * (r in due) for r in range(ranks)),), due, 1, mesh))
    return entries


def _of_routers(training: Training, rank: int, dye: Dye) -> list[Entry]:
    """Counts of tokens that experts got, over the ranks that have others."""
    if training.balancing is None:
        return []
    mesh = training.plan.mesh(dye.ranks, training.config.model)
    found, due = {}, {}
    for number, layer in training.balancing.layers.items():
        mine = torch.full((1, 1), int(dye.of(rank)))
        for scope, sums, axes in (
            ("of a window", layer.ops.sum_over_windows, ("cp", *TENSOR)),
            ("of a batch", layer.ops.sum_over_batch, (*GRADIENTS, *TENSOR)),
        ):
            name = f"counts {scope}, block {number}"
            found[name], due[name] = sums(mine).double(), frozenset(mesh.group_of(rank, *axes))
    return entries_of(found, due, mesh, rank, dye, what="router")
