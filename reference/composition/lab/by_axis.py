"""Bytes of a real run, by axis: every message has two ends, and where these stand in the mesh says what it was for."""

from collections.abc import Mapping

import numpy as np

from reference.mesh import Mesh
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
