"""The fitted constants of each kind of GPU, and how well they are known. `fit.py` writes `data/constants.json`."""

import json
from functools import cache

from .hardware import DATA, Gpu
from .step import Constants


@cache
def fitted() -> dict[str, Constants]:
    """By the first word of a GPU's name, in small letters."""
    table = json.loads((DATA / "constants.json").read_text())
    return {name: Constants(**each) for name, each in table.items()}


def of_gpu(gpu: Gpu) -> Constants:
    """Of this GPU, or of the one that is most like it where none were fitted for it."""
    return fitted().get(gpu.name.split()[0].lower(), fitted()["h100"])
