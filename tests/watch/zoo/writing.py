"""Buffers written while they are in flight: row 14 of the bug zoo, and kin."""

import torch
import torch.distributed as dist

from tests.watch.cases import Outcome, mistake


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
    row=13,
    ranks=2,
    error="RequestError",
    blames=(1,),
    says=r"unfilled until wait\(\)",
    plain=Outcome.PASSES,
    args=(4,),
)
@mistake(
    row=13,
    ranks=2,
    error="RequestError",
    blames=(1,),
    says=r"unfilled until wait\(\)",
    plain=Outcome.PASSES,
    args=(2_000_000,),
)
def element_overwritten_by_what_arrives(elements):
    x = torch.zeros(elements)
    if dist.get_rank() == 0:
        dist.send(torch.ones(elements), dst=1)
    else:
        request = dist.irecv(x, src=0)
        x[2] = 5  # <- here
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
    args=("index", 2_000_000),
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
def isend_buffer_overwritten_before_wait(how, elements=4):
    x = torch.ones(elements)
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
    """The swap that most write first."""
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
    """Every message of the loop is sent from the same tensor, filled anew while the last one is still in flight."""
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
    row=14,
    ranks=2,
    error="RequestError",
    blames=(0, 1),
    says=["all_gather", r"modified before wait\(\)"],
    plain=Outcome.PASSES,
)
def gathered_shard_updated_before_wait():
    shard, whole = torch.ones(4), torch.zeros(8)
    work = dist.all_gather_single(whole, shard, async_op=True)
    shard.mul_(0.9)  # <- here
    work.wait()


@mistake(
    row=14,
    ranks=2,
    error="RequestError",
    blames=(0, 1),
    says=["reduce_scatter", r"modified before wait\(\)"],
    plain=Outcome.PASSES,
)
def gradients_zeroed_while_they_are_scattered():
    gradient, shard = torch.ones(8), torch.zeros(4)
    work = dist.reduce_scatter_single(shard, gradient, async_op=True)
    gradient.zero_()  # <- here
    work.wait()


@mistake(
    row=14,
    ranks=2,
    error="RequestError",
    blames=(0,),
    says=["broadcast", r"modified before wait\(\)"],
    plain=Outcome.PASSES,
)
def root_of_a_broadcast_goes_on_training():
    weights = torch.ones(4)
    work = dist.broadcast(weights, src=0, async_op=True)
    if dist.get_rank() == 0:
        weights -= 0.1  # <- here
    work.wait()


def two():
    """A tensor for each of two ranks."""
    return [torch.ones(4), torch.ones(4)]


COLLECTIVES = {
    "all_reduce": lambda x, y: dist.all_reduce(x, async_op=True),
    "reduce": lambda x, y: dist.reduce(x, dst=1, async_op=True),
    "broadcast": lambda x, y: dist.broadcast(x, src=0, async_op=True),
    "all_gather": lambda x, y: dist.all_gather([torch.zeros(4), torch.zeros(4)], x, async_op=True),
    "all_gather_single": lambda x, y: dist.all_gather_single(torch.zeros(8), x, async_op=True),
    "all_gather_single into it": lambda x, y: dist.all_gather_single(x, torch.ones(2), async_op=True),
    "reduce_scatter_single": lambda x, y: dist.reduce_scatter_single(torch.zeros(2), x, async_op=True),
    "reduce_scatter_single into it": lambda x, y: dist.reduce_scatter_single(x, y, async_op=True),
    "all_to_all_single": lambda x, y: dist.all_to_all_single(torch.zeros(4), x, async_op=True),
    "all_to_all_single into it": lambda x, y: dist.all_to_all_single(x, torch.ones(4), async_op=True),
    "gather": lambda x, y: dist.gather(x, two() if dist.get_rank() == 1 else None, dst=1, async_op=True),
    "scatter": lambda x, y: dist.scatter(x, two() if dist.get_rank() == 0 else None, src=0, async_op=True),
}  # fmt: skip


def numpy_writes(name):
    """numpy has the tensor's memory, and torch hears of nothing: what was there at wait() tells."""
    x, y = torch.ones(4), torch.ones(8)
    view = x.numpy()
    request = COLLECTIVES[name](x, y)
    view[0] = 9.0
    request.wait()  # <- here


for name in COLLECTIVES:
    numpy_writes = mistake(
        row=14, ranks=2, error="RequestError", blames=(0, 1), says=["modified before"], plain=Outcome.PASSES,
        args=(name,),
    )(numpy_writes)  # fmt: skip


@mistake(row=14, ranks=2, error="RequestError", blames=(1,), says=["modified before"], plain=Outcome.PASSES)
def numpy_writes_where_a_message_arrives():
    x = torch.ones(4)
    if dist.get_rank() == 0:
        dist.send(x, dst=1)
    else:
        view = x.numpy()
        request = dist.irecv(x, src=0)
        view[1] = 5.0
        request.wait()  # <- here


@mistake(row=14, ranks=2, error="RequestError", blames=(0, 1), says=["modified before"], plain=Outcome.PASSES)
def numpy_writes_before_the_last_poll():
    x = torch.ones(4)
    view = x.numpy()
    request = dist.all_reduce(x, async_op=True)
    view += 1
    while not request.is_completed():  # <- here
        pass


@mistake(row=14, ranks=2, error="RequestError", blames=(0, 1), says="modified before", plain=Outcome.PASSES)
def images_in_channels_last_written_before_wait():
    x = torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last)
    request = dist.all_reduce(x, async_op=True)
    x.zero_()  # <- here
    request.wait()
