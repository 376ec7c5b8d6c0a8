"""The ways by name: from a layout and groups of ranks to attention between them."""

from reference.choices import ContextMethod
from reference.collectives.communicator import Communicator
from reference.errors import BadInput

from .all_gather import AllGatherAttention
from .attention import ContextAttention
from .layouts import Layout
from .ring import RingAttention
from .tokens import in_order
from .ulysses import UlyssesAttention


def context_attention(
    method: ContextMethod,
    layout: Layout,
    communicator: Communicator,
    neighbours: Communicator | None = None,
    across: Communicator | None = None,
) -> ContextAttention:
    """Attention between the tokens of a layout.

    Args:
        method: how.
        layout: who holds which tokens.
        communicator: the n ranks of the layout, in its order.
        neighbours: for USP, the ranks among which heads are shared out: they stand next to each other in the layout.
        across: for USP, the ranks that have the same place among their neighbours.

    Raises:
        BadInput: if there are other ranks than the layout has.
    """
    if communicator.size() != layout.ranks:
        raise BadInput(f"the layout is of {layout.ranks} ranks, and the group has {communicator.size()}")
    match method:
        case ContextMethod.RING:
            return RingAttention(communicator, layout.tokens)
        case ContextMethod.ALL_GATHER:
            return AllGatherAttention(communicator, layout.tokens)
        case ContextMethod.ULYSSES:
            neighbours, across = communicator, None
        case ContextMethod.USP if neighbours is None or across is None:
            raise BadInput("USP takes two groups: neighbours that share out heads, and a ring across")
    u = neighbours.size()
    families = [layout.tokens[first : first + u] for first in range(0, layout.ranks, u)]
    inside = RingAttention(across, [in_order(sum(family, ()))[0] for family in families])
    return UlyssesAttention(neighbours, families[communicator.rank() // u], inside)
