"""Ranks for all tests of the chapter: those of the chapters on data parallelism and ZeRO."""

from ..data_parallel.conftest import ranks

__all__ = ["ranks"]
