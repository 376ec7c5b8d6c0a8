"""How functions of the chapter on compression are called: more than once, where chance is asked for."""

from collections.abc import Callable
from typing import Any


def twice_and_with_another_seed(function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Call it with a seed, with the same again, and with the next one; the three results are what it returns."""
    x, seed = arguments["x"], arguments["seed"]
    return {"x": x, "returns": [function(x, seed), function(x, seed), function(x, seed + 1)]}
