"""What all ranks decide together before one of them acts on it: everywhere, or nowhere.

A rank that finds a file damaged, and raises alone, leaves the others waiting for it. So every rank first tells what it
has found, and then all raise the same, or none does.
"""

from collections.abc import Callable, Iterable
from typing import TypeVar

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from reference.collectives.compat import device_of
from reference.errors import BadInput

T = TypeVar("T")


def together(do: Callable[[], T], group: ProcessGroup) -> list[T]:
    """Do something on every rank, to the end on all of them or with the same error on all of them.

    Returns:
        What it returned on each rank.

    Raises:
        BadInput: if files or input were to blame on some rank.
    """
    rank, result, failure = dist.get_rank(group), None, None
    try:
        result = do()
    except BadInput as error:
        failure = str(error)
    except OSError as error:
        failure = f"rank {rank}: {error}"
    everyone: list = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyone, (result, failure), group=group)
    for _, failure in everyone:
        if failure:
            raise BadInput(failure)
    return [result for result, _ in everyone]


def by_first(do: Callable[[], T], group: ProcessGroup) -> T:
    """Do something on rank 0, and tell the others what came of it.

    Raises:
        BadInput: on every rank, if files or input were to blame.
    """
    return together(lambda: do() if dist.get_rank(group) == 0 else None, group)[0]


def anywhere(flags: Iterable[bool], group: ProcessGroup) -> list[bool]:
    """Of each flag, whether it is true on any rank; the same answer on all of them, from one small message."""
    raised = torch.tensor([*map(int, flags)], dtype=torch.int32, device=device_of(group))
    dist.all_reduce(raised, op=dist.ReduceOp.MAX, group=group)
    return [bool(flag) for flag in raised.tolist()]


class Poll:
    """`anywhere` for a loop in which no rank is to wait: what is asked after one step is known after the next.

    An answer at once makes every rank wait, at every step, for the one that ends it last. By the end of the next step,
    in which ranks have sent each other far more, the answer is there.

    Args:
        group: of those who are asked. All of them call each method together.
    """

    def __init__(self, group: ProcessGroup) -> None:
        self.group, self._pending = group, None

    def ask(self, flags: Iterable[bool]) -> None:
        """Send what this rank says. What was asked before must have been answered."""
        raised = torch.tensor([*map(int, flags)], dtype=torch.int32, device=device_of(self.group))
        self._pending = raised, dist.all_reduce(raised, op=dist.ReduceOp.MAX, group=self.group, async_op=True)

    def answer(self) -> list[bool]:
        """Of each flag that was asked last, whether it was true on any rank; [] if nothing was asked since."""
        if self._pending is None:
            return []
        (raised, work), self._pending = self._pending, None
        work.wait()
        return [bool(flag) for flag in raised.tolist()]
