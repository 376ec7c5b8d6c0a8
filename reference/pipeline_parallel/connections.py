"""How many streams a GPU is asked to run at once, and whether a pipeline can live with that.

CUDA feeds a GPU through hardware queues, 8 of them unless it is told otherwise. Streams that share a queue wait for
each other, although nothing in the program says so: a receive that spins can keep from the GPU the very send for which
the other rank waits (`folded.stuck`). So there must be a queue for each channel of a rank and for what else it does.
Nobody promises that streams are then kept apart; with fewer queues they cannot be.

NVIDIA, "CUDA C++ programming guide", environment variables: CUDA_DEVICE_MAX_CONNECTIONS, 1 to 32, read once, when CUDA
starts.
"""

import os
from collections import Counter
from collections.abc import Iterable

from reference.errors import BadInput

from .passes import Channel

VARIABLE = "CUDA_DEVICE_MAX_CONNECTIONS"
DEFAULT, MOST = 8, 32
BESIDES = 4  # queues for computing, and for collectives of the data axis, of the tensor axis, and of losses


def allow() -> None:
    """Ask for as many queues as there can be, unless whoever started this process has asked for another number.

    Call it before CUDA starts.
    """
    os.environ.setdefault(VARIABLE, str(MOST))


def needed(channels: Iterable[Channel]) -> int:
    """Queues that the busiest rank of a pipeline takes.

    Args:
        channels: of the pipeline, each once.
    """
    ends = Counter(rank for channel in channels for rank in channel)
    return BESIDES + max(ends.values(), default=0)


def require(channels: Iterable[Channel]) -> None:
    """See that this process has a queue for each channel that any rank of the pipeline has.

    Raises:
        BadInput: if there are fewer.
    """
    said, needs = os.environ.get(VARIABLE, str(DEFAULT)), needed(channels)
    if not said.isdecimal() or int(said) < needs:
        raise BadInput(
            f"{VARIABLE} is {said}, and a rank of this pipeline takes {needs} connections: set it to {MOST}, or unset "
            "it, before the ranks start"
        )
