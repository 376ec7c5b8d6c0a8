"""Which experts lie on which rank, so that all ranks have about as much to do.

Some experts get many more tokens than others, and a layer waits for its busiest rank. So what each expert got is
measured; experts that got most are copied into spare slots, where copies share the load; and slots are packed onto
ranks, each with as many of them:

    copy      the next spare slot goes to the expert whose copies have most load each, until there is none left
    pack      the slot with most load first, each on the rank that has least load so far and room for it

With nodes, whose experts a token reaches over slow links, groups of experts that are chosen together stay together
(`place_by_node`): groups are packed onto nodes, then copies are made within a node, then packed onto its ranks.

What the busiest rank has is at most the mean, and (1 - 1/n) of the heaviest slot on top (`pack`).

DeepSeek-AI 2024, "DeepSeek-V3", sec. 3.4, and its Expert Parallelism Load Balancer (EPLB, 2025); Graham 1969, "Bounds
on multiprocessing timing anomalies", for packing.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

import torch
from torch import Tensor

from reference.errors import BadInput, require_sizes


@dataclass(frozen=True)
class ExpertPlacement:
    """The expert in each slot of each rank, and how busy experts were when that was decided.

    Attributes:
        slots: for each rank its experts, as many on each rank; an expert may stand there more than once.
        loads: [E], tokens of each expert, of all its copies together.

    Raises:
        BadInput: if ranks have unequal numbers of slots, an expert has none, or a slot has an expert that is not there.
    """

    slots: tuple[tuple[int, ...], ...]
    loads: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(sizes := {len(own) for own in self.slots}) != 1:
            raise BadInput(f"each rank has as many slots, not some {' and some '.join(map(str, sorted(sizes)))}")
        held, experts = {expert for own in self.slots for expert in own}, set(range(len(self.loads)))
        if missing := experts - held:
            raise BadInput(f"expert {min(missing)} has no slot")
        if extra := held - experts:
            raise BadInput(f"a slot has expert {max(extra)}, and there are loads of {len(experts)} experts")

    @property
    def experts(self) -> int:
        """E."""
        return len(self.loads)

    @property
    def ranks(self) -> int:
        """n."""
        return len(self.slots)

    @property
    def copies(self) -> tuple[int, ...]:
        """How many slots each expert has: [E]."""
        everywhere = [expert for own in self.slots for expert in own]
        return tuple(everywhere.count(expert) for expert in range(self.experts))

    @property
    def rank_loads(self) -> tuple[float, ...]:
        """What each rank has to do: its copies' shares of their experts' loads."""
        shares = [load / copies for load, copies in zip(self.loads, self.copies, strict=True)]
        return tuple(sum(shares[expert] for expert in own) for own in self.slots)

    @property
    def imbalance(self) -> float:
        """What the busiest rank has to do, as a multiple of the mean; 1 where no rank has anything."""
        return max(self.rank_loads) * self.ranks / sum(self.loads) if any(self.loads) else 1.0

    def holders(self, expert: int) -> tuple[int, ...]:
        """The ranks that have an expert, in order."""
        return tuple(rank for rank, own in enumerate(self.slots) if expert in own)

    def slots_for(self, chosen: Tensor) -> Tensor:
        """The slot that each choice goes to, so that an expert's copies get equally many in turn.

        Args:
            chosen: [T, k] of int64, experts.

        Returns:
            [T, k] of int64. Slots are counted over all ranks, those of rank 0 first.
        """
        everywhere, flat = torch.tensor(self.slots).flatten(), chosen.flatten()
        slots = torch.empty_like(flat)
        for expert in range(self.experts):
            of_expert, places = (everywhere == expert).nonzero()[:, 0], (flat == expert).nonzero()[:, 0]
            slots[places] = of_expert[torch.arange(len(places)) % len(of_expert)]
        return slots.view_as(chosen)


def in_order(loads: Sequence[float], ranks: int, slots: int) -> ExpertPlacement:
    """Experts one after another, whatever their loads; spare slots have the first ones again.

    Args:
        loads: [E], tokens of each expert.
        ranks: n.
        slots: of all ranks together, at least E.

    Raises:
        BadInput: if n does not divide the slots, they are fewer than experts, or a load is no number from 0 on.
    """
    _require(loads, ranks, slots)
    here = slots // ranks
    of_slot = [slot % len(loads) for slot in range(slots)]
    return ExpertPlacement(tuple(tuple(of_slot[rank * here :][:here]) for rank in range(ranks)), tuple(loads))


def place(loads: Sequence[float], ranks: int, slots: int) -> ExpertPlacement:
    """Experts anywhere, with copies: EPLB's "global" policy.

    Args and errors are those of `in_order`; if that happens to be better than what is packed, that is it.
    """
    usual = in_order(loads, ranks, slots)
    packed = ExpertPlacement(_packed(range(len(loads)), loads, ranks, slots), tuple(loads))
    return min(usual, packed, key=lambda found: found.imbalance)


def place_by_node(loads: Sequence[float], ranks: int, slots: int, nodes: int, groups: int) -> ExpertPlacement:
    """Experts with copies, where all of a group are on one node: EPLB's "hierarchical" policy.

    Args:
        loads, ranks, slots: as for `in_order`.
        nodes: M, each with n / M neighbouring ranks.
        groups: of neighbouring experts, as many in each; as many groups on each node.

    Raises:
        BadInput: as `in_order`; and if groups do not divide experts, or nodes groups and ranks.
    """
    _require(loads, ranks, slots)
    require_sizes(nodes=nodes, groups=groups)
    if len(loads) % groups or groups % nodes or ranks % nodes:
        raise BadInput(
            f"{len(loads)} experts in {groups} groups, {ranks} ranks on {nodes} nodes: groups are of one size, and "
            "each node has as many groups and as many ranks"
        )
    size = len(loads) // groups
    of_group = [sum(loads[group * size :][:size]) for group in range(groups)]
    in_turn = [range(node * groups // nodes, (node + 1) * groups // nodes) for node in range(nodes)]

    def inside(of_nodes: Sequence[Sequence[int]]) -> ExpertPlacement:
        """The same on each node, of the groups that it has."""
        found: list[tuple[int, ...]] = []
        for own in of_nodes:
            experts = [group * size + expert for group in own for expert in range(size)]
            found += _packed(experts, loads, ranks // nodes, slots // nodes)
        return ExpertPlacement(tuple(found), tuple(loads))

    return min(inside(in_turn), inside(pack(of_group, nodes)), key=lambda found: found.imbalance)


def copies_of(loads: Sequence[float], slots: int) -> list[int]:
    """How many slots each expert gets, so that no copy has more load than it must: [E], `slots` in all, each 1 or more.

    Args:
        loads: [E], of which a copy gets an equal share.
        slots: at least E.
    """
    copies = [1] * len(loads)
    heaviest = [(-load, expert) for expert, load in enumerate(loads)]  # of a copy
    heapq.heapify(heaviest)
    for _ in range(slots - len(loads)):
        expert = heaviest[0][1]
        copies[expert] += 1
        heapq.heapreplace(heaviest, (-loads[expert] / copies[expert], expert))
    return copies


def pack(weights: Sequence[float], packs: int) -> list[list[int]]:
    """Which things are in each pack, as many in each: the heaviest first, into the lightest pack that has room.

    No pack is heavier than another by more than the heaviest thing w, so none by more than (1 - 1/packs) w than the
    mean: where a pack is full with lighter things than another has, the other has as many of them after its heaviest.

    Args:
        weights: of things.
        packs: as many as divide them.
    """
    found: list[list[int]] = [[] for _ in range(packs)]
    lightest = [(0.0, number) for number in range(packs)]  # those with room
    for thing in sorted(range(len(weights)), key=lambda thing: -weights[thing]):
        weight, number = heapq.heappop(lightest)
        found[number].append(thing)
        if len(found[number]) < len(weights) // packs:
            heapq.heappush(lightest, (weight + weights[thing], number))
    return found


def _packed(experts: Sequence[int], loads: Sequence[float], ranks: int, slots: int) -> tuple[tuple[int, ...], ...]:
    """Some of the experts, with copies, on some ranks: those of each rank."""
    copies = copies_of([loads[expert] for expert in experts], slots)
    of_slot = [expert for expert, count in zip(experts, copies, strict=True) for _ in range(count)]
    shares = [loads[expert] / count for expert, count in zip(experts, copies, strict=True) for _ in range(count)]
    return tuple(tuple(sorted(of_slot[slot] for slot in own)) for own in pack(shares, ranks))


def _require(loads: Sequence[float], ranks: int, slots: int) -> None:
    require_sizes(ranks=ranks, experts=len(loads))
    if wrong := [load for load in loads if not (isfinite(load) and load >= 0)]:
        raise BadInput(f"a load is a number of tokens, 0 or more: {wrong[0]} is none")
    if slots < len(loads):
        raise BadInput(f"{slots} slots are too few: each of {len(loads)} experts needs one")
    if slots % ranks:
        more = -(-slots // ranks) * ranks
        raise BadInput(f"{slots} slots do not divide among {ranks} ranks: each has as many; {more} slots would do")
