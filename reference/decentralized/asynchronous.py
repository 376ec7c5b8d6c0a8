"""Islands that wait for no other: what a round has changed is said when it ends, and the next one begins at once.

This is `late_rounds` with: any plan inside an island, a server that trains as well, a state that is saved, and a run
taken again in the order of another one. Asynchronous DiLoCo (Liu et al. 2024, arXiv:2401.09135); with rounds of one
step, SGD inside, an outer rate of 1 and no momentum it is asynchronous SGD (Dean et al. 2012).

    ranks of island 0   serve, beside their own training: rank p has the anchor of what stands at place p
    rank p of another   sends rank p of island 0 what its round has changed, and gets the anchor as it then is
    rank 0              hears changes in the order in which they come, and tells the others of island 0 whose is next

So a replica that several ranks hold stays equal on all of them, and what they share out is of one version.

| in a step                     | a rank sends             |
|-------------------------------|--------------------------|
| of island 0, with n islands   | (n - 1) · (Ψ + 1) / H    |
| of another                    | (Ψ + 1) / H              |

Messages are in the memory of the host, also where islands train on GPUs: links between islands are slower than the way
there, and NCCL has no message that one may wait for in a thread of one's own. When a checkpoint is saved, islands wait
for each other, and learn whether one was told to stop; at the end of a run they all take the last anchor.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from threading import Condition, Thread
from typing import Any

import torch
from torch import Tensor

from reference.choices import LateRate, Outer
from reference.collectives.communicator import Communicator
from reference.errors import BadInput
from reference.islands import Meets
from reference.models.files import home
from reference.zero import checkpoint_folder

from .diloco import ANCHOR, VELOCITY
from .late_rounds import DelayedNesterov, RoundServer
from .meeting import AfterStep, Meeting, fill, flat
from .parameter_server import LEAVES, Arrival, by_staleness, constant, message

SERVED, WAITING = "served anchor", "waiting changes"  # beside the velocity, on ranks that serve
WEIGHTS = {LateRate.CONSTANT: constant, LateRate.BY_STALENESS: by_staleness}


class Asynchronous(Meeting):
    """All parameters, at the end of each round, with those who serve alone."""

    def begin(self) -> None:
        self.serves, self.running = self.across.rank() == 0, False
        self.kept = {ANCHOR: self.copies()}
        if self.serves:
            self.kept |= {SERVED: self.copies(), VELOCITY: self.zeros(), WAITING: self.zeros()}
        self.read = 0  # the version of this island's anchor
        self.reads = [0] * self.across.size()  # those of all, where this rank serves
        self.arrivals: list[Arrival] = []

    @torch.no_grad()
    def after(self, at: AfterStep) -> bool:
        if not at.ends:
            return False
        if self.serves and not self.running:
            order = order_of(self.meets, self.across.size())
            self.service = Service(self.server(), self.across, self.everyone, order)
        self.running = True
        self.say(message(self.read, (flat(self.kept[ANCHOR]) - flat(self.masters)).cpu()))
        self.read, anchor = self.hear()
        if at.last:
            self.pause()
            anchor = flat(self.kept[SERVED if self.serves else ANCHOR])
            self.across.broadcast(anchor, 0)
        fill(self.kept[ANCHOR], anchor)
        fill(self.masters, anchor)
        return True

    def say(self, said: Tensor) -> None:
        """To this place's server."""
        if self.serves:
            self.service.inbox.put(0, said)
        else:
            self.across.start_send(said, 0)()

    def hear(self) -> tuple[int, Tensor]:
        """The version and the anchor [N] that it answers with."""
        if self.serves:
            said = self.service.answers.get()
            if isinstance(said, Exception):
                raise said
        else:
            said = message(0, flat(self.masters).cpu())
            self.across.start_receive(said, 0)()
        return int(said[0]), said[1:]

    def server(self) -> RoundServer:
        """A server that continues with what is kept here."""
        anchor, n, meets = flat(self.kept[SERVED]).cpu(), self.across.size(), self.meets
        rate, momentum = (1.0, 0.0) if meets.outer is Outer.ASYNC_SGD else (meets.outer_rate, meets.outer_momentum)
        outer = DelayedNesterov(anchor, n, rate, momentum)
        before = {"velocity": flat(self.kept[VELOCITY]), "waiting": flat(self.kept[WAITING])}
        before["came"] = len(self.arrivals)
        server = RoundServer(anchor, range(n), outer, meets.staleness_bound, WEIGHTS[meets.late_rate](1.0))
        server.load_state_dict({"weights": anchor, "arrivals": self.arrivals, "outer": before})
        server.waiting.clear()  # each island has the anchor that it continues from
        return server

    def pause(self) -> None:
        """As for all; what the server has is in `kept` afterwards."""
        if not self.running:
            return  # no round has ended since the last time
        self.running = False
        self.say(message(LEAVES, flat(self.masters).cpu()))
        if self.serves:
            self.service.join()
            server = self.service.server
            fill(self.kept[SERVED], server.weights)
            fill(self.kept[VELOCITY], server.outer.velocity)
            fill(self.kept[WAITING], server.outer.waiting)
            self.arrivals, self.reads = server.arrivals, self.service.reads

    def state_dict(self) -> dict[str, Any]:
        self.pause()
        super().state_dict()
        return {"arrivals": [[*each] for each in self.arrivals], "reads": self.reads} if self.serves else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.arrivals = [Arrival(*each) for each in state["arrivals"]]
        self.reads = [*state["reads"]]
        self.read = self.reads[self.across.rank()]


class Service:
    """What a rank of island 0 does beside its training, in threads: it hears, applies and answers.

    Args:
        server: of what stands at this rank's place.
        across: the ranks there, one of each island.
        everyone: all ranks, of which those of island 0 are the first.
        order: of islands, in which changes are applied; None is that in which they come.
    """

    def __init__(
        self, server: RoundServer, across: Communicator, everyone: Communicator, order: Sequence[int] | None
    ) -> None:
        self.server, self.across, self.everyone, self.order = server, across, everyone, order
        self.reads = [server.version] * across.size()
        self.inbox = Inbox()
        self.answers: SimpleQueue[Tensor | Exception] = SimpleQueue()  # for this rank's own training
        self.place, self.places = everyone.rank(), everyone.size() // across.size()
        for island in range(1, across.size()):
            Thread(target=self.listen, args=(island,), daemon=True).start()
        self.thread = Thread(target=self.serve, daemon=True)
        self.thread.start()

    def listen(self, island: int) -> None:
        """Hear an island until it leaves, or is gone."""
        left = False
        while not left:
            said = message(0, torch.empty_like(self.server.weights))
            try:
                self.across.start_receive(said, island)()
            except RuntimeError:  # the connection is closed
                said[0] = LEAVES
            left = said[0] == LEAVES
            self.inbox.put(island, said)

    def serve(self) -> None:
        """Until all have left. What goes wrong is raised where this rank's training waits for an answer."""
        try:
            while self.server.clocks:
                self.reply(*self.next())
        except Exception as error:
            self.answers.put(error)

    def next(self) -> tuple[int, Tensor]:
        """Whose turn it is, and what it says. The first place decides, and tells the others."""
        turn = torch.empty(1, dtype=torch.int64)
        if self.place > 0:
            return self.inbox.take(int(self.everyone.start_receive(turn, 0)()))
        due = self.due()
        if due in self.server.waiting:  # for an answer, which the bound holds back
            raise BadInput(
                "the run whose order this one takes let islands be further ahead: take its --staleness-bound, or none"
            )
        island, said = self.inbox.take(due)
        if due is None and self.remaining and said[0] != LEAVES:
            raise BadInput(
                "the run whose order this one takes did not save after the same steps: save as often as it did"
            )
        turn.fill_(island)
        for place in range(1, self.places):
            self.everyone.start_send(turn, place)()
        return island, said

    @property
    def remaining(self) -> Sequence[int]:
        """Islands whose turn it will be, in a given order."""
        return self.order[self.server.version :] if self.order else ()

    def due(self) -> int | None:
        """Whose turn it is in a given order; None for who comes first. Where islands pause, they leave in any order."""
        return self.remaining[0] if self.remaining and self.remaining[0] in self.server.clocks else None

    def reply(self, island: int, said: Tensor) -> None:
        """Do what an island has said, and answer those who may proceed."""
        leaves, server = said[0] == LEAVES, self.server
        replies = server.leave(island) if leaves else server.push(island, said[1:], int(said[0]))
        for to, answer in replies.items():
            self.reads[to] = server.version
            if to == 0:
                self.answers.put(answer)
            else:
                with suppress(RuntimeError):  # it is gone, and the thread that listens to it learns so
                    self.across.start_send(answer, to)()

    def join(self) -> None:
        """Wait until all have left.

        Raises:
            BadInput: if the order cannot be kept.
        """
        self.thread.join()
        if not self.answers.empty() and isinstance(error := self.answers.get(), Exception):
            raise error


class Inbox:
    """What islands have said, in the order in which it came."""

    def __init__(self) -> None:
        self.changed = Condition()
        self.said: list[tuple[int, Tensor]] = []

    def put(self, island: int, said: Tensor) -> None:
        with self.changed:
            self.said.append((island, said))
            self.changed.notify()

    def take(self, island: int | None) -> tuple[int, Tensor]:
        """The first that an island has said, or any of them. Waits for it."""

        def found() -> int | None:
            return next((i for i, (who, _) in enumerate(self.said) if island in (None, who)), None)

        with self.changed:
            self.changed.wait_for(lambda: found() is not None)
            return self.said.pop(found())


def order_of(meets: Meets, islands: int) -> list[int] | None:
    """The islands in the order in which changes are applied; None where that is the order in which they come.

    Raises:
        BadInput: if the folder has no such order, or that of another number of islands.
    """
    if meets.order_of is None:
        return None
    order = [each.worker for each in arrivals_in(home(meets.order_of))]
    if (there := len({*order})) != islands:
        raise BadInput(f"{meets.order_of} has the order of {there} islands, and this run has {islands}")
    return order


def arrivals_in(folder: Path) -> list[Arrival]:
    """The changes that a run has applied, in their order, from its last checkpoint.

    Raises:
        BadInput: if the folder has no checkpoint of such a run.
    """
    kept = checkpoint_folder.contents(checkpoint_folder.find(folder))["extra"].get("islands", {})
    if "arrivals" not in kept:
        raise BadInput(f"{folder} has no order: it is of a run without --outer {Outer.ASYNC_DILOCO}")
    return [Arrival(*each) for each in kept["arrivals"]]
