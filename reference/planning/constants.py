"""The fitted constants of each kind of GPU, and how well they are known. `fit.py` writes `data/constants.json`."""

import json
from functools import cache

from .hardware import DATA, Gpu
from .step import Constants


@cache
def _table() -> dict[str, dict[str, object]]:
    return json.loads((DATA / "constants.json").read_text(encoding="utf-8"))


def _known(gpu: Gpu) -> dict[str, object]:
    """What is known of this kind of GPU, or of an unknown one."""
    return _table().get(gpu.name.split()[0].lower(), _table()["unknown"])


def of_gpu(gpu: Gpu) -> Constants:
    """Of this kind of GPU; of the newest that is known, where none were fitted for it."""
    return Constants(**_known(gpu)["constants"])


def likely_error(gpu: Gpu) -> float:
    """Of seconds, as a part of them: of 20 published steps on this kind of GPU, 19 are met better."""
    return float(_known(gpu)["p95"])
