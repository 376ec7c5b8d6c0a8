"""A block of a large model on imagined ranks: its steps, and how long they would take on a network.

One process runs the block's own code on the meta device, in a region that sends nothing. What each rank would compute
and send is known from the shapes, and all ranks do the same. So:

    measured    which products and collectives there are, in which order, of which shapes
    modelled    FLOPs / (FLOP/s that a GPU reaches); messages of rings, replayed on a network

Computing and communication each have a lane, as on a GPU: a sum that is begun before a product travels while the
product is computed, and does not slow it down. What has no matrix product takes no time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod

import torch
from torch import Tensor

from reference.collectives.communicator import Finish
from reference.models import GPTConfig, require_gpt
from reference.tensor_parallel.layout import require_fit
from reference.tensor_parallel.region import Region
from reference.trace import Event, Network, Op, Trace
from reference.trace.activity import Activity, Doing
from reference.trace.calls import dtype_name

from .op_trace import LayerOp, OpKind, of_block


class SimulatedRegion(Region):
    """A region whose ranks are not there, for tensors on the meta device.

    Args:
        ranks: t.
        slices_tokens: whether each rank has a slice of the sequence outside (sequence parallelism).
    """

    def __init__(self, ranks: int, slices_tokens: bool = False) -> None:
        self.rank, self.ranks, self.slices_tokens = 0, ranks, slices_tokens
        self.overlap, self.multiply = True, torch.matmul

    def start_gather(self, x: Tensor) -> Finish:
        """[B, S / t, D] -> [B, S, D], or nothing."""
        return lambda: x.repeat(1, self.ranks, 1) if self.slices_tokens else x

    def start_sum(self, x: Tensor) -> Finish:
        """[B, S, D] -> [B, S / t, D], or nothing."""
        return lambda: self.local_tokens(x)

    def local_tokens(self, x: Tensor) -> Tensor:
        """[B, S, ...] -> [B, S / t, ...], or nothing."""
        return x.tensor_split(self.ranks, dim=1)[0] if self.slices_tokens else x


Collective = tuple[Op, int, torch.dtype]
"""What is called, and how many numbers of which dtype each rank brings."""

Price = Callable[[Collective, int], float]
"""A collective, and among how many ranks, to the seconds that it takes."""


@dataclass(frozen=True)
class LayerSimulation:
    """What each of the ranks does in a block, forward and backward."""

    ranks: int
    steps: tuple[LayerOp, ...]

    @property
    def flops(self) -> int:
        """Of matrix products, on each rank."""
        return sum(step.flops for step in self.steps)

    @property
    def trace(self) -> Trace:
        """The collectives, as a trace has them."""
        calls = [call for step in self.steps if (call := collective(step))]
        return _trace(calls, [tuple(range(self.ranks))], self.ranks)

    def activities(self, price: Price, speed: float) -> list[Activity]:
        """What a rank does when.

        Args:
            price: of collectives.
            speed: of a GPU, in FLOP/s.
        """
        done: list[Activity] = []
        now = free = 0.0
        arrivals: list[tuple[int, float]] = []  # the first step that waits for it, and when it is there
        for number, step in enumerate(self.steps):
            now = max([now, *(arrival for awaited, arrival in arrivals if awaited <= number)])
            if step.flops:
                begin, now = now, now + step.flops / speed
                last = done[-1] if done else None
                if last and (last.doing, last.label, last.end) == (step.spent_on, step.site, begin):
                    begin = done.pop().begin  # the next product of the same place
                done.append(Activity(step.spent_on, step.site, begin, now))
            if call := collective(step):
                begin = max(now, free)
                free = begin + price(call, self.ranks)
                arrivals.append((step.awaited, free))
                done.append(Activity(Doing.COMMUNICATION, str(call[0]), begin, free, whole(step)))
        return done

    def times(self, price: Price, speed: float) -> tuple[float, float]:
        """Seconds that a rank computes, and seconds that it waits for the network. Arguments as for `activities`."""
        computing = self.flops / speed
        return computing, max(activity.end for activity in self.activities(price, speed)) - computing


def simulate_layer(
    config: GPTConfig,
    ranks: int,
    batch: int,
    sequence: int,
    slices_tokens: bool = False,
    dtype: torch.dtype = torch.bfloat16,
) -> LayerSimulation:
    """Run a block of a model on the meta device, as one of so many ranks would.

    Args:
        config: of the model.
        ranks: t.
        batch, sequence: B and S of a micro-batch.
        slices_tokens: with sequence parallelism, which S must divide by t for.
        dtype: of weights and activations.

    Raises:
        BadInput: if the model cannot be split so.
    """
    require_gpt(config)
    require_fit(config, ranks, sequence=sequence if slices_tokens else None)
    region = SimulatedRegion(ranks, slices_tokens)
    return LayerSimulation(ranks, tuple(of_block(config, region, batch, sequence, dtype, "meta")))


def rings(network: Network) -> Price:
    """Each collective as one ring through all ranks, in their order: as a trace counts it."""

    def seconds(call: Collective, ranks: int) -> float:
        return replayed((call,), (tuple(range(ranks)),), ranks, network)

    return cache(seconds)


def two_levels(network: Network) -> Price:
    """Rings within nodes, and rings between the ranks that stand at the same place in their nodes.

    So every rank uses its own link to the other nodes, and sends as little as it can on it
    (`reference.networks.hierarchical`). Numbers divide by the ranks of a node, and ranks fill their nodes.
    """

    def seconds(call: Collective, ranks: int) -> float:
        (op, numel, dtype), near = call, min(ranks, network.ranks_per_node or ranks)
        levels = {
            Op.ALL_REDUCE: ((Op.REDUCE_SCATTER, numel), (Op.ALL_REDUCE, numel // near), (Op.ALL_GATHER, numel // near)),
            Op.REDUCE_SCATTER: ((Op.REDUCE_SCATTER, numel), (Op.REDUCE_SCATTER, numel // near)),
            Op.ALL_GATHER: ((Op.ALL_GATHER, numel), (Op.ALL_GATHER, numel * ranks // near)),
        }[op]
        inside = [tuple(range(first, first + near)) for first in range(0, ranks, near)]
        across = [tuple(range(place, ranks, near)) for place in range(near)]
        turns = [across, inside] if op is Op.ALL_GATHER else [inside, across, inside]
        calls = [(op, numel, dtype) for op, numel in levels]
        return sum(replayed((call,), tuple(groups), ranks, network) for call, groups in zip(calls, turns, strict=False))

    return cache(seconds)


def replayed(calls: Sequence[Collective], groups: Sequence[tuple[int, ...]], ranks: int, network: Network) -> float:
    """Seconds that these calls take one after the other, made in all of these groups at once."""
    return _trace(calls, groups, ranks).replay(network).duration


def collective(step: LayerOp) -> Collective | None:
    """What a step calls, known by its shapes: an all-gather makes more tokens, a reduce-scatter fewer."""
    if not step.kind.is_collective or (step.kind is OpKind.GATHER and step.made == step.given):
        return None
    op = Op.ALL_GATHER if step.kind is OpKind.GATHER else Op.ALL_REDUCE
    if step.kind is OpKind.SUM and step.made != step.given:
        op = Op.REDUCE_SCATTER
    return op, prod(step.given), step.dtype


def whole(step: LayerOp) -> int:
    """Bytes of all tokens, which a gather makes and a sum begins with."""
    return step.dtype.itemsize * max(prod(step.given), prod(step.made))


def _trace(calls: Sequence[Collective], groups: Sequence[tuple[int, ...]], ranks: int) -> Trace:
    group_of = {rank: group for group in groups for rank in group}
    events = [tuple(_event(rank, group_of[rank], i, *call) for i, call in enumerate(calls)) for rank in range(ranks)]
    return Trace(ranks, tuple(events))


def _event(rank: int, group: tuple[int, ...], number: int, op: Op, numel: int, dtype: torch.dtype) -> Event:
    ticks, size = (2 * number, 2 * number + 1), numel * dtype.itemsize
    reduce = "" if op is Op.ALL_GATHER else "sum"
    return Event(rank, op, group, None, 0, (numel,), dtype_name(dtype), size, (), reduce, "", 0, *ticks, 0.0, 0.0)
