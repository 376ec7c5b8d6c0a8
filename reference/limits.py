"""What a step keeps at the least, against the memory that there is: seen before anything is allocated.

Whatever the plan, the inputs of all blocks and the logits of one micro-batch are there at once, on all ranks together;
unless blocks are computed again, so are the inputs of their linear layers. A run that passes may still need more: what
it takes in detail is the matter of lesson 04.
"""

import os

from reference.choices import Recompute
from reference.config import TrainConfig
from reference.errors import BadInput
from reference.plan import Plan


def require_memory(config: TrainConfig, plan: Plan, memory: int, share: float = 1.0) -> None:
    """See that a step could fit.

    Args:
        config, plan: of the run.
        memory: bytes that there are.
        share: of all ranks, the part that computes with this memory.

    Raises:
        BadInput: if it could not.
    """
    needed = share * least_bytes(config, plan)
    if needed > memory:
        tokens = f"{config.batch:,} windows of {config.sequence:,} tokens in {plan.micro_batches:,} micro-batches"
        raise BadInput(
            f"{tokens} keep {needed / 1e9:,.1f} GB or more, and here are {memory / 1e9:,.1f} GB: take a smaller batch "
            "or sequence, or more micro-batches"
        )


def least_bytes(config: TrainConfig, plan: Plan) -> float:
    """Bytes that a step keeps on all ranks together, at the least."""
    model = config.model
    of_block = model.width if plan.recompute is not Recompute.NONE else 5 * model.width + model.hidden
    of_token = model.layers * of_block + model.vocabulary
    return config.batch / plan.micro_batches * config.sequence * of_token * config.precision.compute.itemsize


def host_memory() -> int:
    """Bytes of this machine, which seems to hang where they are not enough; a GPU says so at once."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
