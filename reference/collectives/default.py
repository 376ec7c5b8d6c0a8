"""The communicator of a strategy that is given a plain process group."""

from collections.abc import Callable

from torch.distributed import ProcessGroup

from .communicator import Communicator
from .fast.dispatch import Fastest

Communicate = Callable[[ProcessGroup], Communicator]
"""Makes the communicator of a group: a class of `communicator`, or a function of one's own."""


def over(group: ProcessGroup | Communicator) -> Communicator:
    """The communicator itself, or `Fastest` over a plain group."""
    return Fastest(group) if isinstance(group, ProcessGroup) else group
