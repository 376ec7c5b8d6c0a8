"""Which axis is where, read from what ranks have sent: rank 0 is first on all axes, and its next one a stride away.

`reference.composition.lab.by_axis` goes the other way: from messages and a mesh to bytes along each axis.
"""

from collections.abc import Iterable, Mapping


def axes_from_bytes(
    messages: Iterable[tuple[int, int, int]], sizes: Mapping[str, int], each: Mapping[str, int]
) -> list[str]:
    """The names of the axes of a run's mesh, the outermost first. An axis of one rank may stand anywhere.

    Args:
        messages: (source, target, bytes), in any order. Along each axis, ranks send to the next one around a ring.
        sizes: ranks along each axis.
        each: bytes that a rank sends along each axis, all messages together: others for each.
    """
    sent: dict[int, int] = {}
    for source, target, size in messages:
        if source == 0:
            sent[target] = sent.get(target, 0) + size
    strides = {size: target for target, size in sent.items()}
    return sorted(sizes, key=lambda axis: strides.get(each[axis], 0), reverse=True)
