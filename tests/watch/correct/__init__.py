"""Correct programs. However much some of them look like a mistake, none may ever be accused of one."""

from tests.watch.cases import collect
from tests.watch.correct import (
    buffers,
    collectives,
    frameworks,
    futures,
    gradients,
    groups,
    messages,
    objects,
    telling,
    threads,
    timing,
)

CASES = collect(
    messages, buffers, collectives, groups, objects, gradients, timing, threads, telling, futures, frameworks
)
