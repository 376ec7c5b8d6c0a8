"""Buffers read before they are filled: rows 13 and 15 of the bug zoo.

Between an `irecv` or an `async_op` and its `wait()` a buffer belongs to the transport.
"""

import copy
import io
from functools import partial

import numpy
import torch
import torch.distributed as dist

from tests.watch.cases import Outcome, mistake

read_too_early = partial(
    mistake,
    row=13,
    ranks=2,
    error="RequestError",
    blames=(1,),
    says=r"unfilled until wait\(\)",
    plain=Outcome.PASSES,
)


@read_too_early(args=("sum",))
@read_too_early(args=("item",))
@read_too_early(args=("print",))
@read_too_early(args=("clone",))
@read_too_early(args=("numpy",))
@read_too_early(args=("list",))
@read_too_early(args=("view",))
def irecv_buffer_read_before_wait(how):
    x = torch.zeros(4)
    if dist.get_rank() == 0:
        return dist.send(torch.ones(4), dst=1)
    request = dist.irecv(x, src=0)
    if how == "sum":
        seen = x + 1  # <- here
    elif how == "item":
        seen = x[0].item()  # <- here
    elif how == "print":
        seen = f"received {x}"  # <- here
    elif how == "clone":
        seen = x.clone()  # <- here
    elif how == "numpy":
        seen = x.numpy().sum()  # <- here
    elif how == "list":
        seen = x.tolist()  # <- here
    else:
        seen = x.view(2, 2)[1].max()  # <- here
    request.wait()
    return seen


@read_too_early(args=("index_select",))
@read_too_early(args=("embedding",))
@read_too_early(args=("index",))
def chosen_rows_read_before_wait(how):
    """Of a large table some rows arrive, and one of them is among those that numbers choose."""
    table, chosen = torch.zeros(600_000, 4), torch.tensor([0, 3, 500_000])
    if dist.get_rank() == 0:
        return dist.send(torch.ones(2, 4), dst=1)
    request = dist.irecv(table[2:4], src=0)
    if how == "index_select":
        seen = table.index_select(0, chosen)  # <- here
    elif how == "embedding":
        seen = torch.nn.functional.embedding(chosen, table)  # <- here
    else:
        seen = table[chosen]  # <- here
    request.wait()
    return seen


@read_too_early()
def integers_read_before_wait():
    """There is no NaN among the integers to give the early reader away."""
    tokens = torch.zeros(4, dtype=torch.int64)
    if dist.get_rank() == 0:
        dist.send(torch.arange(4), dst=1)
    else:
        request = dist.irecv(tokens, src=0)
        embedded = torch.nn.functional.one_hot(tokens, 4)  # <- here
        request.wait()
        return embedded


@mistake(
    row=13,
    ranks=3,
    error="RequestError",
    blames=(1,),
    says=r"unfilled until wait\(\)",
    plain=Outcome.PASSES,
)
def forwards_what_it_has_not_received():
    rank = dist.get_rank()
    x = torch.full((4,), float(rank))
    if rank == 0:
        dist.send(x, dst=1)
    elif rank == 1:
        receive = dist.irecv(x, src=0)
        forward = dist.isend(x, dst=2)  # <- here
        receive.wait()
        forward.wait()
    else:
        dist.recv(x, src=1)


@mistake(
    row=13,
    ranks=2,
    error="RequestError",
    blames=(0, 1),
    says=r"unfilled until wait\(\)",
    plain=Outcome.PASSES,
)
def adds_a_chunk_of_the_ring_too_early():
    peer = 1 - dist.get_rank()
    mine, incoming = torch.ones(8), torch.zeros(8)
    send, receive = dist.isend(mine, dst=peer), dist.irecv(incoming, src=peer)
    send.wait()
    total = mine + incoming  # <- here
    receive.wait()
    return total


@mistake(
    row=15,
    ranks=2,
    error="RequestError",
    blames=(0, 1),
    says=["all_reduce", r"unfilled until wait\(\)"],
    plain=Outcome.PASSES,
)
def async_all_reduce_read_before_wait():
    loss = torch.tensor([1.0])
    work = dist.all_reduce(loss, async_op=True)
    mean = loss / dist.get_world_size()  # <- here
    work.wait()
    return mean


@mistake(
    row=15,
    ranks=3,
    error="RequestError",
    blames=(0, 1, 2),
    says=["all_gather", r"unfilled until wait\(\)"],
    plain=Outcome.PASSES,
)
def async_all_gather_read_before_wait():
    mine = torch.ones(4)
    everybodys = [torch.empty(4) for _ in range(dist.get_world_size())]
    work = dist.all_gather(everybodys, mine, async_op=True)
    total = torch.stack(everybodys)  # <- here
    work.wait()
    return total


@mistake(
    row=15,
    ranks=2,
    error="RequestError",
    blames=(1,),
    says=["broadcast", r"unfilled until wait\(\)"],
    plain=Outcome.PASSES,
)
def async_broadcast_read_before_wait():
    weights = torch.full((4,), float(dist.get_rank()))
    work = dist.broadcast(weights, src=0, async_op=True)
    if dist.get_rank() == 1:
        norm = weights.norm()  # <- here
        assert norm >= 0
    work.wait()


@mistake(
    row=15,
    ranks=2,
    args=("reduce_scatter_tensor",),
    error="RequestError",
    blames=(0, 1),
    says=["reduce_scatter_tensor", r"unfilled until wait\(\)"],
    plain=Outcome.PASSES,
)
@mistake(
    row=15,
    ranks=2,
    args=("reduce_scatter_single",),
    error="RequestError",
    blames=(0, 1),
    says=["reduce_scatter_single", r"unfilled until wait\(\)"],
    plain=Outcome.PASSES,
)
def async_reduce_scatter_read_before_wait(function):
    gradient, shard = torch.ones(8), torch.empty(4)
    work = getattr(dist, function)(shard, gradient, async_op=True)
    update = 0.1 * shard  # <- here
    work.wait()
    return update


@mistake(
    row=15,
    ranks=2,
    error="RequestError",
    blames=(0, 1),
    says=["all_to_all", r"unfilled until wait\(\)"],
    plain=Outcome.PASSES,
)
def async_all_to_all_read_before_wait():
    tokens, received = torch.ones(4), torch.empty(4)
    work = dist.all_to_all_single(received, tokens, async_op=True)
    output = received.relu()  # <- here
    work.wait()
    return output


@mistake(
    row=15,
    ranks=2,
    error="RequestError",
    blames=(0, 1),
    says=["all_reduce", r"until wait\(\)"],
    plain=Outcome.PASSES,
)
def steps_before_the_gradients_are_there():
    layer = torch.nn.Linear(4, 1, bias=False)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    layer(torch.ones(2, 4)).sum().backward()
    works = [dist.all_reduce(parameter.grad, async_op=True) for parameter in layer.parameters()]
    optimizer.step()  # <- here
    for work in works:
        work.wait()


@mistake(
    row=15,
    ranks=2,
    error="RequestError",
    blames=(0,),
    says=["gather", r"unfilled until wait\(\)"],
    plain=Outcome.PASSES,
)
def async_gather_read_before_wait():
    received = [torch.zeros(2), torch.zeros(2)] if dist.get_rank() == 0 else None
    work = dist.gather(torch.ones(2), received, dst=0, async_op=True)
    if dist.get_rank() == 0:
        total = sum(received)  # <- here
        assert total is not None
    work.wait()


@mistake(
    row=15,
    ranks=2,
    error="RequestError",
    blames=(0, 1),
    says=["scatter", r"unfilled until wait\(\)"],
    plain=Outcome.PASSES,
)
def async_scatter_read_before_wait():
    mine, chunks = torch.zeros(2), list(torch.ones(2, 2)) if dist.get_rank() == 0 else None
    work = dist.scatter(mine, chunks, src=0, async_op=True)
    doubled = mine * 2  # <- here
    work.wait()
    return doubled


@read_too_early(args=("asarray",))
@read_too_early(args=("deepcopy",))
@read_too_early(args=("save",))
@read_too_early(args=("compare",))
@read_too_early(args=("branch",))
def irecv_buffer_copied_away_before_wait(how):
    x = torch.zeros(4)
    if dist.get_rank() == 0:
        return dist.send(torch.ones(4), dst=1)
    request = dist.irecv(x, src=0)
    if how == "asarray":
        numpy.asarray(x)  # <- here
    elif how == "deepcopy":
        copy.deepcopy(x)  # <- here
    elif how == "save":
        torch.save(x, io.BytesIO())  # <- here
    elif how == "compare":
        torch.equal(x, torch.ones(4))  # <- here
    elif x.any():  # <- here
        print("something has arrived")
    request.wait()


@mistake(row=15, ranks=2, error="RequestError", blames=(0, 1), says=r"unfilled until wait\(\)", plain=Outcome.PASSES)
def transposed_matrix_read_before_wait():
    """Its elements lie in one piece, in an order of their own."""
    x = torch.ones(2, 3).t()
    request = dist.all_reduce(x, async_op=True)
    x.sum()  # <- here
    request.wait()


@mistake(row=15, ranks=2, error="RequestError", blames=(0, 1), says=r"unfilled until wait\(\)", plain=Outcome.PASSES)
def coalesced_calls_read_before_wait():
    xs = [torch.ones(3), torch.ones(2)]
    with dist.distributed_c10d._coalescing_manager(async_ops=True) as requests:
        for x in xs:
            dist.all_reduce(x)
    xs[0].clone()  # <- here
    requests.wait()
