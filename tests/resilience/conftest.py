"""Ranks that can write checkpoints, and a short text to train on."""

from ..train.conftest import one_thread, short_text
from ..zero.conftest import eight, ranks, two

__all__ = ["eight", "one_thread", "ranks", "short_text", "two"]
