"""The same ranks as for the forms with replicas."""

from ..data_parallel.conftest import ranks

__all__ = ["ranks"]
