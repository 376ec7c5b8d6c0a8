"""Votes of replicas: what ranks should hold alike is compared, and a rank that holds something else is named.

This is `plain_votes.outvoted` with: all that a training holds, under any plan; one small message where all is right.

A processor that computes wrongly, or a bit that flips in memory, stops nothing. The loss still falls, and the weights
are those of no run (Hochschild et al. 2021, "Cores that don't count"; Dixit et al. 2021, "Silent data corruptions at
scale"; 6 of 419 interruptions of Llama 3, 2024, sec. 3.3.4). Parallel training keeps copies anyway, and they must be
equal bit by bit. Which ranks hold copies of a parameter, its `Spec` says: those along the axes that do not split it.

| what                                                 | copies are on ranks along                | found by |
|------------------------------------------------------|------------------------------------------|----------|
| parameters that ranks compute with                   | all axes that do not split them          | a vote   |
| masters, moments, summed gradients of replicas       | the same                                 | a vote   |
| the same with ZeRO and FSDP                          | those of them that shard no update: HSDP | a vote   |
| masters and moments that one rank holds alone        | none                                     | a seal   |
| a rank's own gradient, before the sum                | none                                     | `audits` |
| the sum of gradients                                 | none                                     | `checked_sums` |

A seal is what a rank remembers of its own state: 64 bits for each tensor, taken after an update. What is otherwise
before the next one has changed at rest, and the rank says so itself.

What votes cannot say: of two replicas, which is wrong. A broken seal decides, or for gradients an audit. What went
wrong inside an update of a shard that no other rank has: no copy is left to compare with. Nor what was flipped in a
copy that is overwritten before the vote. So vote after backward and before the update.

Where all agree, a rank sends 8 (b+1) (n-1) bytes: n ranks, and b sets of axes along which there are copies, 1 to 4.
"""

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from reference.collectives.compat import all_gather_single
from reference.data_parallel.initial import fingerprint
from reference.mesh import Mesh
from reference.models import ModelConfig, architecture, create
from reference.models.layout import SplitExperts, split_of
from reference.parallelize import spec_in_plan
from reference.plan import Plan
from reference.train import Training

from .plain_votes import outvoted


@dataclass(frozen=True)
class Suspicion:
    """A tensor that some rank has wrong.

    Attributes:
        what: such as "weight blocks.0.norm.weight".
        ranks: of the training's group, ascending: those that are wrong, or where that is not known, all that may be.
        certain: whether these are the ones.
    """

    what: str
    ranks: tuple[int, ...]
    certain: bool = True

    def __str__(self) -> str:
        ranks = " and ".join(map(str, self.ranks))
        if self.certain:
            return f"rank {ranks} is wrong: {self.what}"
        return f"ranks {ranks} differ, and no majority says which of them is right: {self.what}"


@dataclass(frozen=True)
class ReplicaAxes:
    """Along which axes of which mesh ranks hold the same."""

    mesh: Mesh
    axes: tuple[str, ...]

    @classmethod
    def of(cls, name: str, config: ModelConfig, plan: Plan, ranks: int, of_update: bool) -> "ReplicaAxes":
        """Of a parameter.

        Args:
            name: in the whole model.
            config, plan, ranks: of the training.
            of_update: of what updates it, which ZeRO and FSDP share out; else of what ranks compute with.
        """
        is_expert = isinstance(split_of(name, config.layout), SplitExperts)
        mesh = plan.expert_mesh(ranks, config) if is_expert else plan.mesh(ranks, config)
        apart = {*spec_in_plan(name, config, plan).split}
        if of_update:
            apart |= {*(plan.expert_shard_axes if is_expert else plan.shard_axes)}
        return cls(mesh, tuple(axis for axis in mesh.names if axis not in apart and mesh.size(axis) > 1))

    @property
    def groups(self) -> list[tuple[int, ...]]:
        """Ranks that hold the same, group by group."""
        return self.mesh.groups(*self.axes)


@dataclass(frozen=True)
class Held:
    """A tensor that a rank has, and which others should have it alike."""

    what: str
    copies: ReplicaAxes
    tensor: Tensor
    rests: bool  # whether nothing changes it from one update to the next


def held(training: Training) -> Iterator[Held]:
    """All that a rank of a training has to vote on."""
    config, plan, ranks = training.config.model, training.plan, training.group.size()
    masters = set()
    for part in training.form.parts:
        copies = ReplicaAxes.of(part.name, config, plan, ranks, of_update=True)
        whole = part.end - part.begin == part.shape.numel()
        where = part.name if whole else f"{part.name}[{part.begin}:{part.end}]"
        masters.add(part.master)
        yield Held(f"weight {where}", copies, part.master.detach(), rests=True)
        if part.master.grad is not None:
            yield Held(f"gradient {where}", copies, part.master.grad, rests=False)
        for name, value in training.optimizer.state.get(part.master, {}).items():
            if isinstance(value, Tensor):
                yield Held(f"{name} {where}", copies, value, rests=True)
    if not plan.shards_parameters:
        for name, parameter in training.parameters.items():
            if parameter not in masters:
                copies = ReplicaAxes.of(name, config, plan, ranks, of_update=False)
                yield Held(f"parameter {name}", copies, parameter.detach(), rests=True)


class Votes:
    """Votes on what the ranks of a training hold.

        loss = training.backward(step)
        for suspicion in votes.hold(): ...      before the update, while it can still be left out
        training.update(step)
        votes.seal()                            what rests until the next update

    Args:
        training: all of whose ranks make one.
    """

    def __init__(self, training: Training) -> None:
        self.training = training
        config, plan, ranks = training.config.model, training.plan, training.group.size()
        names = [name for name, _ in create(architecture, config, device="meta").named_parameters()]
        kinds = (True,) if plan.shards_parameters else (True, False)
        found = [ReplicaAxes.of(name, config, plan, ranks, of_update) for of_update in kinds for name in names]
        self.copies = [each for each in dict.fromkeys(found) if each.axes]  # in one order on all ranks
        self._sealed: dict[str, int] = {}

    def seal(self) -> None:
        """Remember what rests until the next update."""
        self._sealed = {each.what: int(fingerprint(each.tensor)) for each in held(self.training) if each.rests}

    def hold(self) -> list[Suspicion]:
        """What is wrong, and with which rank: the same on every rank, all of which call this. [] where all agree."""
        prints: dict[ReplicaAxes, dict[str, int]] = {copies: {} for copies in self.copies}
        broken = []
        for each in held(self.training):
            found = int(fingerprint(each.tensor))
            prints.setdefault(each.copies, {})[each.what] = found
            if each.rests and self._sealed.get(each.what, found) != found:
                broken.append(each.what)
        table = self._table([digest(prints[copies]) for copies in self.copies] + [len(broken)])
        disagree = any(
            outvoted([table[rank][place] for rank in group])[0]
            for place, copies in enumerate(self.copies)
            for group in copies.groups
        )
        return self._in_detail(prints, broken) if disagree or any(row[-1] for row in table) else []

    def _table(self, mine: list[int]) -> list[list[int]]:
        """What all ranks say: a row for each."""
        group = self.training.group
        row = torch.tensor(mine, device=self.training.device)
        rows = row.new_empty(group.size() * len(mine))
        all_gather_single(rows, row, group=group)
        return rows.view(-1, len(mine)).tolist()

    def _in_detail(self, prints: dict[ReplicaAxes, dict[str, int]], broken: list[str]) -> list[Suspicion]:
        """Tensor by tensor: a rare and larger message."""
        told: list[tuple[list[dict[str, int]], list[str]]] = [None] * self.training.group.size()
        mine = [prints[copies] for copies in self.copies], broken
        dist.all_gather_object(told, mine, group=self.training.group)
        confessed = [Suspicion(what, (rank,)) for rank, (_, of_rank) in enumerate(told) for what in of_rank]
        found = []
        for place, copies in enumerate(self.copies):
            for group in copies.groups:
                for what in told[group[0]][0][place]:
                    places, certain = outvoted([told[rank][0][place].get(what) for rank in group])
                    suspicion = Suspicion(what, tuple(group[each] for each in places), certain)
                    decided = any(each.what == what and each.ranks[0] in group for each in confessed)
                    if places and (certain or not decided):
                        found.append(suspicion)
        return list(dict.fromkeys([*found, *confessed]))


def digest(prints: Mapping[Hashable, int]) -> int:
    """64 bits of several fingerprints, in their order."""
    return int(fingerprint(torch.tensor(list(prints.values()), dtype=torch.int64)))
