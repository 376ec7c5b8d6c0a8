"""Futures of torch: of calls, and of threads that set their results."""

import threading
import time

import torch
import torch.distributed as dist

from tests.watch.cases import correct
from tests.watch.correct.threads import summed


def waited(future):
    return future.wait()


def looked_at(future):
    while not future.done():
        time.sleep(0.01)
    return future.value()


def waited_with_another(future):
    also = torch.futures.Future()
    also.set_result(1)
    return torch.futures.wait_all([also, future.then(lambda done: done.value())])[1]


@correct(2, args=(waited,))
@correct(2, args=(looked_at,))
@correct(2, args=(waited_with_another,))
def a_future_of_torch_orders_two_threads(wait):
    """What its result is set after comes before what its waiter does."""
    total = torch.futures.Future()
    thread = threading.Thread(target=lambda: total.set_result(summed()))
    thread.start()
    assert wait(total) == 2 and summed() == 2
    thread.join()


@correct(2)
def a_thread_that_waits_in_a_future_of_a_call_goes_on():
    """The main thread sends what the other rank's thread receives, once its all-reduce is done."""
    peer, x = 1 - dist.get_rank(), torch.zeros(1)
    gradients = dist.new_group()
    thread = threading.Thread(target=dist.recv, args=(x, peer))
    thread.start()
    if peer:
        time.sleep(0.3)
    future = dist.all_reduce(torch.ones(4), group=gradients, async_op=True).get_future()
    future.then(lambda done: time.sleep(0.2)).wait()
    dist.send(torch.ones(1), dst=peer)
    thread.join()
    assert x == 1
