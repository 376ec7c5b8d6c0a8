"""Groups of ranks on nodes, made again until each of their ranks has reached all others.

A cable may be pulled while ranks connect. gloo gives up after four tries, some twelve seconds, and a rank at the other
end waits forever for one that has given up. So ranks try for some seconds, leave a word in the store of how it went,
and all take the group or all try again: no rank has a group that another one has not. The store is a file that all of
them see, whatever cable is pulled.
"""

import time
from datetime import timedelta
from itertools import count
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from reference.process_group import connect

FIRST, LONGEST = 5.0, 60.0  # seconds for the first try, for each later one twice as many, and at most
LOOK = 0.01  # seconds between two looks at the store


def connect_in_the_end(backend: str, options: Any, timeout: timedelta) -> ProcessGroup:
    """As `connect`, for a backend of CPUs, however long a rank is out of reach."""
    if options.group_size == 1:
        return connect(backend, options, timeout)
    store = options.store
    heard(options, "here")  # else the first try would wait for a rank that is late
    for tries in count():
        options.store = dist.PrefixStore(f"try {tries}", store)
        try:
            group = connect(backend, options, timedelta(seconds=min(FIRST * 2**tries, LONGEST)))
        except RuntimeError:  # of gloo, which has no class of its own for it
            group = None
        if all(word == "made" for word in heard(options, "made" if group else "not made")):
            group._get_backend(torch.device("cpu")).set_timeout(timeout)
            return group


def heard(options: Any, word: str) -> list[str]:
    """Leave a word in the store, and wait for those of all ranks of the group."""
    store, names = options.store, [f"word of {rank}" for rank in range(options.group_size)]
    store.set(names[options.group_rank], word)
    while not store.check(names):
        time.sleep(LOOK)
    return [store.get(name).decode() for name in names]
