"""Does a result share its memory with an argument, or with another result? Then to change one is to change both."""

import functools
import itertools
from collections.abc import Callable
from typing import Any

from torch import Tensor

from .drives import all_tensors


def watched(function: Callable[..., Any], found: list[str]) -> Callable[..., Any]:
    """The function; of each of its calls, what shares memory is added to `found`."""

    @functools.wraps(function)
    def looked_at(*args: Any, **kwargs: Any) -> Any:
        given = [(name, leaf) for name, value in kwargs.items() for leaf in _tensors(value)]
        result = function(*args, **kwargs)
        made = _tensors(result)
        found.extend(name for name, leaf in given if any(_share(leaf, each) for each in made))
        if any(_share(one, other) for one, other in itertools.combinations(made, 2)):
            found.append("another result")
        return result

    return looked_at


def _tensors(value: Any) -> list[Tensor]:
    return [each for each in all_tensors(value) if each.numel()]


def _share(one: Tensor, other: Tensor) -> bool:
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
