"""An incident to work through from its trace: six steps of which some take one rank twice as long as the others."""

import time

import torch
import torch.distributed as dist

STEPS = 6
WORK = 0.03  # seconds of forward and backward
SLOW, SINCE = 2, 3  # which rank is slow, and from which step on


def steps() -> None:
    """On each rank: work, then the sum of gradients."""
    gradient = torch.ones(50_000)
    for step in range(STEPS):
        time.sleep(2 * WORK if dist.get_rank() == SLOW and step >= SINCE else WORK)
        dist.all_reduce(gradient)
