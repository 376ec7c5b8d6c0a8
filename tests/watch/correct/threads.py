"""Collectives from other threads than the main one, each time in an order that cannot vary."""

import asyncio
import queue
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed, wait
from multiprocessing.pool import ThreadPool
from queue import SimpleQueue
from threading import Lock, RLock

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


@correct(2)
def a_pool_told_by_futures_in_any_order():
    """`submit`, `map`, callbacks and `wait` are orders, too."""
    with ThreadPoolExecutor(max_workers=2) as pool:
        first = pool.submit(summed)
        wait([first])
        second = pool.submit(lambda: first.result() + summed())
        assert second.result() == 4
        assert list(pool.map(lambda k: k, range(3))) == [0, 1, 2]
    assert summed() == 2


@correct(2)
def an_event_a_condition_and_a_semaphore():
    """Three ways to say that it is one's turn."""
    event, condition, semaphore, turn = threading.Event(), threading.Condition(), threading.Semaphore(0), []

    def work():
        event.wait()
        assert summed() == 2
        with condition:
            turn.append(1)
            condition.notify()
        semaphore.acquire()
        assert summed() == 2

    thread = threading.Thread(target=work)
    thread.start()
    assert summed() == 2
    event.set()
    with condition:
        condition.wait_for(lambda: turn)
    assert summed() == 2
    semaphore.release()
    thread.join()
    assert summed() == 2


@correct(2)
def a_barrier_between_threads():
    meet, total = threading.Barrier(2), []

    def work():
        total.append(summed())
        meet.wait()

    thread = threading.Thread(target=work)
    thread.start()
    meet.wait()
    assert summed() + total[0] == 4
    thread.join()


@correct(2)
def a_flag_that_is_polled():
    """The oldest way of all: look, sleep, look again."""
    done = []

    def work():
        summed()
        done.append(True)

    threading.Thread(target=work).start()
    while not done:
        time.sleep(0.001)
    assert summed() == 2


@correct(2)
def a_thread_that_is_found_dead():
    thread = threading.Thread(target=summed)
    thread.start()
    while thread.is_alive():
        time.sleep(0.001)
    assert summed() == 2


@correct(2)
def simple_queues_there_and_back():
    jobs, results = queue.SimpleQueue(), queue.SimpleQueue()

    def work():
        while jobs.get():
            results.put(summed())

    thread = threading.Thread(target=work)
    thread.start()
    for _ in range(3):
        jobs.put(True)
        assert results.get() == 2
        assert summed() == 2
    jobs.put(False)
    thread.join()


@correct(2)
def an_event_loop_that_hands_work_to_threads():
    async def main():
        return [await asyncio.to_thread(summed) for _ in range(3)], summed()

    assert asyncio.run(main()) == ([2, 2, 2], 2)


@correct(2)
def a_pool_of_multiprocessing_threads():
    with ThreadPool(2) as pool:
        assert pool.apply(summed) == 2 and summed() == 2
        assert pool.map(lambda k: k, [1, 2]) == [1, 2]


@correct(2)
def threads_that_send_with_tags_of_their_own():
    peer, received = 1 - dist.get_rank(), [torch.zeros(1), torch.zeros(1)]

    def send(k):
        dist.send(torch.tensor([float(k)]), dst=peer, tag=k)

    threads = [threading.Thread(target=send, args=(k,)) for k in range(2)]
    for thread in threads:
        thread.start()
    for k in range(2):
        dist.recv(received[k], src=peer, tag=k)
    for thread in threads:
        thread.join()
    assert [x.item() for x in received] == [0, 1]


@correct(2)
def one_buffer_that_a_lock_guards():
    """Which one has it first is open, but each sends what it has written."""
    lock, buffer, rank = threading.Lock(), torch.zeros(2), dist.get_rank()

    def send(k):
        with lock:
            buffer.fill_(k)
            dist.send(buffer, dst=1, tag=k)

    if rank == 0:
        threads = [threading.Thread(target=send, args=(k,)) for k in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    else:
        received = [torch.zeros(2), torch.zeros(2)]
        requests = [dist.irecv(received[k], src=0, tag=k) for k in range(2)]
        for request in requests:
            request.wait()
        assert [x[0].item() for x in received] == [0, 1]


@correct(2)
def a_thread_that_prepares_the_next_batch_while_one_is_reduced():
    """Both compute at once, each with memory of its own."""
    batches, ready = [torch.ones(4), torch.ones(4)], queue.Queue()

    def prepare():
        for k in range(2):
            batches[k].mul_(k + 1)
            ready.put(k)

    thread = threading.Thread(target=prepare)
    thread.start()
    total = 0.0
    for _ in range(2):
        k = ready.get()
        work = dist.all_reduce(batches[k], async_op=True)
        work.wait()
        total += batches[k].sum().item()
    thread.join()
    assert total == 24


@correct(2)
def threads_with_a_group_and_a_buffer_each():
    groups, gradients = [dist.new_group() for _ in range(3)], [torch.full((100,), float(k)) for k in range(3)]

    def reduce(k):
        for _ in range(3):
            dist.all_reduce(gradients[k], group=groups[k])
            gradients[k] /= 2

    threads = [threading.Thread(target=reduce, args=(k,)) for k in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [g[0].item() for g in gradients] == [0, 1, 2]


@correct(2, args=(wait,))
@correct(2, args=(as_completed,))
def futures_that_are_done_when_they_are_looked_at(look):
    """A thread that looks knows what the other has done, whatever name the function goes by."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        future = pool.submit(summed)
        time.sleep(0.1)
        list(look(fs=[future]))
        assert summed() == 2


@correct(2)
def a_simple_queue_that_is_asked_without_waiting():
    done = queue.SimpleQueue()
    thread = threading.Thread(target=lambda: done.put_nowait(summed()))
    thread.start()
    time.sleep(0.1)
    assert done.get_nowait() == 2 and summed() == 2
    thread.join()


@correct(2)
def a_lock_that_another_thread_releases():
    """It stands for a word, as a semaphore would."""
    done = threading.Lock()
    done.acquire()

    def work():
        summed()
        done.release()

    thread = threading.Thread(target=work)
    thread.start()
    done.acquire()
    assert summed() == 2
    thread.join()


@correct(2)
def a_command_that_a_thread_waits_for():
    """Nothing but the end of the command holds the thread up: then it sends."""
    peer, x = 1 - dist.get_rank(), torch.zeros(1)

    def work():
        subprocess.run(["sleep", "0.3"], capture_output=True, check=True)
        dist.send(torch.ones(1), dst=peer)

    thread = threading.Thread(target=work)
    thread.start()
    dist.recv(x, src=peer)
    thread.join()
    assert x == 1


@correct(2, args=("queue",))
@correct(2, args=("lock",))
@correct(2, args=("reentrant lock",))
def what_was_imported_by_name(how):
    """What orders threads is the same by whatever name: here each was taken from its module before the watch began."""
    if dist.get_rank() == 0:
        return dist.send(torch.ones(2), dst=1)
    x, begun, done = torch.zeros(2), threading.Event(), SimpleQueue()
    lock = RLock() if how == "reentrant lock" else Lock()

    def receive():
        with lock:
            begun.set()
            dist.recv(x, src=0)
        done.put(True)

    thread = threading.Thread(target=receive)
    thread.start()
    begun.wait()
    if how == "queue":
        done.get()
    else:
        lock.acquire()
    assert x.sum() == 2
    thread.join()
