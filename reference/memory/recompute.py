"""Activation checkpointing: forget what forward made, and make it again when backward needs it (Chen et al. 2016)."""

from enum import StrEnum

from torch import nn


class Recompute(StrEnum):
    """What is made again in backward instead of being kept."""

    NONE = "none"
    SELECTIVE = "selective"  # what is large and cheap: the attention core, norms, the product inside the SwiGLU
    FULL = "full"  # everything inside a block; its input alone is kept


def recompute(model: nn.Module, how: Recompute) -> None:
    """Let every block of `model.blocks` keep less for backward, in place; values and gradients stay bitwise the same.

    Replaces `forward` on the instances, so that hooks of modules stay outside: they do not run again.
    """
    if how is not Recompute.NONE:
        raise NotImplementedError(how)
