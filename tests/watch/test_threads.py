"""A buffer that two threads touch is named, also where one comes between the other's look and its note."""

import threading
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

from reference.cluster.errors import RequestError
from tests.watch.warm import LIMIT, WarmClusters


def received_and_touched(touch: Callable[[torch.Tensor], object], later: int) -> None:
    """Rank 1 receives in a thread, and touches the buffer in the main one, a little later each time."""
    x = torch.ones(4096)
    if dist.get_rank() == 0:
        dist.send(x, dst=1)
        return
    thread = threading.Thread(target=dist.recv, args=(x, 0))
    thread.start()
    sum(range(later))
    touch(x)
    thread.join()


@pytest.mark.parametrize("touch", [torch.Tensor.sum, lambda x: x.mul_(2)])
def test_no_moment_is_between_the_look_and_the_note(warm: WarmClusters, touch: Callable) -> None:
    """A thread looks whether a buffer is in flight, and notes that it has touched it: another may come in between."""
    for later in range(0, 12_000, 300):
        with pytest.raises(RequestError, match=r"unfilled until wait|in flight"):
            warm.call(2, LIMIT, received_and_touched, touch, later)
