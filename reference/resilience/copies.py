"""State in memory: each rank keeps what it had after a step, and a neighbour on another node keeps it, too.

A checkpoint on a disk costs so much that it is taken seldom, and all steps since are lost with a rank. Memory of other
nodes is near, and what a rank holds is small beside it: a copy after every step loses no step (Gemini: Wang et al.
2023, https://doi.org/10.1145/3600006.3613145). While a copy travels, the next step is computed.

A copy counts when everything of its step is found among those who live. Three steps are kept: the newest still
travels, and where one rank has it, another may still receive the one before. What is read back is cut anew for the
ranks that are left (`reshard`), and copies in the old cut are kept until all have one in the new.

| m copies of a model of Ψ parameters, its own counted | a rank sends after a step                       |
|------------------------------------------------------|-------------------------------------------------|
| DDP, AdamW in fp32                                   | (m-1) · (12Ψ + 16 + description): `bytes_sent`  |
| FSDP, likewise, on n ranks                           | (m-1) · (12Ψ/n + 16 + description)              |

A weight and two moments are 12 bytes. The description says what is cut where, and is a few KB. Replicas are equal, and
DDP could do without copies; but ranks that are one replica together (stages, blocks of matrices) could not.
"""

import pickle
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from reference.errors import BadInput
from reference.zero.checkpoint_state import (
    SavedParameter,
    describe,
    empty_chunks,
    held_chunks,
    install,
    merge,
    saved_parts,
)
from reference.zero.chunk import Chunk

from .placement import Placement
from .reshard import Key, as_bytes, fetch

if TYPE_CHECKING:
    from reference.train import Training

KEPT = 3  # steps
_TAG = 1700  # of messages between neighbours, which travel while a step is computed


class StateLost(BadInput):
    """No snapshot is whole among those who are left."""


@dataclass(frozen=True)
class Snapshot:
    """What one rank had after a step.

    Attributes:
        step: how many had been taken.
        layout: a number of the layout that it is cut by; later ones are larger.
        saved: of its parameters, all but the elements.
        values: of masters and of what the optimizer remembers, by name and box; on the CPU, of this snapshot alone.
        extra: other state, the same on every rank.
    """

    step: int
    layout: int
    saved: Mapping[str, SavedParameter]
    values: Mapping[Key, Tensor]
    extra: Mapping[str, Any]

    @classmethod
    def of(cls, training: "Training", step: int, layout: int) -> "Snapshot":
        """Of a training between two steps."""
        parts, state = saved_parts(training.form, training.optimizer), training.optimizer.state
        values = {key: x.to("cpu", copy=True) for key, x in boxes(held_chunks(parts, state)).items()}
        extra = {name: piece.state_dict() for name, piece in training.stateful.items()}
        return cls(step, layout, describe(parts, state), values, pickle.loads(pickle.dumps(extra)))

    def description(self) -> bytes:
        """All but the elements, of which it tells dtypes and shapes."""
        return pickle.dumps(replace(self, values={key: (x.dtype, x.shape) for key, x in self.values.items()}))

    @property
    def nbytes(self) -> int:
        """Of all elements."""
        return sum(x.nbytes for x in self.values.values())

    @property
    def of_step(self) -> tuple[int, int]:
        """Which snapshots belong together, and which are newer."""
        return self.step, self.layout


class MemoryCopies:
    """The snapshots that a rank holds: its own, and those of neighbours.

    They outlive the process groups over which they came: `begin` is called with each new one.
    """

    def __init__(self) -> None:
        self._held: dict[tuple[tuple[int, int], int], Snapshot] = {}  # by step and layout, and by rank in that layout
        self._under_way: list[_Exchange] = []

    def begin(self, group: dist.ProcessGroup, placement: Placement, layout: int) -> None:
        """From now on the ranks are those of `group`. What was under way is lost."""
        self._group, self._layout = group, layout
        self._under_way.clear()
        me = group.rank()
        self._holders = [holder for holder in placement[me] if holder != me]
        self._held_for = [rank for rank, holders in enumerate(placement) if me in holders and rank != me]

    def take(self, training: "Training", step: int) -> None:
        """Keep what this rank has after `step` steps, and begin to send it. All ranks call this together."""
        self.settle()
        mine = Snapshot.of(training, step, self._layout)
        self._keep(self._group.rank(), mine)
        self._under_way = [_Exchange(mine, self._holders, self._held_for, self._group)]

    def settle(self) -> None:
        """Wait for what is under way."""
        for exchange in self._under_way:
            for owner, snapshot in exchange.finish():
                self._keep(owner, snapshot)
        self._under_way.clear()

    def restore(self, training: "Training | None", group: dist.ProcessGroup) -> int | None:
        """Put the newest state that is whole among the ranks of `group` into a new layout. All call this together.

        Args:
            training: of this rank; None on one that holds copies, perhaps, and needs none.

        Returns:
            How many steps it has taken; None where no rank holds a snapshot: a training that begins.

        Raises:
            StateLost: the same on every rank, if no snapshot is whole: too many of its holders are gone.
        """
        mine = [(each.of_step, each.saved, list(each.values)) for each in self._held.values()]
        whole = merge(gathered(describe(saved_parts(training.form, training.optimizer) if training else (), {}), group))
        said = [each for of_rank in gathered(mine, group) for each in of_rank]
        if not said:
            return None
        steps = sorted({of_step for of_step, _, _ in said}, reverse=True)
        for of_step in steps:
            saved = merge(known for at, known, _ in said if at == of_step)
            if is_whole(whole, saved, (key for at, _, keys in said if at == of_step for key in keys)):
                return self._restored(training, of_step, saved, group)
        latest = steps[0][0]
        raise StateLost(f"the state after step {latest} is lost: those who held a part of it, and its copies, are gone")

    def _restored(
        self,
        training: "Training | None",
        of_step: tuple[int, int],
        saved: Mapping[str, SavedParameter],
        group: dist.ProcessGroup,
    ) -> int:
        mine = [each for (at, _), each in self._held.items() if at == of_step]
        held = {key: values for each in mine for key, values in each.values.items()}
        chunks = empty_chunks(saved_parts(training.form, training.optimizer), saved) if training else {}
        fetch(held, boxes(chunks), group)
        extra = next(filter(None, gathered(mine[0].extra if mine else None, group)), {})
        if not training:
            return of_step[0]
        install(saved_parts(training.form, training.optimizer), training.optimizer, saved, chunks)
        training.form.end_step()
        for name, piece in training.stateful.items():
            piece.load_state_dict(extra[name])
        return of_step[0]

    def _keep(self, owner: int, snapshot: Snapshot) -> None:
        """Hold one more, and let go of what no rank can need any more.

        A rank that has a second step of a layout has taken it together with all others: they have the first one.
        """
        self._held[snapshot.of_step, owner] = snapshot
        newest = sorted({at for at, _ in self._held if at[1] == self._layout})[-KEPT:]
        old = set() if len(newest) > 1 else {at for at, _ in self._held if at[1] != self._layout}
        self._held = {key: each for key, each in self._held.items() if key[0] in {*newest, *old}}


class _Exchange:
    """A snapshot that travels to those who keep it, while theirs travel here.

    First each learns how long the description is that it will receive, then the rest travels while others compute.
    """

    def __init__(
        self, mine: Snapshot, holders: Iterable[int], held_for: Iterable[int], group: dist.ProcessGroup
    ) -> None:
        text = torch.frombuffer(bytearray(mine.description()), dtype=torch.uint8)
        flat = torch.cat([torch.empty(0, dtype=torch.uint8), *(as_bytes(x) for x in mine.values.values())])
        length = torch.tensor([text.numel(), flat.numel()])
        self._sent = [
            dist.isend(x, group=group, group_dst=holder, tag=_TAG + k)
            for holder in holders
            for k, x in enumerate((length, text, flat))
        ]
        self._kept_alive = length, text, flat
        self._received = []
        for owner in held_for:
            lengths = torch.empty(2, dtype=torch.int64)
            dist.recv(lengths, group=group, group_src=owner, tag=_TAG)
            room = [torch.empty(int(n), dtype=torch.uint8) for n in lengths]
            requests = [dist.irecv(x, group=group, group_src=owner, tag=_TAG + 1 + k) for k, x in enumerate(room)]
            self._received.append((owner, room, requests))

    def finish(self) -> list[tuple[int, Snapshot]]:
        """Wait. Returns what came in, by its owner."""
        for request in (*self._sent, *(each for _, _, requests in self._received for each in requests)):
            request.wait()
        return [(owner, _unpacked(*room)) for owner, room, _ in self._received]


def bytes_sent(snapshot: Snapshot, copies: int) -> int:
    """What a rank sends so that there are so many copies, its own counted: two lengths, description and elements."""
    lengths = 2 * torch.int64.itemsize
    return (copies - 1) * (lengths + len(snapshot.description()) + snapshot.nbytes)


def boxes(chunks: Mapping[str, Chunk]) -> dict[Key, Tensor]:
    """The values of chunks, by name and box: views."""
    return {(name, box): values for name, chunk in chunks.items() for box, values in chunk.boxes()}


def is_whole(there: Mapping[str, SavedParameter], saved: Mapping[str, SavedParameter], keys: Iterable[Key]) -> bool:
    """Whether boxes are all elements of all parameters, and of all that was saved of them.

    Args:
        there: the parameters of the model.
        saved: what is known of those that were saved.
        keys: what is held; boxes of one layout are equal, or have nothing in common.
    """
    found: dict[str, int] = {}
    for name, box in set(keys):
        found[name] = found.get(name, 0) + box.numel
    return all(
        name in saved and all(found.get(kind + name, 0) == prod(saved[name].shape) for kind in kinds(saved[name]))
        for name in there
    )


def kinds(saved: SavedParameter) -> list[str]:
    """What stands before a parameter's name in the names of its masters and state."""
    return ["master.", *(f"state.{name}." for name in saved.elements)]


def gathered(mine: Any, group: dist.ProcessGroup) -> list[Any]:
    """What each rank says."""
    said: list = [None] * group.size()
    dist.all_gather_object(said, mine, group=group)
    return said


def _unpacked(text: Tensor, flat: Tensor) -> Snapshot:
    head = pickle.loads(text.numpy().tobytes())
    values, begin = {}, 0
    for key, (dtype, shape) in head.values.items():
        end = begin + prod(shape) * dtype.itemsize
        values[key] = flat[begin:end].clone().view(dtype).view(shape)
        begin = end
    return replace(head, values=values)
