"""Ranks that are not called sleep: they stay as warm as they are, and cost nothing.

A rank that waits for a call is not idle: gloo has a thread for each group, and it looks for messages a hundred times a
second. Eight ranks take a percent of a core or two (`rankwise bench cluster`), and as much again for each group that
their last call has made. What a notebook with several clusters leaves open adds up.
"""

import functools
import os
import threading
import time
import weakref
from typing import Protocol

PERIOD = 0.5  # seconds from one look to the next


class Restful(Protocol):
    """What can be put to sleep."""

    def rest(self) -> None:
        """Sleep after a while without a call."""


_clusters: weakref.WeakValueDictionary[int, Restful] = weakref.WeakValueDictionary()  # by id


def look_after(cluster: Restful) -> None:
    """Let it sleep from now on whenever it is not called. Holds it no longer than others do."""
    _clusters[id(cluster)] = cluster
    _start_thread(os.getpid())


@functools.cache
def _start_thread(process: int) -> None:
    """Once in each process: a fork of one that has the thread has none."""
    threading.Thread(target=_look_around, name="rankwise: rest", daemon=True).start()


def _look_around() -> None:
    """Loop without end: now and then put idle clusters to sleep."""
    while True:
        time.sleep(PERIOD)
        for reference in _clusters.valuerefs():
            if cluster := reference():
                cluster.rest()
            del cluster
