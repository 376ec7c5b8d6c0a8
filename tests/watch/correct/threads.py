"""Collectives from other threads than the main one, each time in an order that cannot vary."""

import queue
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist

from tests.watch.cases import correct


def summed(group=None):
    """The number of ranks, found out the hard way."""
    x = torch.ones(1)
    dist.all_reduce(x, group=group)
    return x.item()


@correct(2)
def a_thread_with_a_group_of_its_own():
    """Metrics travel in one group from one thread, gradients in another from the main thread."""
    metrics, seen = dist.new_group(), []
    thread = threading.Thread(target=lambda: seen.extend(summed(metrics) for _ in range(10)))
    thread.start()
    assert all(summed() == 2 for _ in range(10))
    thread.join()
    assert seen == [2] * 10


@correct(2)
def main_waits_for_its_thread():
    """One thread after the other is one order."""
    seen = []
    for _ in range(3):
        thread = threading.Thread(target=lambda: seen.append(summed()))
        thread.start()
        thread.join()
        seen.append(summed())
    assert seen == [2] * 6


@correct(2)
def pool_of_one_worker():
    with ThreadPoolExecutor(max_workers=1) as pool:
        futures = [pool.submit(summed) for _ in range(5)]
        assert [future.result() for future in futures] == [2] * 5


@correct(2)
def pool_with_a_group_for_each_task():
    groups = [dist.new_group() for _ in range(3)]
    with ThreadPoolExecutor(max_workers=3) as pool:
        assert list(pool.map(summed, groups)) == [2] * 3


@correct(2)
def request_waited_for_in_another_thread():
    peer = 1 - dist.get_rank()
    theirs = torch.zeros(4)
    requests = [dist.isend(torch.ones(4), dst=peer), dist.irecv(theirs, src=peer)]
    waiter = threading.Thread(target=lambda: [request.wait() for request in requests])
    waiter.start()
    waiter.join()
    assert theirs.sum() == 4


@correct(2)
def a_thread_that_never_speaks():
    """A data loader beside the training loop."""
    ready, batches = threading.Event(), []

    def load():
        batches.extend(torch.ones(4) for _ in range(3))
        ready.set()

    loader = threading.Thread(target=load)
    loader.start()
    ready.wait()
    for batch in batches:
        dist.all_reduce(batch)
    loader.join()
    assert sum(batch.sum() for batch in batches) == 24


@correct(2)
def receiver_thread_and_sending_main():
    """Both directions at once: a thread receives while the main thread sends, as with irecv."""
    peer, x = 1 - dist.get_rank(), torch.zeros(4)
    group = dist.new_group()
    receiver = threading.Thread(target=lambda: dist.recv(x, src=peer, group=group))
    receiver.start()
    dist.send(torch.ones(4), dst=peer, group=group)
    receiver.join()
    assert x.sum() == 4


@correct(2)
def pool_of_two_workers_one_task_at_a_time():
    """Two threads, but the second begins after the first is done."""
    with ThreadPoolExecutor(max_workers=2) as pool:
        for _ in range(4):
            assert pool.submit(summed).result() == 2


@correct(2)
def a_thread_that_communicates_what_the_main_one_computes():
    """All calls come from one thread, in the order of its queue."""
    gradients, works = [torch.full((100,), float(i)) for i in range(4)], queue.Queue()

    def communicate():
        while (gradient := works.get()) is not None:
            dist.all_reduce(gradient)

    thread = threading.Thread(target=communicate)
    thread.start()
    for gradient in gradients:
        works.put(gradient)
    works.put(None)
    thread.join()
    dist.barrier()
    assert [g[0].item() for g in gradients] == [0, 2, 4, 6]


@correct(2)
def posted_in_a_thread_and_waited_for_in_main():
    x, posted = torch.ones(4), queue.Queue()
    threading.Thread(target=lambda: posted.put(dist.all_reduce(x, async_op=True))).start()
    posted.get().wait()
    assert x.sum() == 8


@correct(2)
def a_daemon_that_outlives_the_function():
    """A progress bar's monitor, say: it never speaks to other ranks."""
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    assert summed() == 2
