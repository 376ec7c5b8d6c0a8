"""The same ranks as for the forms of data parallelism."""

from ..data_parallel.conftest import ranks

__all__ = ["ranks"]
