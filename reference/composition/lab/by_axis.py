"""Bytes of a real run, by axis: every message has two ends, and where these stand in the mesh says what it was for.

Where experts see the same ranks in another way, two ends do not tell: ranks that share matrices, say, may have other
experts, too. But a message is said in a group, and along each axis that talks there are other groups.
"""

from collections import Counter
from collections.abc import Mapping

import numpy as np

from reference.errors import BadInput
from reference.mesh import GRADIENTS, TENSOR, Mesh
from reference.trace import Trace

SEVERAL = "several axes"


def axis_of(mesh: Mesh, one: int, other: int) -> str:
    """The axis along which two ranks talk; `SEVERAL` where they stand apart on more than one."""
    apart = mesh.apart(one, other)
    return apart[0] if len(apart) == 1 else SEVERAL


def bytes_by_axis(trace: Trace, mesh: Mesh) -> Mapping[str, list[int]]:
    """Bytes that each rank has sent along each axis, by rank.

    An unused axis is there with zeros; `SEVERAL` is there where a call used several at once.
    """
    return {axis: matrix.sum(axis=1).tolist() for axis, matrix in matrices_by_axis(trace, mesh).items()}


def matrices_by_axis(trace: Trace, mesh: Mesh) -> Mapping[str, np.ndarray]:
    """Bytes from rank (row) to rank (column), for each axis a matrix; axes as for `bytes_by_axis`."""

    def nothing() -> np.ndarray:
        return np.zeros((trace.world_size, trace.world_size), dtype=np.int64)

    sent = {name: nothing() for name in mesh.names}
    for message in trace.messages:
        axis = axis_of(mesh, message.src, message.dst)
        sent.setdefault(axis, nothing())[message.src, message.dst] += message.bytes
    return sent


def bytes_by_group(trace: Trace) -> list[Counter[tuple[int, ...]]]:
    """Bytes that each rank has sent, by the ranks of the group in which it sent them: a list by rank.

    What `composition.traffic` foretells by axes has such groups. Axes whose groups are the same count together.
    """
    sent: list[Counter[tuple[int, ...]]] = [Counter() for _ in range(trace.world_size)]
    for message in trace.messages:
        sent[message.src][message.send.group] += message.bytes
    return sent


def matrices_of_views(trace: Trace, mesh: Mesh, experts: Mesh) -> Mapping[str, np.ndarray]:
    """The same for a plan with experts: bytes from rank (row) to rank (column), for each axis of both views that talks.

    Args:
        trace: of the ranks of both.
        mesh, experts: `Plan.mesh` and `Plan.expert_mesh`.

    Returns:
        By "tp", "cp", "pp", or several that are one group, as "dp_shard x cp"; of experts by "ep", "etp", "edp".
        `SEVERAL` is there where other groups have talked.

    Raises:
        BadInput: if two axes have the same groups, so that nothing tells their messages apart.
    """
    named = groups_of_views(mesh, experts)
    sent: dict[str, np.ndarray] = {}
    for message in trace.messages:
        name = named.get(frozenset(message.send.group), SEVERAL)
        matrix = sent.setdefault(name, np.zeros((trace.world_size, trace.world_size), dtype=np.int64))
        matrix[message.src, message.dst] += message.bytes
    order = [*dict.fromkeys(named.values()), SEVERAL]
    return {name: sent[name] for name in order if name in sent}


def groups_of_views(mesh: Mesh, experts: Mesh) -> Mapping[frozenset[int], str]:
    """The groups in which a plan with experts talks, and what along."""
    of_view = {
        mesh: (TENSOR, ("cp",), ("pp",), ("dp_replicate",), ("dp_shard", "cp"), GRADIENTS),
        experts: (("etp",), ("ep",), ("edp",), ("dp_replicate", "edp")),
    }
    found: dict[frozenset[int], str] = {}
    for view, customers in of_view.items():
        for axes in customers:
            several = [axis for axis in axes if view.size(axis) > 1]
            name = "tp" if axes == TENSOR else " x ".join(several)
            for group in view.groups(*axes) if several else ():
                if found.setdefault(frozenset(group), name) != name:
                    raise BadInput(f"{name} and {found[frozenset(group)]} have the same groups, such as {group}")
    return found
