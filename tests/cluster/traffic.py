"""What the tests of nodes run under torchrun: two ranks on each of two nodes time a ping-pong and an all-reduce."""

import json
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

SIZE = 4_000_000  # bytes
TIMES = 3


def ping_pong(x: torch.Tensor) -> None:
    """From rank 0 to the first rank of the other node and back."""
    if dist.get_rank() == 0:
        dist.send(x, 2)
        dist.recv(x, 2)
    elif dist.get_rank() == 2:
        dist.recv(x, 0)
        dist.send(x, 0)


def seconds(what: Callable[[torch.Tensor], object], x: torch.Tensor) -> float:
    """From the first rank's begin to the last one's end, for nodes of one machine have one clock.

    Of the fastest of some times: the others had to wait for a processor.
    """
    taken = []
    for _ in range(TIMES):
        dist.barrier()
        begin = time.perf_counter()
        what(x)
        mine = torch.tensor([begin, time.perf_counter()], dtype=torch.float64)
        spans = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(spans, mine)
        begins, ends = torch.stack(spans).T
        taken.append((ends.max() - begins.min()).item())
    return min(taken)


def main(path: str) -> None:
    dist.init_process_group("gloo")
    x = torch.ones(SIZE // 4)
    dist.all_reduce(x)
    correct = x.eq(dist.get_world_size()).all().item()
    found = {"correct": correct, "ping_pong": seconds(ping_pong, x), "all_reduce": seconds(dist.all_reduce, x)}
    if dist.get_rank() == 0:
        with open(path, "w") as file:
            json.dump(found, file)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
