"""What has no answer, said in one sentence: no ranks, no time, links that carry nothing."""

import math
from collections.abc import Callable
from functools import wraps
from inspect import signature
from numbers import Integral, Real
from typing import Any, ParamSpec, TypeVar

from reference.errors import BadInput

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def checked(formula: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """The same formula, which raises BadInput where an argument can't be what its name says."""
    names = signature(formula)

    @wraps(formula)
    def call(*given: Arguments.args, **named: Arguments.kwargs) -> Result:
        for name, value in names.bind(*given, **named).arguments.items():
            check(name, value)
        return formula(*given, **named)

    return call


def check(name: str, value: Any) -> None:
    """Raises BadInput for a value that the argument called `name` cannot have."""
    if name in ("ranks", "nodes", "ranks_per_node", "nics"):
        if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
            raise BadInput(f"{name} is a whole number, at least 1, not {value}")
    elif name in ("intra", "inter"):
        check("alpha", value[0])
        check("beta", value[1])
    elif name == "size" and not 0 <= value < math.inf:
        raise BadInput(f"size is a number of bytes, 0 or more, not {value}")
    elif name == "alpha" and not 0 <= value < math.inf:
        raise BadInput(f"alpha is a latency in seconds, 0 or more, not {value}")
    elif name == "beta" and not value > 0:
        raise BadInput(f"beta is a bandwidth in bytes per second, above 0, not {value}")
    elif name == "seconds" and isinstance(value, Real) and not 0 < value < math.inf:
        raise BadInput(f"seconds is how long it took, above 0, not {value}")
