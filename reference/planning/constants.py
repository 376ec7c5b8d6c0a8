"""The fitted constants of each kind of GPU, and how well they are known. `fit.py` writes `data/constants.json`."""

import json
from functools import cache
from math import log

from .hardware import DATA, Gpu, gpus
from .step import Constants


@cache
def _table() -> dict[str, dict[str, object]]:
    return json.loads((DATA / "constants.json").read_text(encoding="utf-8"))


def of_gpu(gpu: Gpu) -> Constants:
    """Of this kind of GPU; where none were fitted for it, of the kind whose peak is nearest."""
    table = {name: known for name, known in _table().items() if name != "unknown"}
    nearest = min(table, key=lambda name: (name != _kind(gpu), abs(log(gpus()[name].peak / gpu.peak))))
    return Constants(**table[nearest]["constants"])


def likely_error(gpu: Gpu) -> float:
    """Of seconds, as a part of them: of 20 published steps on this kind of GPU, 19 are met better."""
    return float(_table().get(_kind(gpu), _table()["unknown"])["p95"])


def _kind(gpu: Gpu) -> str:
    return gpu.name.split()[0].lower()
