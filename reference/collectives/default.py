"""The communicator of a strategy that is given a plain process group."""

from torch.distributed import ProcessGroup

from .communicator import Communicator
from .fast.dispatch import Fastest


def over(group: ProcessGroup | Communicator) -> Communicator:
    """The communicator itself, or `Fastest` over a plain group."""
    return Fastest(group) if isinstance(group, ProcessGroup) else group
