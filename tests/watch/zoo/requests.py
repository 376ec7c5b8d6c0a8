"""Requests: rows 12, 13, 14 and 15 of the bug zoo, and kin.

Between the call and `wait()` a buffer belongs to the transport. It may not be read if it is being filled, nor written
if it is being sent, and somebody must wait in the end.
"""

import torch
import torch.distributed as dist

from tests.watch.cases import Outcome, mistake


@mistake(
    row=12,
    ranks=2,
    error="RequestError",
    blames=(0,),
    says=["isend", "never waited for"],
    plain=Outcome.CLOSED,
)
def isend_without_wait():
    x = torch.ones(4)
    if dist.get_rank() == 0:
        dist.isend(x, dst=1)  # <- here
    else:
        dist.recv(x, src=0)


@mistake(
    row=12,
    ranks=2,
    error="RequestError",
    blames=(1,),
    says=["irecv", "never waited for"],
    plain=Outcome.HANGS,
)
def irecv_without_wait():
    x = torch.ones(4)
    if dist.get_rank() == 0:
        dist.send(x, dst=1)
    else:
        dist.irecv(x, src=0)  # <- here
    dist.barrier()


@mistake(
    row=12,
    ranks=2,
    error="RequestError",
    blames=(0, 1),
    says=["all_reduce", "never waited for"],
    plain=Outcome.PASSES,
)
def async_all_reduce_without_wait():
    gradient = torch.ones(4)
    dist.all_reduce(gradient, async_op=True)  # <- here


@mistake(
    row=12,
    ranks=2,
    error="RequestError",
    blames=(0, 1),
    says=["isend", "never waited for"],
    plain=Outcome.CLOSED,
)
def only_the_receives_are_waited_for():
    peer = 1 - dist.get_rank()
    mine, theirs = torch.ones(4), torch.zeros(4)
    dist.isend(mine, dst=peer)  # <- here
    dist.irecv(theirs, src=peer).wait()
    return theirs + mine


@mistake(
    row=12,
    ranks=2,
    error="RequestError",
    blames=(0,),
    says=["isend", "never waited for"],
    plain=Outcome.HANGS,
)
def only_the_last_request_of_a_loop_is_waited_for():
    chunks = torch.arange(12.0).chunk(3)
    if dist.get_rank() == 0:
        for chunk in chunks:
            request = dist.isend(chunk, dst=1)  # <- here
        request.wait()
    else:
        for chunk in chunks:
            dist.recv(chunk, src=0)


@mistake(
    row=12,
    ranks=2,
    error="RequestError",
    blames=(0, 1),
    says=["never waited for"],
    plain=Outcome.HANGS,
)
def requests_of_a_batch_are_dropped():
    peer = 1 - dist.get_rank()
    mine, theirs = torch.ones(4), torch.zeros(4)
    operations = [dist.P2POp(dist.isend, mine, peer), dist.P2POp(dist.irecv, theirs, peer)]
    dist.batch_isend_irecv(operations)  # <- here
    dist.barrier()


@mistake(
    row=12,
    ranks=2,
    error="RequestError",
    blames=(0, 1),
    says=["never waited for"],
    plain=Outcome.PASSES,
)
def wait_without_parentheses():
    gradient = torch.ones(4)
    work = dist.all_reduce(gradient, async_op=True)  # <- here
    work.wait  # noqa: B018


@mistake(
    row=12,
    ranks=3,
    error="RequestError",
    blames=(1, 2),
    says=["broadcast", "never waited for"],
    plain=Outcome.PASSES,
)
def only_rank_zero_waits():
    weights = torch.ones(4)
    work = dist.broadcast(weights, src=0, async_op=True)  # <- here
    if dist.get_rank() == 0:
        work.wait()


@mistake(
    row=13,
    ranks=2,
    error="RequestError",
    blames=(1,),
    says=r"unfilled until wait\(\)",
    plain=Outcome.PASSES,
    args=("sum",),
)
@mistake(
    row=13,
    ranks=2,
    error="RequestError",
    blames=(1,),
    says=r"unfilled until wait\(\)",
    plain=Outcome.PASSES,
    args=("item",),
)
@mistake(
    row=13,
    ranks=2,
    error="RequestError",
    blames=(1,),
    says=r"unfilled until wait\(\)",
    plain=Outcome.PASSES,
    args=("print",),
)
@mistake(
    row=13,
    ranks=2,
    error="RequestError",
    blames=(1,),
    says=r"unfilled until wait\(\)",
    plain=Outcome.PASSES,
    args=("clone",),
)
@mistake(
    row=13,
    ranks=2,
    error="RequestError",
    blames=(1,),
    says=r"unfilled until wait\(\)",
    plain=Outcome.PASSES,
    args=("numpy",),
)
@mistake(
    row=13,
    ranks=2,
    error="RequestError",
    blames=(1,),
    says=r"unfilled until wait\(\)",
    plain=Outcome.PASSES,
    args=("list",),
)
@mistake(
    row=13,
    ranks=2,
    error="RequestError",
    blames=(1,),
    says=r"unfilled until wait\(\)",
    plain=Outcome.PASSES,
    args=("view",),
)
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


@mistake(
    row=13,
    ranks=2,
    error="RequestError",
    blames=(1,),
    says=r"unfilled until wait\(\)",
    plain=Outcome.PASSES,
)
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
    row=13,
    ranks=2,
    error="RequestError",
    blames=(1,),
    says=r"unfilled until wait\(\)",
    plain=Outcome.PASSES,
)
def result_overwritten_by_what_arrives():
    """A write into a buffer that is being received is lost, or destroys the message."""
    x = torch.zeros(4)
    if dist.get_rank() == 0:
        dist.send(torch.ones(4), dst=1)
    else:
        request = dist.irecv(x, src=0)
        x += 1  # <- here
        request.wait()


@mistake(
    row=14,
    ranks=2,
    error="RequestError",
    blames=(0,),
    says=r"modified before wait\(\)",
    plain=Outcome.PASSES,
    args=("zero_",),
)
@mistake(
    row=14,
    ranks=2,
    error="RequestError",
    blames=(0,),
    says=r"modified before wait\(\)",
    plain=Outcome.PASSES,
    args=("index",),
)
@mistake(
    row=14,
    ranks=2,
    error="RequestError",
    blames=(0,),
    says=r"modified before wait\(\)",
    plain=Outcome.PASSES,
    args=("out",),
)
@mistake(
    row=14,
    ranks=2,
    error="RequestError",
    blames=(0,),
    says=r"modified before wait\(\)",
    plain=Outcome.PASSES,
    args=("view",),
)
def isend_buffer_overwritten_before_wait(how):
    x = torch.ones(4)
    if dist.get_rank() == 1:
        return dist.recv(x, src=0)
    request = dist.isend(x, dst=1)
    if how == "zero_":
        x.zero_()  # <- here
    elif how == "index":
        x[2] = 5  # <- here
    elif how == "out":
        torch.add(x, 1, out=x)  # <- here
    else:
        x.view(2, 2)[0].copy_(torch.zeros(2))  # <- here
    request.wait()


@mistake(
    row=14,
    ranks=2,
    error="RequestError",
    blames=(0,),
    says=r"modified before wait\(\)",
    plain=Outcome.PASSES,
)
def isend_buffer_overwritten_through_numpy():
    """No operator of torch runs here, so that the line is known only to lie before the wait."""
    x = torch.ones(4)
    if dist.get_rank() == 1:
        return dist.recv(x, src=0)
    array = x.numpy()
    request = dist.isend(x, dst=1)  # <- here
    array[:] = 7  # <- here
    request.wait()  # <- here


@mistake(
    row=14,
    ranks=2,
    error="RequestError",
    blames=(0, 1),
    says=r"modified before wait\(\)",
    plain=Outcome.PASSES,
)
def receives_into_the_tensor_it_is_sending():
    """The swap that everybody writes first."""
    peer = 1 - dist.get_rank()
    x = torch.full((4,), float(peer))
    send = dist.isend(x, dst=peer)
    dist.recv(x, src=peer)  # <- here
    send.wait()


@mistake(
    row=14,
    ranks=2,
    error="RequestError",
    blames=(0,),
    says=r"modified before wait\(\)",
    plain=Outcome.PASSES,
)
def one_buffer_for_every_message():
    """Every message of the loop is sent from the same tensor, filled anew while the last one is still on its way."""
    buffer = torch.empty(4)
    if dist.get_rank() == 0:
        requests = []
        for step in range(3):
            buffer.fill_(step)  # <- here
            requests.append(dist.isend(buffer, dst=1))
        for request in requests:
            request.wait()
    else:
        for _ in range(3):
            dist.recv(buffer, src=0)


@mistake(
    row=14,
    ranks=2,
    error="RequestError",
    blames=(0,),
    says=r"modified before wait\(\)",
    plain=Outcome.PASSES,
)
def optimizer_steps_while_the_weights_are_broadcast():
    layer = torch.nn.Linear(4, 1, bias=False)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    layer(torch.ones(2, 4)).sum().backward()
    work = dist.broadcast(layer.weight.data, src=0, async_op=True)
    if dist.get_rank() == 0:
        optimizer.step()  # <- here
    work.wait()


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
    error="RequestError",
    blames=(0, 1),
    says=["reduce_scatter", r"unfilled until wait\(\)"],
    plain=Outcome.PASSES,
)
def async_reduce_scatter_read_before_wait():
    gradient, shard = torch.ones(8), torch.empty(4)
    work = dist.reduce_scatter_single(shard, gradient, async_op=True)
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
    row=14,
    ranks=2,
    error="RequestError",
    blames=(0, 1),
    says=["all_reduce", r"until wait\(\)|before wait\(\)"],
    plain=Outcome.PASSES,
)
def zeroes_the_gradients_while_they_are_reduced():
    layer = torch.nn.Linear(4, 1, bias=False)
    layer(torch.ones(2, 4)).sum().backward()
    work = dist.all_reduce(layer.weight.grad, async_op=True)
    layer.zero_grad(set_to_none=False)  # <- here
    work.wait()


@mistake(
    ranks=2,
    error="RequestError",
    blames=(1,),
    says=r"until wait\(\)|same buffer|overlap",
    plain=Outcome.PASSES,
)
def two_receives_into_one_buffer():
    buffer = torch.zeros(4)
    if dist.get_rank() == 0:
        dist.send(torch.ones(4), dst=1)
        dist.send(torch.ones(4), dst=1)
    else:
        first = dist.irecv(buffer, src=0)
        second = dist.irecv(buffer, src=0)  # <- here
        first.wait()
        second.wait()


@mistake(
    ranks=2,
    error="RequestError",
    blames=(0, 1),
    says=r"until wait\(\)|same buffer|overlap",
    plain=Outcome.PASSES,
)
def reduces_the_same_tensor_twice_at_once():
    x = torch.ones(1000)
    first = dist.all_reduce(x, async_op=True)
    second = dist.all_reduce(x, async_op=True)  # <- here
    first.wait()
    second.wait()


@mistake(
    ranks=2,
    error="RequestError",
    blames={0: "here", 1: "there"},
    says="waited for twice|already waited",
    plain=Outcome.HANGS,
)
def waits_twice_for_one_message():
    """gloo waits for a second message that never comes."""
    x = torch.ones(4)
    if dist.get_rank() == 0:
        request = dist.isend(x, dst=1)
        request.wait()
        request.wait()  # <- here
    else:
        request = dist.irecv(x, src=0)
        request.wait()
        request.wait()  # <- there


@mistake(
    ranks=3,
    error="RequestError",
    blames=(1,),
    says="waited for twice|already waited",
    plain=Outcome.HANGS,
)
def waits_again_for_the_requests_of_the_last_step():
    """The list of requests is never emptied."""
    rank, received, requests = dist.get_rank(), torch.zeros(4), []
    for _ in range(2):
        if rank == 1:
            requests.append(dist.irecv(received, src=0))
            for request in requests:
                request.wait()  # <- here
        elif rank == 0:
            dist.send(torch.ones(4), dst=1)
