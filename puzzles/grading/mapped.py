"""Ranks import this before anything runs: memory of a large tensor goes back to the kernel as soon as it is freed.

The C library would raise its threshold with the first large block that is freed, and keep what comes later for the next
one. Then the peak of a process, by which `weigh` decides, says what it might have held as much as what it has held. The
owner, who weighs nothing of its own, does not import it.
"""

import contextlib

_MMAP_THRESHOLD = -3  # of mallopt
_LARGE = 1 << 18  # bytes of blocks that are mapped each by itself


def _map_large_blocks() -> None:
    import ctypes  # here, so that no name of the module leads to C functions

    with contextlib.suppress(AttributeError, OSError):  # another C library
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, _LARGE)


_map_large_blocks()
