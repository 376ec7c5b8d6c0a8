"""The bug zoo: mistakes that people make in distributed code, each as a program that makes it."""

from tests.watch.cases import collect
from tests.watch.zoo import (
    buffers,
    collectives,
    deadlocks,
    frameworks,
    groups,
    messages,
    numbers,
    processes,
    requests,
    threads,
)

CASES = collect(deadlocks, messages, buffers, requests, collectives, groups, numbers, processes, threads, frameworks)
