"""Three sums for the back of an envelope: what a training state weighs, whether it fits, what a layer adds.

They hold to one or two per cent, and are done before any machine is rented. `recipe`, `korthikanti` and `activations`
know every case; here is the one that every engineer should be able to do by heart.
"""

import torch


def recipe_bytes(
    trained: int, frozen: int, compute: torch.dtype, gradients: torch.dtype, master: torch.dtype, moments: int
) -> int:
    """Bytes that one process keeps from step to step.

    Args:
        trained: how many numbers are learned.
        frozen: how many are not; they are only computed with.
        compute: in which the model computes, and keeps its parameters.
        gradients: in which gradients are added up.
        master: in which the optimizer updates, and keeps its moments. If it is `compute`, it updates the model's own
            parameters; else it has a copy.
        moments: how many numbers the optimizer remembers for each parameter: 2 for Adam, 1 for momentum, 0 for SGD.
    """
    copies = moments + (master != compute)
    return trained * (compute.itemsize + gradients.itemsize + copies * master.itemsize) + frozen * compute.itemsize


def first_stage(parameters: int, ranks: int, memory: int, besides: int) -> str | None:
    """The first stage of ZeRO with which a model can be trained, in mixed precision with Adam (2 + 2 + 12 bytes).

    A later stage shards more, and the last one also sends more: so the first that fits is the one to take.

    Args:
        parameters: of the model.
        ranks: n, over which the state is sharded.
        memory: bytes of each rank's device.
        besides: bytes for everything else, activations first of all.

    Returns: "ddp" if nothing need be sharded, "zero1", "zero2" or "zero3"; None if it does not fit at all.

    Rajbhandari et al. 2020, "ZeRO", figure 1.
    """
    shard = -(-parameters // ranks)
    stages = {"ddp": (16, 0), "zero1": (4, 12), "zero2": (2, 14), "zero3": (0, 16)}  # bytes whole, bytes sharded
    state = {stage: whole * parameters + sharded * shard for stage, (whole, sharded) in stages.items()}
    return next((stage for stage in stages if state[stage] + besides <= memory), None)


def layer_bytes(sequence: int, batch: int, width: int, heads: int, scores: bool) -> int:
    """Bytes of activations that one classic transformer layer keeps for backward: s b h (34 + 5 a s / h).

    Args:
        sequence: s, tokens in a sequence.
        batch: b, sequences in a micro-batch.
        width: h.
        heads: a.
        scores: whether attention's s x s matrices are kept; not with flash attention or selective recomputation.

    Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models", section 4.
    """
    return sequence * batch * (34 * width + 5 * heads * sequence * scores)
