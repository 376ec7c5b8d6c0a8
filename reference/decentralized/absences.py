"""DiLoCo with islands that come and go: those that are there when a round ends take the outer step.

This is `plain.diloco` with: a vote at the end of each round, a sum over those that are there, and an island that
returns with the global parameters. An all-reduce over all islands hangs where one is cut off. Here no island waits for
one whose heart has not beaten for `patience` seconds (`reference.resilience.quorum`): that is the deadline.

    vote 1    which islands are at the end of this round, or come back
    sum       pseudo-gradients, over a group of those alone: the mean is over those that bring one. One that comes
              back brings none, and gets anchors and velocities of the first that has them
    vote 2    does each of them have the sum? Then all take the outer step; if not, the round is voted on again

An island that was cut off finds that rounds were decided without it. What it has learned meanwhile is lost, as a dead
one's would be; it waits for the end of the round that is under way, takes the global parameters there, and trains on
from the step that the others are at. Nothing diverges: each outer step is a mean over islands that began it at the same
anchor. (INTELLECT-1, Jaghouar et al. 2024, arXiv:2412.01152, has islands that come and go between outer steps; so has
torchft's DiLoCo.)

    rankwise train --ranks 4 --nodes 4 --islands 4 --outer diloco --elastic --cut-off 3:20:30
"""

import json
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from reference.choices import Wire
from reference.config import TrainConfig
from reference.errors import BadInput
from reference.report import Report, StepReport, silent
from reference.resilience.quorum import StoreQuorum
from reference.train import Training, summed

from .diloco import ANCHOR, VELOCITY, Diloco
from .islands import KINDS
from .meeting import fill, flat
from .rounds import ends_of_rounds

ATTEMPTS = 10  # at the end of one round: where sums fail so often, the network is cut


def require_can(config: TrainConfig) -> None:
    """See whether islands that meet so may come and go.

    Raises:
        BadInput: where they meet otherwise than by a sum at the end of a round, in full numbers.
    """
    if KINDS.get(config.outer) is not Diloco:
        raise BadInput(f"islands that come and go meet by --outer diloco or local-sgd, not by {config.outer}")
    if config.meets.synchronous_steps:
        raise BadInput("islands that come and go share no gradients: leave out --synchronous-steps")
    if config.meets.taking_part < 1:
        raise BadInput("islands that come and go take part when they are there: leave out --taking-part")
    if not config.meets.agrees_on_plain_mean:
        raise BadInput(
            "islands that come and go take the plain mean of those that are there: leave out --aggregation, "
            "--clip-change, --secure-sum and --lying-islands"
        )
    if config.meets.wire is not Wire.FULL:
        raise BadInput(
            f"the mean in {config.meets.wire} gives each island a chunk to add up, which is lost with an island that "
            "goes: leave out --wire"
        )


class IslandsThatComeAndGo:
    """A rank of an island that trains with others, and waits for none that is cut off.

    Args:
        training: on all ranks, with DiLoCo or local SGD between islands.
        quorum: of all ranks, with `together` ranks in an island.
        store: in which groups of islands find each other.
        report: told of every step of this island.

    Attributes:
        met: for each round that this island took part in, the step, and the islands whose changes counted.

    Raises:
        BadInput: for another way to meet.
    """

    def __init__(self, training: Training, quorum: StoreQuorum, store: dist.Store, report: Report = silent) -> None:
        updates = training.updates
        require_can(training.config)
        self.training, self.quorum, self.store = training, quorum, store
        self.meeting, self.inner = updates.meeting, updates.inner
        self.island, self.place = divmod(quorum.rank, quorum.together)
        self.step, self.round = 0, 0
        self.here: tuple[int, ...] = tuple(range(quorum.ranks // quorum.together))
        self.met: list[tuple[int, tuple[int, ...]]] = []
        self.troubles: list[Exception] = []
        self.report, self.began = report, time.perf_counter()

    def run(self) -> list[tuple[int, tuple[int, ...]]]:
        """Take part to the end. Returns `met`. An island that comes back when all others have ended ends, too."""
        ends = ends_of_rounds(self.training.config)
        while self.step < self.training.config.steps:
            if self.here:
                self.train_alone(ends)
            try:
                self.meet()
            except TimeoutError:  # none of the others is left
                break
        return self.met

    def train_alone(self, ends: frozenset[int]) -> None:
        """Inner steps to the end of the round."""
        while True:
            loss = summed(self.training.backward(self.step), self.training.loss_group)
            norm = self.inner.step(self.step)
            self.step += 1
            tokens = self.step * self.training.batches.tokens * self.training.config.islands
            self.report(StepReport(self.step, loss, norm, tokens, time.perf_counter() - self.began))
            if self.step in ends:
                return

    def meet(self) -> None:
        """The end of a round: take the outer step with those that are there, or find that it was taken."""
        for _ in range(ATTEMPTS):
            said = self.said()
            if said is None:
                return
            try:
                gradient = self.sum(said)
            except Exception as error:  # a member is gone
                self.troubles.append(error)
                gradient = None
            members = self.ranks_of(said)
            answers = self.quorum.gather(f"{self.topic}: sums", "yes" if gradient is not None else "no", members)
            self.round += 1
            self.here = tuple(self.by_island(answers))
            if all(answers.get(rank) == "yes" for rank in members):
                return self.take(gradient, said)
        raise TimeoutError(f"step {self.step}: {ATTEMPTS} sums failed, and islands {self.here} are there")

    def said(self) -> dict[int, int] | None:
        """The first vote: the step of each island that takes part, -1 of one that comes back. None where it is late."""
        if self.here:
            self.store.set("round", str(self.round))
        elif found := self.quorum.read("round"):
            self.round = max(self.round, int(found))
        members = self.ranks_of(self.here) if self.here else None
        answers = self.quorum.gather(self.topic, json.dumps(self.step if self.here else -1), members)
        said = {island: min(map(json.loads, words)) for island, words in self.by_island(answers).items()}
        if self.island not in said:
            self.here, self.round = (), self.round + 1
            return None
        return said

    @torch.no_grad()
    def sum(self, said: dict[int, int]) -> Tensor:
        """The mean change over islands that trained; one that comes back learns it, anchors and velocities."""
        members, comes_back = tuple(said), said[self.island] < 0
        store = dist.PrefixStore(f"{self.topic}, place {self.place}", self.store)
        timeout = timedelta(seconds=self.quorum.patience)
        group = dist.ProcessGroupGloo(store, members.index(self.island), len(members), timeout)
        try:
            change = self.meeting.changed(range(len(self.meeting.parts)))
            if comes_back:
                change.zero_()
            group.allreduce([change]).wait()
            if min(said.values()) < 0:
                donor = next(place for place, step in enumerate(said.values()) if step >= 0)
                state = flat(self.meeting.kept[ANCHOR] + self.meeting.kept[VELOCITY])
                options = dist.BroadcastOptions()
                options.rootRank = donor
                group.broadcast([state], options).wait()
                if comes_back:
                    fill(self.meeting.kept[ANCHOR] + self.meeting.kept[VELOCITY], state)
        finally:
            group.shutdown()
        return change / sum(step >= 0 for step in said.values())

    def take(self, gradient: Tensor, said: dict[int, int]) -> None:
        """The outer step: all have the sum."""
        self.meeting.step(range(len(self.meeting.parts)), gradient)
        self.inner.form.end_step()
        self.step = max(said.values())
        self.met.append((self.step, tuple(island for island, step in said.items() if step >= 0)))

    @property
    def topic(self) -> str:
        """What a vote is about, in the store."""
        return f"end of round {self.round}"

    def ranks_of(self, islands: dict[int, int] | tuple[int, ...]) -> list[int]:
        """All ranks of some islands."""
        each = self.quorum.together
        return [island * each + place for island in islands for place in range(each)]

    def by_island(self, answers: dict[int, str]) -> dict[int, list[str]]:
        """What the ranks of each island say, where all of them do."""
        found: dict[int, list[str]] = {}
        for rank in sorted(answers):
            found.setdefault(rank // self.quorum.together, []).append(answers[rank])
        return {island: words for island, words in found.items() if len(words) == self.quorum.together}
