"""What GPUs ask of a process that runs many streams on them, and CPUs do not.

*Hardware queues.* CUDA feeds a GPU through queues, 8 of them unless it is told otherwise. Streams that share one wait
for each other, although nothing in the program says so: a receive that spins can keep from the GPU the very send for
which the other rank waits (`pipeline_parallel.folded`). So there must be a queue for each channel of a rank, and for
what else it does. There is no promise that streams are then kept apart; with fewer queues they cannot be.

*First times.* NCCL makes a communicator when a group is first used, and CUDA loads a kernel when it is first launched.
Either may wait until the GPU is idle, and it is not while a receive spins. So whatever a step uses is used once before
messages are under way: groups by `Groups.connect` and `channels_of`, kernels by `Training.warm_up`.

NVIDIA, "CUDA C++ programming guide": CUDA_DEVICE_MAX_CONNECTIONS, 1 to 32, read once, when CUDA starts; and "Lazy
loading", on kernels that wait for each other. NVIDIA, "NCCL user guide", on several communicators at a time.
"""

import os

import torch

from reference.errors import BadInput

CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"
DEFAULT, MOST = 8, 32
BESIDES = 4  # queues for computing, and for collectives of the data axis, of the tensor axis, and of losses


def is_gpu(device: torch.device) -> bool:
    """Whether all this is to be heeded there. Where it is heeded needlessly, as by tests on CPUs, nothing changes."""
    return device.type == "cuda"


def allow_connections() -> None:
    """Ask for as many queues as there can be, unless a number was set when this process was started.

    Call it before CUDA starts.
    """
    os.environ.setdefault(CONNECTIONS, str(MOST))


def require_connections(channels: int) -> None:
    """See that this process has queues for so many channels, and for what else a rank does.

    Args:
        channels: of the busiest rank of a pipeline, so that all ranks say the same.

    Raises:
        BadInput: if there are fewer.
    """
    said, needed = os.environ.get(CONNECTIONS, str(DEFAULT)), channels + BESIDES
    if not said.isdecimal() or int(said) < needed:
        raise BadInput(
            f"{CONNECTIONS} is {said}, and a rank of this pipeline takes {needed} connections: set it to {MOST}, or "
            "unset it, before the ranks start"
        )
