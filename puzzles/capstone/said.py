"""Adapters of what ranks say to each other: a learner's collectives, as the communicator of every strategy."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.distributed import ProcessGroup

from reference.collectives.communicator import ByHand, Communicator
from reference.collectives.default import over

UNEVEN = "all_to_all_uneven"


class Said(ByHand):
    """Collectives of which some are a learner's; what is missing is said as the reference says it.

    Args:
        group: n ranks.
        functions: by the names of `communicator.PLAIN`, and `UNEVEN`.
    """

    def __init__(self, group: ProcessGroup, functions: Mapping[str, Callable[..., None]]) -> None:
        super().__init__(group, functions)
        self._own, self._others = functions, over(group)

    def _run(self, collective: str, *arguments: Any, **options: Any) -> None:
        if collective in self._own:
            super()._run(collective, *arguments, **options)
        else:
            getattr(self._others, collective)(*arguments, **options)

    def all_to_all_uneven(self, x: Tensor, out: Tensor, sent: Sequence[int], received: Sequence[int]) -> None:
        """Rows of uneven numbers."""
        if UNEVEN in self._own:
            self._own[UNEVEN](x, out, [*sent], [*received], self.group)
        else:
            self._others.all_to_all_uneven(x, out, sent, received)


def communicate(functions: Mapping[str, Callable[..., None]]) -> Callable[[ProcessGroup | Communicator], Communicator]:
    """Makes the communicator of a group."""
    return lambda group: Said(group, functions) if isinstance(group, ProcessGroup) else group


def collective(name: str) -> Callable[[Callable[..., Any], Any], None]:
    """The adapter of a collective: its puzzle has the engine's signature."""

    def take(function: Callable[..., Any], parts: Any) -> None:
        parts.collectives[name] = function

    return take
