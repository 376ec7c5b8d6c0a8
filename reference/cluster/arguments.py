"""A function and its arguments on their way to the ranks, as bytes."""

from collections.abc import Callable, Sequence
from typing import Any

from . import pickling

Packed = tuple[bytes, tuple[Any, ...]]  # a payload and its buffers


class EachRank:
    """An argument that is another one on each rank: rank r is given `values[r]`, and never sees the others.

    cluster.run(fn, EachRank([x0, x1, x2]))
    """

    def __init__(self, values: Sequence[Any]) -> None:
        self.values = values


def packed(fn: Callable[..., Any], args: tuple, kwargs: dict[str, Any], world_size: int) -> list[Packed]:
    """A function and its arguments as bytes, for each rank. Raises TypeError, ValueError where they can't travel."""
    given = [each for each in (*args, *kwargs.values()) if isinstance(each, EachRank)]
    if wrong := next((len(each.values) for each in given if len(each.values) != world_size), None):
        raise ValueError(f"EachRank has one value for each rank: {world_size}, not {wrong}")
    if not given:
        return [pack(fn, args, kwargs)] * world_size

    def of(value: Any, rank: int) -> Any:
        return value.values[rank] if isinstance(value, EachRank) else value

    return [
        pack(fn, tuple(of(each, rank) for each in args), {name: of(each, rank) for name, each in kwargs.items()})
        for rank in range(world_size)
    ]


def pack(fn: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> Packed:
    """A function and its arguments as bytes. Raises TypeError with the reason where they can't travel."""
    try:
        return pickling.dumps((fn, args, kwargs))
    except Exception as error:
        name = getattr(fn, "__name__", repr(fn))
        raise TypeError(f"{name} or an argument of it can't travel to the ranks: {error}") from error
