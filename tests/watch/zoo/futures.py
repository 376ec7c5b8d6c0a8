"""Ranks that wait in torch's futures, by whatever name the wait goes: row 16 of the bug zoo."""

import threading
from functools import partial

import torch
import torch.distributed as dist

from tests.watch.cases import Outcome, mistake

both_wait = partial(
    mistake,
    row=16,
    ranks=2,
    error="DeadlockError",
    blames=(0, 1),
    says=["deadlock", r"rank 0 waits in recv\(src=1\)", r"rank 1 waits in recv\(src=0\)"],
    plain=Outcome.HANGS,
)
one_receives = partial(
    mistake,
    row=16,
    ranks=3,
    error="DeadlockError",
    blames=(0,),
    says=["deadlock", r"rank 0 waits in recv\(src=1\)", r"rank 1 waits in all_reduce\(sum\) for rank 0"],
    plain=Outcome.HANGS,
)


def wait(futures):
    for future in futures:
        future.wait()


def poll(futures):
    while not all(future.done() for future in futures):
        pass


def wait_for_what_follows(futures):
    torch.futures.collect_all(futures).then(lambda done: len(done.value())).wait()


@one_receives(args=(wait,))
@one_receives(args=(torch.futures.wait_all,))
@one_receives(args=(poll,))
@one_receives(args=(wait_for_what_follows,))
def one_rank_receives_while_the_others_wait_in_futures(wait):
    x = torch.ones(4)
    ends = dist.new_group([1, 2])
    futures = []
    if dist.get_rank() == 0:
        dist.recv(x, src=1)  # <- here
    else:
        futures = [dist.all_reduce(torch.ones(2), group=ends, async_op=True).get_future()]
    wait([*futures, dist.all_reduce(x, async_op=True).get_future()])


@both_wait(says=["deadlock", r"rank 0 waits in all_reduce\(sum\) on .* for rank 1", "in the same order"])
def futures_of_two_groups_in_two_orders():
    groups = [dist.new_group(), dist.new_group()]
    for group in groups if dist.get_rank() == 0 else groups[::-1]:
        dist.all_reduce(torch.ones(4), group=group, async_op=True).get_future().wait()  # <- here


@both_wait()
def a_thread_receives_what_the_other_thread_would_send_after_its_future():
    """The main thread waits for its own thread in a future of torch: both wait."""
    received, peer = torch.futures.Future(), 1 - dist.get_rank()

    def receive():
        x = torch.zeros(4)
        dist.recv(x, src=peer)  # <- here
        received.set_result(x)

    threading.Thread(target=receive).start()
    dist.send(received.wait() + 1, dst=peer)
