"""The same run with its ranks in other places: what a job costs if the axes of its mesh are ordered otherwise."""

from collections.abc import Sequence
from dataclasses import replace

from reference.mesh import Mesh
from reference.trace import Event, Trace


def reordered(trace: Trace, mesh: Mesh, order: Sequence[str]) -> Trace:
    """What ranks would have said whose mesh has its axes in this order: the same, from other places.

    Args:
        trace: of the ranks of `mesh`.
        order: its axes, the outermost first.

    Raises:
        BadInput: if these are not the mesh's axes.
    """
    other = Mesh({name: mesh.size(name) for name in order})
    seats = [other.rank(**mesh.coordinates(rank)) for rank in mesh.ranks]

    def moved(event: Event) -> Event:
        peer = None if event.peer is None else seats[event.peer]
        return replace(event, rank=seats[event.rank], group=tuple(seats[rank] for rank in event.group), peer=peer)

    there = dict(zip(seats, trace.events, strict=True))
    return Trace(trace.world_size, tuple(tuple(map(moved, there[rank])) for rank in mesh.ranks))
