"""Point-to-point messages in every form that is right, also those that look wrong at first sight."""

import threading
import time

import numpy as np
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from tests.watch.cases import correct


def neighbours():
    """The ranks to the right and to the left on a ring."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    return (rank + 1) % world_size, (rank - 1) % world_size


@correct(2)
def send_then_receive():
    x = torch.arange(4.0)
    if dist.get_rank() == 0:
        dist.send(x + 1, dst=1)
        dist.recv(x, src=1)
    else:
        dist.recv(x, src=0)
        dist.send(x * 2, dst=0)
    assert x.tolist() == ([2, 4, 6, 8] if dist.get_rank() == 0 else [1, 2, 3, 4])


@correct(2, 4)
def token_around_a_ring():
    right, left = neighbours()
    token = torch.zeros(1)
    if dist.get_rank() == 0:
        dist.send(token + 1, dst=right)
        dist.recv(token, src=left)
    else:
        dist.recv(token, src=left)
        dist.send(token + 1, dst=right)
    assert token.item() == (dist.get_rank() or dist.get_world_size())


@correct(3, 4)
def even_ranks_send_first():
    """Also right with an odd number of ranks, where 0 and the last are even neighbours."""
    right, left = neighbours()
    mine, theirs = torch.tensor([float(dist.get_rank())]), torch.zeros(1)
    if dist.get_rank() % 2 == 0:
        dist.send(mine, dst=right)
        dist.recv(theirs, src=left)
    else:
        dist.recv(theirs, src=left)
        dist.send(mine, dst=right)
    assert theirs.item() == left


@correct(2, 3)
def crossing_isend_and_irecv():
    right, left = neighbours()
    mine, theirs = torch.full((1000,), float(dist.get_rank())), torch.zeros(1000)
    send, receive = dist.isend(mine, dst=right), dist.irecv(theirs, src=left)
    receive.wait()
    send.wait()
    assert (theirs == left).all()


@correct(2)
def irecv_before_a_blocking_send():
    peer = 1 - dist.get_rank()
    mine, theirs = torch.ones(4), torch.zeros(4)
    receive = dist.irecv(theirs, src=peer)
    dist.send(mine, dst=peer)
    receive.wait()
    assert theirs.sum() == 4


@correct(2)
def isend_before_a_blocking_receive():
    peer = 1 - dist.get_rank()
    mine, theirs = torch.ones(100_000), torch.zeros(100_000)
    send = dist.isend(mine, dst=peer)
    dist.recv(theirs, src=peer)
    send.wait()
    assert theirs.sum() == 100_000


@correct(2, 3, 4)
def batch_shifts_a_ring():
    right, left = neighbours()
    mine, theirs = torch.arange(8.0) + dist.get_rank(), torch.empty(8)
    operations = [dist.P2POp(dist.isend, mine, right), dist.P2POp(dist.irecv, theirs, left)]
    for request in dist.batch_isend_irecv(operations):
        request.wait()
    assert theirs[0] == left


@correct(4)
def batch_exchanges_with_everybody():
    rank, world_size = dist.get_rank(), dist.get_world_size()
    mine = [torch.full((5,), float(10 * rank + peer)) for peer in range(world_size)]
    theirs = [torch.empty(5) for _ in range(world_size)]
    operations = []
    for peer in range(world_size):
        if peer != rank:
            operations += [dist.P2POp(dist.irecv, theirs[peer], peer), dist.P2POp(dist.isend, mine[peer], peer)]
    for request in reversed(dist.batch_isend_irecv(operations)):
        request.wait()
    assert all(theirs[peer][0] == 10 * peer + rank for peer in range(world_size) if peer != rank)


@correct(2)
def several_messages_in_flight():
    """Messages of one pair and tag arrive in the order in which they were posted, however they are waited for."""
    chunks = torch.arange(12.0).view(4, 3)
    if dist.get_rank() == 0:
        requests = [dist.isend(chunk, dst=1) for chunk in chunks]
    else:
        chunks = torch.zeros(4, 3)
        requests = [dist.irecv(chunk, src=0) for chunk in chunks]
    for request in reversed(requests):
        request.wait()
    assert chunks.flatten().tolist() == list(range(12))


@correct(2)
def tags_out_of_order():
    a, b = torch.tensor([1.0]), torch.tensor([2.0])
    if dist.get_rank() == 0:
        requests = [dist.isend(a, dst=1, tag=1), dist.isend(b, dst=1, tag=2)]
    else:
        a.zero_(), b.zero_()
        requests = [dist.irecv(b, src=0, tag=2), dist.irecv(a, src=0, tag=1)]
    for request in requests:
        request.wait()
    assert (a.item(), b.item()) == (1, 2)


@correct(2)
def sizes_differ_between_tags():
    """With tags of their own, a large and a small message may overtake each other."""
    large, small = torch.ones(1000), torch.ones(3)
    peer = 1 - dist.get_rank()
    got_large, got_small = torch.zeros(1000), torch.zeros(3)
    requests = [dist.irecv(got_small, src=peer, tag=3), dist.irecv(got_large, src=peer, tag=1000)]
    requests += [dist.isend(large, dst=peer, tag=1000), dist.isend(small, dst=peer, tag=3)]
    for request in requests:
        request.wait()
    assert got_large.sum() == 1000 and got_small.sum() == 3


@correct(2)
def receive_from_anyone_with_one_possible_sender():
    x = torch.zeros(2)
    if dist.get_rank() == 0:
        assert dist.recv(x) == 1
        assert x.sum() == 2
    else:
        dist.send(torch.ones(2), dst=0)


@correct(3)
def receive_from_anyone_in_an_order_that_messages_force():
    """Rank 2 sends only after rank 1 told it that its own message has been received."""
    rank, x = dist.get_rank(), torch.zeros(1)
    if rank == 0:
        assert dist.recv(x) == 1
        dist.send(x, dst=1)
        assert dist.recv(x) == 2
    elif rank == 1:
        dist.send(x, dst=0)
        dist.recv(x, src=0)
        dist.send(x, dst=2)
    else:
        dist.recv(x, src=1)
        dist.send(x, dst=0)


@correct(3)
def receive_from_anyone_told_apart_by_tags():
    rank, x = dist.get_rank(), torch.zeros(1)
    if rank == 0:
        for tag in (2, 1):
            assert dist.recv(x, tag=tag) == tag
            assert x.item() == tag
    else:
        dist.send(torch.tensor([float(rank)]), dst=0, tag=rank)


@correct(3)
def sent_on_from_the_buffer_it_came_in():
    rank, x = dist.get_rank(), torch.zeros(4)
    if rank > 0:
        dist.irecv(x, src=rank - 1).wait()
    x += 1
    if rank < 2:
        dist.isend(x, dst=rank + 1).wait()
    assert (x == rank + 1).all()


@correct(2)
def dtypes_of_all_kinds():
    kinds = [torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int64, torch.bool]
    for kind in [*kinds, torch.complex64]:
        x = torch.tensor([1, 0, 1], dtype=kind)
        if dist.get_rank() == 0:
            dist.send(x, dst=1)
        else:
            received = torch.zeros(3, dtype=kind)
            dist.recv(received, src=0)
            assert torch.equal(received, x)


@correct(2)
def empty_and_scalar_tensors():
    nothing, number = torch.empty(0), torch.tensor(3.5)
    if dist.get_rank() == 0:
        dist.send(number, dst=1)
        dist.send(nothing, dst=1)
    else:
        received = torch.tensor(0.0)
        dist.recv(received, src=0)
        dist.recv(nothing, src=0)
        assert received.item() == 3.5


@correct(2)
def shapes_differ_but_not_the_number_of_elements():
    """A message is a row of elements; the receiver may want it as a matrix."""
    if dist.get_rank() == 0:
        dist.send(torch.arange(6.0), dst=1)
    else:
        matrix = torch.empty(2, 3)
        dist.recv(matrix, src=0)
        assert matrix[1].tolist() == [3, 4, 5]


@correct(2)
def rows_of_a_matrix_and_contiguous_slices():
    table = torch.zeros(4, 3)
    if dist.get_rank() == 0:
        dist.send(torch.ones(3), dst=1)
        dist.send(torch.ones(2, 3), dst=1)
    else:
        dist.recv(table[2], src=0)
        dist.recv(table[:2], src=0)
        assert table.sum(dim=1).tolist() == [3, 3, 3, 0]


@correct(2)
def infinities_in_a_mask():
    """An attention mask is full of infinities, and means them."""
    mask = torch.full((4, 4), float("-inf")).triu(1)
    if dist.get_rank() == 0:
        dist.send(mask, dst=1)
    else:
        received = torch.empty(4, 4)
        dist.recv(received, src=0)
        assert torch.equal(received, mask)


@correct(3)
def linear_pipeline_of_micro_batches():
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    outputs = []
    for micro_batch in range(5):
        x = torch.full((4,), float(micro_batch))
        if rank > 0:
            dist.recv(x, src=rank - 1)
        x = x * 2
        if rank < last:
            dist.send(x, dst=rank + 1)
        else:
            outputs.append(x[0].item())
    assert rank < last or outputs == [0, 8, 16, 24, 32]


@correct(2)
def polls_until_complete_then_waits():
    x = torch.zeros(4)
    if dist.get_rank() == 0:
        dist.send(torch.ones(4), dst=1)
    else:
        request = dist.irecv(x, src=0)
        request.is_completed()
        request.wait()
        assert x.sum() == 4


@correct(4)
def hypercube_exchange():
    """Recursive doubling by hand: partners at distance 1, then 2."""
    rank = dist.get_rank()
    x = torch.tensor([float(rank)])
    for distance in (1, 2):
        partner, theirs = rank ^ distance, torch.empty(1)
        operations = [dist.P2POp(dist.isend, x, partner), dist.P2POp(dist.irecv, theirs, partner)]
        for request in dist.batch_isend_irecv(operations):
            request.wait()
        x = x + theirs
    assert x.item() == 6


@correct(2)
def arguments_by_position():
    peer, x = 1 - dist.get_rank(), torch.zeros(2)
    if dist.get_rank() == 0:
        dist.send(torch.ones(2), peer, None, 5)
        assert dist.recv(x, peer, dist.group.WORLD) == 1
    else:
        assert dist.recv(x, peer, None, 5) == 0
        dist.send(x, peer)


@correct(3)
def irecv_from_anyone_with_one_possible_sender():
    rank, x = dist.get_rank(), torch.zeros(2)
    if rank == 0:
        dist.irecv(x).wait()
        assert x.sum() == 2
    elif rank == 2:
        dist.isend(torch.ones(2), dst=0).wait()


@correct(3)
def master_and_workers_in_rounds():
    """Each round ends before the next begins, and within a round the sources are named."""
    rank, task = dist.get_rank(), torch.zeros(1)
    for step in range(3):
        if rank == 0:
            for worker in (1, 2):
                dist.send(torch.tensor([float(10 * step + worker)]), dst=worker)
            for worker in (2, 1):
                dist.recv(task, src=worker)
                assert task.item() == 2 * (10 * step + worker)
        else:
            dist.recv(task, src=0)
            dist.send(2 * task, dst=0)


class Passing(TorchDispatchMode):
    """Sees every operator, and changes nothing."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


@correct(2, 3)
def the_group_s_own_calls_under_a_dispatch_mode():
    right, left = neighbours()
    group, x, y = dist.group.WORLD, torch.full((3,), float(dist.get_rank())), torch.empty(3)
    with Passing():
        for request in (group.recv([y], left, 0), group.send([x], right, 0)):
            request.wait()
    assert y.tolist() == [left] * 3


@correct(3)
def ranks_and_tags_that_are_computed():
    """numpy's integers and tensors are as good as Python's own."""
    n, rank = dist.get_world_size(), dist.get_rank()
    right, left, tag = np.roll(np.arange(n), -1)[rank], torch.arange(n).roll(1)[rank], np.int64(5)
    received = torch.empty(1)
    request = dist.isend(torch.full((1,), float(rank)), right, tag=tag)
    dist.recv(received, left, tag=tag)
    request.wait()
    assert received == left


@correct(2, 4)
def from_anybody_whose_name_is_used():
    """The answer names its sender: in whatever order they come, each lands where it belongs."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if rank > 0:
        dist.send(torch.full((2,), float(rank)), dst=0)
        return
    got = {}
    for _ in range(world_size - 1):
        x = torch.zeros(2)
        got[dist.recv(x)] = x
    assert all(got[sender][0].item() == sender for sender in range(1, world_size))


@correct(4)
def from_anybody_and_then_more_from_the_same():
    """A header from any rank, and the body from the same."""
    rank, header, body = dist.get_rank(), torch.zeros(1), torch.zeros(3)
    if rank > 0:
        dist.send(torch.ones(1), dst=0)
        dist.send(torch.full((3,), float(rank)), dst=0)
        return
    for _ in range(3):
        sender = dist.recv(header)
        dist.recv(body, src=sender)
        assert body[0] == sender


@correct(3)
def a_request_from_anybody_that_is_asked_for_its_source():
    rank, x, seen = dist.get_rank(), torch.zeros(1), set()
    if rank > 0:
        dist.send(torch.full((1,), float(rank)), dst=0, tag=5)
        return
    for _ in range(2):
        request = dist.irecv(x, tag=5)
        request.wait()
        seen.add((request.source_rank(), x.item()))
    assert seen == {(1, 1.0), (2, 2.0)}


@correct(3)
def a_named_receive_beside_one_from_anybody_with_another_tag():
    rank, x = dist.get_rank(), torch.zeros(1)
    if rank > 0:
        dist.send(torch.full((1,), float(rank)), dst=0, tag=rank)
        return
    dist.recv(x, tag=2)
    assert x.item() == 2
    dist.recv(x, src=1, tag=1)
    assert x.item() == 1


@correct(3)
def a_named_receive_whose_message_is_sent_after_the_one_from_anybody():
    """Rank 1 sends only when rank 0 has told it that the first has come."""
    rank, x = dist.get_rank(), torch.zeros(1)
    if rank == 0:
        dist.recv(x)
        dist.send(x, dst=1)
        dist.recv(x, src=1)
        assert x.item() == 1
    elif rank == 1:
        dist.recv(x, src=0)
        dist.send(torch.ones(1), dst=0)
    else:
        dist.send(torch.full((1,), 2.0), dst=0)


@correct(2)
def messages_that_are_polled():
    """As on NCCL, `is_completed` becomes true without a wait; a wait after it returns at once."""
    peer, x = 1 - dist.get_rank(), torch.zeros(300_000)
    receive, send = dist.irecv(x, src=peer), dist.isend(torch.ones(300_000), dst=peer)
    steps = 0
    while not (receive.is_completed() and send.is_completed()):
        steps += 1
    receive.wait()
    send.wait()
    assert x.sum() == 300_000


@correct(2)
def polled_a_while_and_then_left_alone():
    """Polls for longer than a loop that waits, computes, sends what the other waits for, and only then waits."""
    rank, x, end = dist.get_rank(), torch.zeros(4), time.monotonic() + 0.3
    request = dist.irecv(x, src=1 - rank)
    while rank == 0 and not request.is_completed() and time.monotonic() < end:
        pass
    dist.send(torch.ones(4), dst=1 - rank)
    request.wait()
    assert x.sum() == 4


def polled(request):
    """Wait for a request by asking for nothing else."""
    while not request.is_completed():
        time.sleep(0.001)


@correct(3, args=("wait",))
@correct(3, args=("poll",))
@correct(3, args=("thread",))
def heard_of_before_it_sends(how):
    """Rank 2 sends once it has heard from rank 0, which has had the first message by then: there is no race."""
    rank, x, y = dist.get_rank(), torch.zeros(1), torch.zeros(1)
    if rank == 0:
        dist.recv(x)
        dist.send(x, dst=2)
        dist.recv(x)
    elif rank == 1:
        dist.send(x, dst=0)
        dist.send(x, dst=2, tag=9)
    else:
        requests = [dist.irecv(x, src=0), dist.irecv(y, src=1, tag=9)]
        if how == "thread":
            waiter = threading.Thread(target=requests.pop(0).wait)
            waiter.start()
            waiter.join()
        for request in requests:
            polled(request) if how == "poll" else request.wait()
        dist.send(x, dst=0)


@correct(3, args=("poll",))
@correct(3, args=("future",))
@correct(3, args=("beside another",))
def a_collective_between_two_messages(how):
    rank, x = dist.get_rank(), torch.zeros(1)
    other = dist.new_group()
    if rank == 0:
        dist.recv(x)
    if rank == 1:
        dist.send(x, dst=0)
    meeting = dist.all_reduce(torch.ones(1), async_op=True)
    if how == "beside another":
        beside = dist.barrier(other, async_op=True)
        meeting.wait(), beside.wait()
    elif how == "poll":
        polled(meeting)
    else:
        meeting.get_future().wait()
    if rank == 0:
        dist.recv(x)
    if rank == 2:
        dist.send(x, dst=0)
