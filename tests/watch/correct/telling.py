"""A thread tells another one to continue: who has been told does not wait, though it has yet to wake up."""

import asyncio
import queue
import threading
import time
from concurrent.futures import Future
from queue import SimpleQueue

import torch
import torch.distributed as dist

from tests.watch.cases import correct


def locked():
    lock = threading.Lock()
    lock.acquire()
    return lock


def until_set(event):
    while not event.is_set():
        time.sleep(0.001)


class AFlag:
    """A flag of the program's own, looked at beside an event that is never set."""

    def __init__(self):
        self.event, self.raised = threading.Event(), []

    def tell(self):
        self.raised.append(True)

    def wait(self):
        event, raised = self.event, self.raised
        while not event.is_set() and not raised:
            time.sleep(0.001)


class ALoop:
    """An event loop that waits for an event of its own."""

    def __init__(self):
        self.loop, self.event = asyncio.new_event_loop(), asyncio.Event()

    def tell(self):
        self.loop.call_soon_threadsafe(self.event.set)

    def wait(self):
        self.loop.run_until_complete(self.event.wait())
        self.loop.close()


class AThread:
    """A thread that ends, and is joined."""

    def __init__(self):
        self.event = threading.Event()
        self.thread = threading.Thread(target=self.event.wait)
        self.thread.start()

    def tell(self):
        self.event.set()
        time.sleep(0.001)

    def wait(self):
        self.thread.join()


@correct(2, args=(threading.Event, lambda event: event.set(), lambda event: event.wait()))
@correct(2, args=(threading.Event, lambda event: event.set(), until_set))
@correct(2, args=(queue.Queue, lambda box: box.put(None), lambda box: box.get()))
@correct(2, args=(SimpleQueue, lambda box: box.put(None), lambda box: box.get()))
@correct(2, args=(locked, lambda lock: lock.release(), lambda lock: lock.acquire()))
@correct(2, args=(lambda: threading.Barrier(2), lambda barrier: barrier.wait(), lambda barrier: barrier.wait()))
@correct(2, args=(lambda: threading.Semaphore(0), lambda semaphore: semaphore.release(), lambda s: s.acquire()))
@correct(2, args=(Future, lambda future: future.set_result(None), lambda future: future.result()))
@correct(2, args=(torch.futures.Future, lambda future: future.set_result(None), lambda future: future.wait()))
@correct(2, args=(AFlag, AFlag.tell, AFlag.wait))
@correct(2, args=(ALoop, ALoop.tell, ALoop.wait))
@correct(2, args=(AThread, AThread.tell, AThread.wait))
def a_thread_tells_another_one_to_continue_and_receives(make, tell, wait):
    """It waits for the answer to what the other one, once awake, will send."""
    question, answer = torch.ones(1), torch.zeros(1)
    for _ in range(3 if dist.get_rank() == 1 else 0):
        dist.recv(question, src=0, tag=1)
        dist.send(question + 1, dst=0, tag=2)
    for _ in range(3 if dist.get_rank() == 0 else 0):
        word = make()

        def work(word=word):
            time.sleep(0.01)
            tell(word)
            dist.recv(answer, src=1, tag=2)

        thread = threading.Thread(target=work)
        thread.start()
        wait(word)
        time.sleep(0.05)
        dist.send(question, dst=1, tag=1)
        thread.join()
        assert answer == 2
