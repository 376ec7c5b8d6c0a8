"""Ranks for all tests of the chapter, those of data parallelism and ZeRO; a short text, and one thread."""

from ..data_parallel.conftest import ranks
from ..train.conftest import one_thread, short_text

__all__ = ["one_thread", "ranks", "short_text"]
