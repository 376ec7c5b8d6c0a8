"""Requests that are not waited for, or twice: row 12 of the bug zoo, and kin."""

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


@mistake(row=12, ranks=2, error="RequestError", blames=(0, 1), says="never waited for", plain=Outcome.PASSES)
def coalesced_calls_never_waited_for():
    xs = [torch.ones(3), torch.ones(2)]
    with dist.distributed_c10d._coalescing_manager(async_ops=True):  # <- here
        for x in xs:
            dist.all_reduce(x)
