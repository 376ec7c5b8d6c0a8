"""Point-to-point calls that wait for each other: rows 1, 2, 3, 7, 16 of the bug zoo, and kin.

A send returns when its receiver receives: so it is on gloo, however small the message, and so it is on NCCL. (Only MPI
puts a small message aside and lets the sender continue.)
"""

import time

import torch
import torch.distributed as dist

from tests.watch.cases import Outcome, mistake


@mistake(
    row=1,
    ranks=2,
    error="DeadlockError",
    blames=(0, 1),
    says=["deadlock", r"rank 0 waits in recv\(src=1\)", r"rank 1 waits in recv\(src=0\)"],
    plain=Outcome.HANGS,
)
def every_rank_receives_first():
    peer = 1 - dist.get_rank()
    theirs = torch.zeros(4)
    dist.recv(theirs, src=peer)  # <- here
    dist.send(torch.ones(4), dst=peer)


@mistake(
    row=1,
    ranks=4,
    error="DeadlockError",
    blames=(0, 3),
    says=["deadlock", r"rank 0 waits in recv\(src=3\)", r"rank 3 waits in recv\(src=0\)"],
    plain=Outcome.HANGS,
)
def two_ranks_receive_first_and_a_third_hears_another_message_before_theirs():
    """What rank 2 has sent is for later. It is no mistake that rank 1 waits for rank 0 first."""
    rank, x = dist.get_rank(), torch.zeros(4)
    if rank in (0, 3):
        dist.recv(x, src=3 - rank)  # <- here
        dist.send(x, dst=3 - rank)
    for other in (0, 2, 3) if rank == 1 else ():
        dist.recv(x, tag=40 + other)
    if rank != 1:
        dist.send(x, dst=1, tag=40 + rank)


@mistake(
    row=1,
    ranks=2,
    error="DeadlockError",
    blames=(0, 1),
    says=["deadlock", r"rank 0 waits in .*recv\(src=1\)", r"rank 1 waits in .*recv\(src=0\)"],
    plain=Outcome.HANGS,
)
def every_rank_waits_for_its_irecv_before_it_sends():
    peer = 1 - dist.get_rank()
    theirs = torch.zeros(4)
    request = dist.irecv(theirs, src=peer)
    request.wait()  # <- here
    dist.isend(torch.ones(4), dst=peer).wait()


@mistake(
    row=1,
    ranks=4,
    error="DeadlockError",
    blames=(0, 1, 2, 3),
    says=["deadlock", r"rank \d waits in recv\(src=\d\)"],
    plain=Outcome.HANGS,
)
def pairs_receive_first():
    """Ranks 0 and 1 are one pair, 2 and 3 the other; either deadlock may be the one that is named."""
    partner = dist.get_rank() ^ 1
    received = torch.empty(8)
    dist.recv(received, src=partner)  # <- here
    dist.send(torch.full((8,), float(partner)), dst=partner)


@mistake(
    row=2,
    ranks=2,
    error="DeadlockError",
    blames=(0, 1),
    says=["deadlock", r"rank 0 waits in send\(dst=1\)", r"rank 1 waits in send\(dst=0\)", "nobody is receiving"],
    plain=Outcome.HANGS,
    args=(4,),
)
@mistake(
    row=2,
    ranks=2,
    error="DeadlockError",
    blames=(0, 1),
    says=["deadlock", r"rank 0 waits in send\(dst=1\)", r"rank 1 waits in send\(dst=0\)", "nobody is receiving"],
    plain=Outcome.HANGS,
    args=(4_000_000,),
)
def every_rank_sends_first(elements):
    peer = 1 - dist.get_rank()
    mine, theirs = torch.ones(elements), torch.zeros(elements)
    dist.send(mine, dst=peer)  # <- here
    dist.recv(theirs, src=peer)


@mistake(
    row=2,
    ranks=3,
    error="DeadlockError",
    blames=(0, 1, 2),
    says=["deadlock", "nobody is receiving"],
    plain=Outcome.HANGS,
)
def every_rank_waits_for_its_isend_before_it_receives():
    rank, world_size = dist.get_rank(), dist.get_world_size()
    theirs = torch.zeros(4)
    dist.isend(torch.ones(4), dst=(rank + 1) % world_size).wait()  # <- here
    dist.irecv(theirs, src=(rank - 1) % world_size).wait()


@mistake(
    row=3,
    ranks=3,
    error="DeadlockError",
    blames=(0, 1, 2),
    says=["deadlock", r"0 waits .*2", r"1 waits .*0", r"2 waits .*1"],
    plain=Outcome.HANGS,
)
@mistake(
    row=3,
    ranks=4,
    error="DeadlockError",
    blames=(0, 1, 2, 3),
    says=["deadlock", r"0 waits .*3", r"1 waits .*0", r"2 waits .*1", r"3 waits .*2"],
    plain=Outcome.HANGS,
)
def ring_of_receives():
    rank, world_size = dist.get_rank(), dist.get_world_size()
    token = torch.tensor([rank])
    dist.recv(token, src=(rank - 1) % world_size)  # <- here
    dist.send(token + 1, dst=(rank + 1) % world_size)


@mistake(
    row=3,
    ranks=4,
    error="DeadlockError",
    blames=(0, 1, 2, 3),
    says=["deadlock", r"0 waits .*1", r"1 waits .*2", r"2 waits .*3", r"3 waits .*0"],
    plain=Outcome.HANGS,
)
def ring_of_large_sends():
    rank, world_size = dist.get_rank(), dist.get_world_size()
    mine, theirs = torch.ones(4_000_000), torch.empty(4_000_000)
    dist.send(mine, dst=(rank + 1) % world_size)  # <- here
    dist.recv(theirs, src=(rank - 1) % world_size)


@mistake(
    row=3,
    ranks=3,
    error="DeadlockError",
    blames={0: "here", 1: "there", 2: "there"},
    says=["deadlock", r"0 waits", r"1 waits", r"2 waits"],
    plain=Outcome.HANGS,
)
def pipeline_where_a_stage_waits_for_a_gradient_before_it_sends_the_activation():
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    activation, gradient = torch.randn(4), torch.zeros(4)
    if rank == 0:
        dist.recv(gradient, src=1)  # <- here
        dist.send(activation, dst=1)
    else:
        dist.recv(activation, src=rank - 1)  # <- there
        if rank < last:
            dist.send(activation.relu(), dst=rank + 1)
        dist.send(gradient, dst=rank - 1)


@mistake(
    row=7,
    ranks=3,
    error="DeadlockError",
    blames=(0,),
    says=[r"send\(dst=2\)", "rank 2 finished without receiving"],
    plain=Outcome.CLOSED,
    args=(4_000_000,),
)
@mistake(
    row=7,
    ranks=3,
    error="DeadlockError",
    blames=(0,),
    says=[r"send\(dst=2\)", "rank 2 finished without receiving"],
    plain=Outcome.CLOSED,
    args=(4,),
)
def sends_to_the_wrong_rank(elements):
    rank = dist.get_rank()
    x = torch.ones(elements)
    if rank == 0:
        dist.send(x, dst=2)  # <- here
    elif rank == 1:
        dist.recv(x, src=0)


@mistake(
    row=7,
    ranks=3,
    error="DeadlockError",
    blames=(2,),
    says=[r"recv\(src=1\)", "rank 1 finished without sending"],
    plain=Outcome.CLOSED,
)
def receives_from_the_wrong_rank():
    rank = dist.get_rank()
    x = torch.ones(4)
    if rank == 0:
        dist.isend(x, dst=2).wait()
    elif rank == 2:
        dist.recv(x, src=1)  # <- here


@mistake(
    row=7,
    ranks=2,
    error="DeadlockError",
    blames=(1,),
    says=[r"recv\(src=0\)", "rank 0 finished without sending"],
    plain=Outcome.CLOSED,
)
def receiver_loops_once_more_than_the_sender():
    batches = 3
    if dist.get_rank() == 0:
        for batch in range(batches):
            dist.send(torch.full((4,), float(batch)), dst=1)
    else:
        received = torch.zeros(4)
        for _ in range(batches + 1):
            dist.recv(received, src=0)  # <- here


@mistake(
    row=7,
    ranks=2,
    error="DeadlockError",
    blames=(0,),
    says=[r"send\(dst=1\)", "rank 1 finished without receiving"],
    plain=Outcome.CLOSED,
)
def sender_loops_once_more_than_the_receiver():
    batches = 3
    if dist.get_rank() == 0:
        for batch in range(batches + 1):
            dist.send(torch.full((4,), float(batch)), dst=1)  # <- here
    else:
        received = torch.zeros(4)
        for _ in range(batches):
            dist.recv(received, src=0)


@mistake(
    row=16,
    ranks=2,
    error="DeadlockError",
    blames=(0, 1),
    says=["no matching irecv", "isend"],
    plain=Outcome.HANGS,
)
def batch_of_sends_that_nobody_receives():
    peer = 1 - dist.get_rank()
    mine = torch.ones(4)
    requests = dist.batch_isend_irecv([dist.P2POp(dist.isend, mine, peer)])
    for request in requests:
        request.wait()  # <- here


@mistake(
    row=16,
    ranks=2,
    error="DeadlockError",
    blames=(0, 1),
    says=["no matching isend", "irecv"],
    plain=Outcome.HANGS,
)
def batch_of_receives_that_nobody_sends():
    peer = 1 - dist.get_rank()
    theirs = torch.zeros(4)
    [request] = dist.batch_isend_irecv([dist.P2POp(dist.irecv, theirs, peer)])
    request.wait()  # <- here


@mistake(
    row=16,
    ranks=3,
    error="DeadlockError",
    blames=(1,),
    says=["no matching irecv", "rank 2"],
    plain=Outcome.HANGS,
)
def ring_shift_where_the_last_rank_forgot_to_receive():
    rank, world_size = dist.get_rank(), dist.get_world_size()
    mine, theirs = torch.ones(4_000_000), torch.zeros(4_000_000)
    operations = [dist.P2POp(dist.isend, mine, (rank + 1) % world_size)]
    if rank != world_size - 1:
        operations.append(dist.P2POp(dist.irecv, theirs, (rank - 1) % world_size))
    requests = dist.batch_isend_irecv(operations)
    for request in requests:
        request.wait()  # <- here
    dist.barrier()


@mistake(
    row=16,
    ranks=3,
    error="DeadlockError",
    blames={0: "here", 1: "there", 2: "elsewhere"},
    says=["deadlock", r"0 waits", r"1 waits", r"2 waits"],
    plain=Outcome.HANGS,
)
def batch_waits_for_a_skip_connection_and_for_what_comes_before_it():
    """Rank 2 wants both its inputs before it answers rank 1, and rank 1 sends its own only after that answer."""
    rank = dist.get_rank()
    x, skip, answer = torch.ones(1000), torch.zeros(1000), torch.zeros(1000)
    if rank == 0:
        for request in [dist.isend(x, dst=1), dist.isend(x, dst=2)]:
            request.wait()
        dist.recv(answer, src=2)  # <- here
    elif rank == 1:
        dist.recv(x, src=0)
        dist.recv(answer, src=2)  # <- there
        dist.send(x, dst=2)
    else:
        operations = [dist.P2POp(dist.irecv, skip, 0), dist.P2POp(dist.irecv, x, 1)]
        for request in dist.batch_isend_irecv(operations):
            request.wait()  # <- elsewhere
        for peer in (1, 0):
            dist.send(x + skip, dst=peer)


@mistake(
    ranks=2,
    error="DeadlockError",
    blames={0: "here", 1: "there"},
    says=[r"send\(dst=1\)", "all_reduce", r"{here}\b", r"{there}\b"],
    plain=Outcome.HANGS,
)
def one_rank_sends_while_the_other_reduces():
    x = torch.ones(4_000_000)
    if dist.get_rank() == 0:
        dist.send(x, dst=1)  # <- here
    dist.all_reduce(x)  # <- there
    if dist.get_rank() == 1:
        dist.recv(x, src=0)


@mistake(
    ranks=4,
    error="DeadlockError",
    blames=(1, 2),
    says=["deadlock", r"1 waits .*2", r"2 waits .*1"],
    plain=Outcome.HANGS,
)
def two_ranks_deadlock_while_the_others_finish():
    rank = dist.get_rank()
    if rank in (1, 2):
        dist.recv(torch.zeros(2), src=3 - rank)  # <- here
        dist.send(torch.ones(2), dst=3 - rank)


@mistake(
    ranks=3,
    error="DeadlockError",
    blames=(0, 1),
    says=["deadlock", r"0 waits .*1", r"1 waits .*0"],
    plain=Outcome.HANGS,
)
def two_ranks_deadlock_while_the_third_computes():
    """There is no need to wait for rank 2 to know that ranks 0 and 1 are lost."""
    rank = dist.get_rank()
    if rank < 2:
        dist.recv(torch.zeros(2), src=1 - rank)  # <- here
    else:
        time.sleep(120)
    dist.barrier()


@mistake(
    row=3,
    ranks=3,
    error="DeadlockError",
    blames=(0, 1, 2),
    says=["deadlock", r"0 waits", r"1 waits", r"2 waits"],
    plain=Outcome.HANGS,
)
def sends_to_the_right_and_receives_from_the_right():
    """A sign error: what goes to the right arrives from the left."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    theirs = torch.zeros(4)
    send = dist.isend(torch.ones(4), dst=(rank + 1) % world_size)
    dist.recv(theirs, src=(rank + 1) % world_size)  # <- here
    send.wait()


@mistake(
    row=1,
    ranks=2,
    error="DeadlockError",
    blames=(0, 1),
    says=["deadlock", r"rank 0 waits in recv\(src=1\)", r"rank 1 waits in recv\(src=0\)"],
    plain=Outcome.HANGS,
)
def deadlock_in_a_group_of_plain_gloo():
    """A group with a backend of its own is watched like any other."""
    pair, peer = dist.new_group([0, 1], backend="gloo"), 1 - dist.get_rank()
    x = torch.zeros(4)
    dist.recv(x, src=peer, group=pair)  # <- here
    dist.send(x, dst=peer, group=pair)
