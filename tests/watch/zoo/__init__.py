"""The bug zoo: mistakes that people make in distributed code, each as a program that makes it."""

from tests.watch.cases import collect
from tests.watch.zoo import (
    agreement,
    calls,
    deadlocks,
    endings,
    endless,
    frameworks,
    futures,
    groups,
    messages,
    numbers,
    outputs,
    peers,
    reading,
    tensors,
    threads,
    waiting,
    writing,
)

CASES = collect(
    deadlocks,
    messages,
    peers,
    outputs,
    tensors,
    waiting,
    reading,
    writing,
    calls,
    agreement,
    groups,
    numbers,
    endings,
    endless,
    threads,
    futures,
    frameworks,
)
