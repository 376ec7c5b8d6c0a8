"""N ranks on this machine, kept warm: start, run a function, watch, restart."""

from .arguments import EachRank
from .call import Gone, Last
from .cluster import Cluster
from .errors import (
    ClusterError,
    DeadlockError,
    DriftError,
    Forbidden,
    GradientError,
    GroupError,
    Interrupted,
    MismatchError,
    NumericsError,
    OutputFlood,
    PeerError,
    RaceError,
    RankDied,
    RankError,
    RemoteException,
    RequestError,
    ResultError,
    StrayProcess,
    TensorError,
    ThreadError,
    TimeLimit,
)
from .nodes import Nodes

__all__ = [
    "Cluster",
    "ClusterError",
    "DeadlockError",
    "DriftError",
    "EachRank",
    "Forbidden",
    "Gone",
    "GradientError",
    "GroupError",
    "Interrupted",
    "Last",
    "MismatchError",
    "Nodes",
    "NumericsError",
    "OutputFlood",
    "PeerError",
    "RaceError",
    "RankDied",
    "RankError",
    "RemoteException",
    "RequestError",
    "ResultError",
    "StrayProcess",
    "TensorError",
    "ThreadError",
    "TimeLimit",
]
