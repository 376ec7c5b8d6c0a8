"""A short text to train on, and one thread."""

from ..train.conftest import one_thread, short_text

__all__ = ["one_thread", "short_text"]
