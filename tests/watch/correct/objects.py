"""Python objects, which travel as tensors of bytes whose sizes are exchanged first."""

import torch
import torch.distributed as dist

from tests.watch.cases import correct


@correct(2, 3)
def all_gather_object():
    rank, n = dist.get_rank(), dist.get_world_size()
    everybodys = [None] * n
    dist.all_gather_object(everybodys, {"rank": rank, "text": "x" * (10 * rank)})
    assert [entry["rank"] for entry in everybodys] == list(range(n))


@correct(2, 3)
def broadcast_object_list():
    objects = [{"lr": 0.1}, "name", torch.ones(3)] if dist.get_rank() == 1 else [None] * 3
    dist.broadcast_object_list(objects, src=1)
    assert objects[0]["lr"] == 0.1 and objects[2].sum() == 3


@correct(3)
def scatter_object_list():
    mine = [None]
    tasks = [f"task {rank}" for rank in range(3)] if dist.get_rank() == 0 else None
    dist.scatter_object_list(mine, tasks, src=0)
    assert mine == [f"task {dist.get_rank()}"]


@correct(3)
def gather_object():
    rank = dist.get_rank()
    received = [None] * 3 if rank == 2 else None
    dist.gather_object((rank, "a" * rank), received, dst=2)
    assert rank != 2 or received == [(0, ""), (1, "a"), (2, "aa")]


@correct(2)
def send_object_list():
    if dist.get_rank() == 0:
        dist.send_object_list([{"step": 3}, None], dst=1)
    else:
        objects = [None, None]
        assert dist.recv_object_list(objects, src=0) == 0
        assert objects == [{"step": 3}, None]


@correct(4)
def objects_inside_a_group():
    pairs = [dist.new_group([0, 3]), dist.new_group([1, 2])]
    mine = pairs[0] if dist.get_rank() in (0, 3) else pairs[1]
    names = [None, None]
    dist.all_gather_object(names, dist.get_rank(), group=mine)
    assert sum(names) == 3
