"""Islands: the outermost axis of the mesh. Inside, any plan; across, a meeting at the end of each round.

    8 ranks, 2 islands, FSDP 2 x tensor parallelism 2 inside

    island 0    0  1  2  3          a batch is shared by all 8; inside an island gradients are sums over its part,
    island 1    4  5  6  7          as if there were no other one. Rank 1 meets rank 5, which holds the same parts.

`Outside` is what a training needs of it: its own group of ranks, its part of each batch, the policy that stands where
`reference.updates.EveryStep` does, and the form as a checkpoint sees it: of each island all parameters, moments,
anchors and velocities, under names of their own. So one folder has all islands, each may be resharded to another plan,
and another number of islands is another model.
"""

from dataclasses import replace
from typing import Any

import torch
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from reference.choices import IslandText, Outer
from reference.collectives.default import Communicate, over
from reference.config import TrainConfig
from reference.data_parallel.gradient_sync import GradientSync, ParameterShard
from reference.data_parallel.remembered import Remembered
from reference.errors import BadInput
from reference.groups import Groups
from reference.mesh import Mesh
from reference.models.data import Batches, OwnBatches, ReplicaBatches
from reference.models.moe_config import Balance
from reference.zero.whole_matrices import WholeMatrices

from .apart import Apart
from .asynchronous import Asynchronous
from .control_variates import ControlVariates
from .diloco import Diloco
from .eager import Eager
from .elastic_averaging import ElasticAveraging
from .meeting import AfterStep, Meeting, fill, flat
from .neighbours import Neighbours
from .noloco import PairsOfIslands
from .outer_adam import OuterAdam
from .proximal import Proximal
from .rounds import ends_of_rounds
from .sparta import SparseAveraging
from .streaming import Streaming
from .wire import mean

KINDS: dict[Outer, type[Meeting]] = {
    Outer.LOCAL_SGD: Diloco,
    Outer.DILOCO: Diloco,
    Outer.STREAMING: Streaming,
    Outer.EAGER: Eager,
    Outer.EASGD: ElasticAveraging,
    Outer.SPARTA: SparseAveraging,
    Outer.NOLOCO: PairsOfIslands,
    Outer.GOSSIP: Neighbours,
    Outer.ASYNC_DILOCO: Asynchronous,
    Outer.ASYNC_SGD: Asynchronous,
    Outer.FEDADAM: OuterAdam,
    Outer.FEDPROX: Proximal,
    Outer.SCAFFOLD: ControlVariates,
    Outer.BRANCHES: Apart,
}


def island_size(config: TrainConfig, ranks: int) -> int:
    """How many of so many ranks an island has.

    Raises:
        BadInput: if they do not divide, or the model is one that islands cannot train.
    """
    if ranks % config.islands:
        raise BadInput(f"{ranks} ranks do not divide into {config.islands} islands: take a multiple")
    if config.outer is not Outer.NONE and config.model.experts and config.model.balance is Balance.BIAS:
        raise BadInput(
            "--balance bias moves routers by a rule of its own, by what each island counts, and islands meet with "
            "parameters alone: take a --balance that is a loss, such as switch"
        )
    return ranks // config.islands


class Outside:
    """What one rank has to do with other islands.

    Args:
        config: of the run.
        group: all ranks, which all call this.
        communicate: makes what ranks talk through.

    Raises:
        BadInput: if they make no islands.
    """

    def __init__(self, config: TrainConfig, group: ProcessGroup, communicate: Communicate = over) -> None:
        inside = island_size(config, group.size())
        groups = Groups(group, Mesh({"island": config.islands, "inside": inside}), communicate)
        self.config, self.island, self.groups = config, groups.at["island"], groups
        self.group, across = groups.along("inside"), groups.along("island")
        self.across, self.everyone = groups.communicator_of(across), groups.communicator_of(group)

    def batches(self, whole: Batches) -> Batches | ReplicaBatches:
        """What this island reads."""
        islands = self.config.islands
        if islands == 1:
            return whole
        kind = OwnBatches if self.config.meets.island_text is IslandText.OWN else ReplicaBatches
        return kind(whole, self.island, islands)

    def saved(self, form: GradientSync, optimizer: Optimizer) -> "GradientSync | OfIsland":
        """A form as a checkpoint sees it. What an optimizer has for whole matrices is called after the island, too."""
        if self.config.islands == 1:
            return form
        if isinstance(optimizer, WholeMatrices):
            optimizer.parts = [of_island(self.island, part) for part in optimizer.parts]
        return OfIsland(form, self.island)

    def meeting(self, form: GradientSync, optimizer: Optimizer) -> Meeting:
        """What islands do together."""
        config, inside = self.config, [self.groups.communicator_of(group) for group in form.shard_groups]
        parts = [part for part in form.parts if part.master.numel()]
        if not config.meets.agrees_on_plain_mean:
            parts = parts or [*form.parts[:1]]  # a rank that has no element is still there for sums inside its island
        return KINDS[config.outer](parts, optimizer, self.across, config.meets, config.seed, self.everyone, inside)


class OfIsland:
    """A form whose parameters are those of an island.

    Args:
        form: of its ranks.
        island: which one, from 0.
    """

    def __init__(self, form: GradientSync, island: int) -> None:
        self._form, self._island = form, island
        self.parts = tuple(of_island(island, part) for part in form.parts)

    @property
    def remembered(self) -> list[Remembered]:
        """What this island's ranks have not sent of gradients to each other."""
        return [replace(each, part=of_island(self._island, each.part)) for each in self._form.remembered]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what Python looks for to copy an object, which may have nothing yet
            raise AttributeError(name)
        return getattr(self._form, name)


def of_island(island: int, part: ParameterShard) -> ParameterShard:
    """A part under the name that a checkpoint has for an island's."""
    return replace(part, name=f"island {island}.{part.name}")


class MeetingUpdates:
    """A policy of updates: an inner step, and what islands do together after it.

    In the first `synchronous_steps` they share gradients, as data parallelism does, and are equal (post-local SGD: Lin
    et al. 2020, arXiv:1808.07217). Then rounds begin.

    Args:
        inner: takes an island's own step.
        meeting: of islands.
        config: of the run.
    """

    def __init__(self, inner: Any, meeting: Meeting, config: TrainConfig) -> None:
        self.inner, self.meeting, self.config = inner, meeting, config
        self.synchronous = config.meets.synchronous_steps

    def step(self, step: int) -> float:
        """As for `EveryStep`. Returns the norm of this island's gradients."""
        if step < self.synchronous:
            self.share_gradients()
        else:
            self.meeting.correct(self.inner.scaler.scale(1.0))
        norm, taken = self.inner.step(step), step + 1
        if taken == self.synchronous:
            self.meeting.begin()
        ends = taken in ends_of_rounds(self.config)
        at = AfterStep(taken - self.synchronous, ends, taken == self.config.steps)
        if taken > self.synchronous and self.meeting.parts and self.meeting.after(at):
            self.inner.form.end_step()  # the model computes with what they have become
        if taken == self.config.stop_after:
            self.meeting.pause()
        return norm

    @torch.no_grad()
    def share_gradients(self) -> None:
        """Of each master the mean over islands: an island's own is that of its part of the batch."""
        gradients = [master.grad for master in self.meeting.masters]
        if gradients:
            fill(gradients, mean(flat(gradients), self.meeting.across))

    def told(self) -> list[str]:
        """What a person should know at the end."""
        return self.meeting.aggregate.told()

    def state_dict(self) -> dict[str, Any]:
        return self.meeting.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.meeting.load_state_dict(state)
