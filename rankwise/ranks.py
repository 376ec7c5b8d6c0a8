"""How many ranks a command may be asked for, on which nodes, and what they are forked from."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from reference.errors import BadInput

LINK = "1Gbit"  # of a node, where nothing else is said
TRAINING = ("torch._dynamo", "reference.train")
"""What each rank of a training imports, and with the first optimizer torch: once, before ranks are forked."""


def begin_importing(modules: Sequence[str] = ()) -> None:
    """Start the process that ranks are forked from: it imports torch and these modules while this process does.

    Raises:
        ClusterError: there can be no ranks here.
    """
    from reference.cluster import forkserver  # no torch
    from reference.cluster.cluster import check_platform, check_process

    check_platform()
    check_process()
    forkserver.shared(modules)


def require_ranks(ranks: int) -> None:
    """Raises BadInput for a number of ranks that no cluster has."""
    from reference.cluster.cluster import MAX_RANKS  # no torch, and yet what other commands need not wait for

    if not 1 <= ranks <= MAX_RANKS:
        raise BadInput(f"--ranks is a number from 1 to {MAX_RANKS}, not {ranks}")


@dataclass(frozen=True)
class OnNodes:
    """On how many nodes ranks are, each with a link of a rate to the others; on none with `nodes` None."""

    nodes: int | None = None
    link: str = LINK

    @property
    def options(self) -> dict[str, Any]:
        """What a `Cluster` is told."""
        return {} if self.nodes is None else {"nodes": self.nodes, "link": self.link}

    def names(self, ranks: int) -> list[str]:
        """What the node of each rank is called."""
        return [f"node {rank * (self.nodes or 1) // ranks}" for rank in range(ranks)]

    def __str__(self) -> str:
        """What stands behind "4 ranks"."""
        if self.nodes is None:
            return ""
        return f" on {self.nodes} node{'s' * (self.nodes > 1)} with links of {self.link}"


def require_nodes(nodes: int | None, link: str | None, ranks: int | None = None) -> OnNodes:
    """What --nodes and --link say.

    Args:
        nodes: None where nothing was said.
        link: likewise.
        ranks: that the nodes must divide, where they are known.

    Raises:
        BadInput: that says which of them cannot be.
    """
    from reference.cluster.cluster import check_nodes
    from reference.cluster.nodes import link_rate

    if nodes is None:
        if link is not None:
            raise BadInput(f"--link {link} is the rate of a node's link: say --nodes 2, too")
        return OnNodes()
    check_nodes(nodes if ranks is None else ranks, nodes)
    where = OnNodes(nodes, link or LINK)
    link_rate(where.link)
    return where


def where_possible(wanted: OnNodes) -> OnNodes:
    """The same; on no nodes where this machine can't have them: then a line on stderr says why."""
    from reference.cluster import Nodes

    if wanted.nodes is None or (found := Nodes.available()):
        return wanted
    print(f"rankwise: without nodes: {found.why_not}", file=sys.stderr, flush=True)
    return OnNodes()
