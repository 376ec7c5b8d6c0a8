"""Recovery for each step: replicas vote whether it counts, and one that returns heals while the others continue.

A replica is some ranks that hold a whole model. Replicas read different windows and sum their gradients, and a job that
is one group of ranks dies with each of them. Here a step is a round of two votes, and a replica that fails takes no
other along (after torchft's quorum and `should_commit`, which is a vote within one replica; vote 2 is over all of them:
github.com/meta-pytorch/torchft):

    compute   each replica its own gradient. One that raises has none, and says so
    vote 1    who is here, and who has a gradient. Those that are here form a group
    sum       gradients, over the group. A replica without one brings zeros, and learns the sum
    vote 2    does each of them have the sum? Then the step counts, and all update; if not, no rank does
              and the round begins again, with the gradients that are there and the replicas that are left

Nothing is computed twice by those that live, and after each step all replicas are equal, bit by bit. A step's gradient
is the mean over the replicas that have one: as if the others' windows had not been there.

One that returns has nothing, and needs the state of a live one while that changes from step to step. It takes part in
each sum with zeros, so it learns each step's gradient; and in each round a replica that has all sends it one piece
of the state, as it is before the step. From then on it updates this piece itself: an elementwise optimizer needs
nothing else but the norm of all gradients, which it has. After the last piece it is a replica like any other.

    piece        step 10       step 11       step 12       step 13
    0            sent, update  update        update        update
    1                          sent, update  update        update
    2                                        sent, update  update, and a gradient of its own

| in a step                    | sent by a rank, m replicas here, Ψ bytes of gradients              |
|------------------------------|-------------------------------------------------------------------|
| votes                        | through the store, no message between ranks                       |
| sum                          | 2 (m-1)/m · Ψ, and the loss                                        |
| a replica heals in p pieces  | its state / p from one replica: with Adam in fp32 about 3Ψ/p       |

A failure costs the time until it is noticed: a dead rank's heartbeat, or the timeout of a group whose member is gone.
Checkpoints are written by the first replica that brought a gradient, for all are equal; where it fails, by the next
one. A replica of several ranks of which one hangs is left behind, and waits in a collective of its own: if that rank
continues, the replica heals; if not, the cluster ends both once the others are done. Not here: optimizers that are not
elementwise.

    rankwise train --ranks 4 --voting-replicas 2
"""

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from reference.choices import LinearNumbers, Offload, Optimizer, Outer
from reference.config import TrainConfig
from reference.errors import BadInput, require_sizes
from reference.fields import listed
from reference.models.data import ReplicaBatches
from reference.plan import Plan
from reference.train import Training, summed

from .preemption import StopNotice
from .quorum import StoreQuorum
from .snapshot import copied, install
from .together import SkipTogether

ELEMENTWISE = (Optimizer.ADAMW, Optimizer.SGD)
ROUNDS = 10  # of one step: where hearts beat and sums fail so often, the network is cut


class NoReplica(RuntimeError):
    """No replica has the state, or none could compute the step. All that are left raise it together."""


@dataclass(frozen=True)
class Committed:
    """A step that counts.

    Attributes:
        step: counted from 0.
        loss: nats per token, the mean over those that brought a gradient.
        brought: the replicas that did.
        here: the replicas that took the step.
        norm: of the gradient, before clipping.
        stop: whether any rank was told to stop: then this is the last step of all.
    """

    step: int
    loss: float
    brought: tuple[int, ...]
    here: tuple[int, ...]
    norm: float
    stop: bool


@dataclass(frozen=True)
class ReplicaSays:
    """What a replica says of itself in the first vote."""

    step: int  # that it is at; -1 for one that has just come
    gradient: bool
    pieces: int  # of the state, that it has
    stop: bool  # it was told to

    def text(self) -> str:
        """For the store."""
        return json.dumps([self.step, self.gradient, self.pieces, self.stop])

    @classmethod
    def of(cls, answers: Sequence[str]) -> "ReplicaSays":
        """Of the ranks of one replica together."""
        steps, gradients, pieces, stops = zip(*map(json.loads, answers), strict=True)
        return cls(max(steps), all(gradients), min(pieces), any(stops))


class PerStep:
    """A replica that trains with others, and does not depend on any of them.

    Args:
        training: of this replica, on a group of its own ranks. Its `batches` become its part of each batch.
        quorum: of all ranks. `together` is the number of ranks of a replica, all ranks of which are neighbours.
        store: in which groups of replicas find each other.
        pieces: in so many rounds a replica heals.
        newcomer: whether this one has to heal first; else it starts with the others, from equal states.
        first: the step that it starts with, from 0.
        notice: whether this rank was told to stop; then all stop together, after a step.

    Attributes:
        committed: the steps that this replica took.
        troubles: what this replica raised, and went on.

    Raises:
        BadInput: as `require_replicas`.
    """

    def __init__(
        self,
        training: Training,
        quorum: StoreQuorum,
        store: dist.Store,
        pieces: int = 4,
        newcomer: bool = False,
        first: int = 0,
        notice: StopNotice | None = None,
    ) -> None:
        require_sizes(pieces=pieces)
        width, replicas = quorum.together, quorum.ranks // quorum.together
        require_replicas(training.config, training.plan, width, replicas)
        self.notice = notice or StopNotice()
        self.training, self.quorum, self.store, self.width = training, quorum, store, width
        self.replica, self.place = divmod(quorum.rank, width)
        training.batches = ReplicaBatches(training.batches, self.replica, replicas)
        training.updates = SkipTogether(training)
        self.parts = training.form.parts
        self.pieces = min(pieces, len(self.parts))
        self.step, self.held = (-1, 0) if newcomer else (first, self.pieces)
        self.round, self.here = 0, () if newcomer else tuple(range(replicas))
        self.committed: list[Committed] = []
        self.troubles: list[Exception] = []
        self._group: dist.ProcessGroupGloo | None = None
        self._members: tuple[int, ...] = ()

    def run(self, steps: int, after_step: Callable[[Committed], None] = lambda committed: None) -> list[Committed]:
        """Take part until so many steps are taken, or all stop. Returns those that this replica took part in.

        Args:
            steps: of all.
            after_step: called after each step that this replica took part in.

        Raises:
            NoReplica: where no replica has the state, or none could compute a step.
        """
        while self.step < steps:
            if self._take_step():
                after_step(self.committed[-1])
                if self.committed[-1].stop:
                    break
        return self.committed

    def compute(self) -> Tensor | None:
        """This replica's gradient and loss, flat; None where it has none, for whatever reason."""
        if self.held < self.pieces:
            return None
        try:
            loss = summed(self.training.backward(self.step), self.training.loss_group)
            gradients = [part.master.grad.flatten() for part in self.parts]
            return torch.cat([*gradients, gradients[0].new_tensor([loss])])
        except Exception as error:  # whatever it is, it is this replica's alone
            self.troubles.append(error)
            return None

    def sum(self, mine: Tensor | None, said: dict[int, ReplicaSays]) -> Tensor:
        """The mean over all replicas that brought a gradient; one that has none learns it, and a piece of the state."""
        group = self._group_of(tuple(said))
        self._send_pieces(group, said)
        whole = torch.zeros(self._numel, dtype=self.parts[0].master.dtype) if mine is None else mine.clone()
        group.allreduce([whole]).wait()
        return whole / sum(each.gradient for each in said.values())

    def vote(self, said: dict[int, ReplicaSays], has_sum: bool) -> bool:
        """Whether the step counts: each replica of the round has the sum. The same answer on every rank."""
        answer = "yes" if has_sum else "no"
        members = self._ranks_of(said)
        answers = self.quorum.gather(f"round {self.round}: sums", answer, members)
        self.here = tuple(self._by_replica(answers))
        return all(answers.get(rank) == "yes" for rank in members)

    def _take_step(self) -> bool:
        """One step, in as many rounds as it takes. False where the others continue without this replica."""
        mine, counts, rounds = self.compute(), False, 0
        while not counts:
            rounds += 1
            if rounds > ROUNDS:
                raise NoReplica(f"step {self.step} failed {ROUNDS} times: {self.here} are alive, and cannot talk")
            said = self._who_is_here(mine is not None)
            if said is None:
                return False
            try:
                whole = self.sum(mine, said)
            except Exception as error:  # a member of the group is gone, or this replica fails
                self.troubles.append(error)
                self._leave_group()
                whole = None
            counts = self.vote(said, whole is not None)
            self.round += 1
        self._update(whole, said)
        return True

    def _who_is_here(self, has_gradient: bool) -> dict[int, ReplicaSays] | None:
        """The first vote: what each replica of this round says, or None where this one comes too late for it."""
        self._find_round()
        answer = ReplicaSays(self.step, has_gradient, self.held, self.notice.given).text()
        members = self._ranks_of(self.here) if self.here else None
        answers = self.quorum.gather(f"round {self.round}: gradients", answer, members)
        said = {replica: ReplicaSays.of(words) for replica, words in self._by_replica(answers).items()}
        if self.replica not in said:
            self._be_new()
            return None
        if not any(each.pieces == self.pieces for each in said.values()):
            raise NoReplica(f"no replica that is left has the state: {sorted(said)} are here, and all of them heal")
        if not any(each.gradient for each in said.values()):
            raise NoReplica(f"no replica could compute step {self.step}; this one says: {self.troubles[-1:]}")
        self.step = max(each.step for each in said.values())
        return said

    def _find_round(self) -> None:
        """Members tell which round it is; a newcomer reads it, and is in time for that one or the next."""
        if self.here:
            self.store.set("round", str(self.round))
        elif found := self.quorum.read("round"):
            self.round = max(self.round, int(found))

    def _be_new(self) -> None:
        """The others have left this replica behind: it returns as one that has nothing."""
        self._leave_group()
        self.training.form.end_step()
        self.step, self.held, self.here, self.round = -1, 0, (), self.round + 1

    def _update(self, whole: Tensor, said: dict[int, ReplicaSays]) -> None:
        """All have the sum: take the step, with the pieces that are here."""
        heals = self.held < self.pieces
        held = self.held + 1 if heals else self.held
        gradients = whole[:-1].split([part.master.numel() for part in self.parts])
        for part, gradient in zip(self.parts, gradients, strict=True):
            part.master.grad = gradient.view_as(part.master)
        norm, finite = self.training.updates.measure()
        for number, part in enumerate(self.parts):
            if number % self.pieces >= held:
                part.master.grad = None  # this piece has not come yet
        self.training.updates.finish(self.step, norm, finite and bool(norm.isfinite()))
        brought = tuple(replica for replica, each in said.items() if each.gradient)
        stop = any(each.stop for each in said.values())
        self.committed.append(Committed(self.step, whole[-1].item(), brought, tuple(said), float(norm), stop))
        self.step, self.held = self.step + 1, held

    @property
    def _numel(self) -> int:
        """Of all gradients, and the loss."""
        return sum(part.master.numel() for part in self.parts) + 1

    def _send_pieces(self, group: dist.ProcessGroupGloo, said: dict[int, ReplicaSays]) -> None:
        """The first replica that has all sends each that heals its next piece, as it is before this step."""
        replicas = list(said)
        donor = next(replica for replica in replicas if said[replica].pieces == self.pieces)
        for replica in replicas:
            if said[replica].pieces < self.pieces and self.replica in (donor, replica):
                piece = said[replica].pieces
                if self.replica == donor:
                    self._send(group, replicas.index(replica), piece)
                else:
                    self._receive(group, replicas.index(donor), piece)

    def _send(self, group: dist.ProcessGroupGloo, target: int, piece: int) -> None:
        values = [copied(self.training, part) for part in self.parts[piece :: self.pieces]]
        stateful = {name: each.state_dict() for name, each in self.training.stateful.items()}
        file = io.BytesIO()
        torch.save({"parts": values, "stateful": stateful}, file)
        message = torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)
        group.send([torch.tensor([len(message)])], target, 0).wait()
        group.send([message], target, 0).wait()

    def _receive(self, group: dist.ProcessGroupGloo, source: int, piece: int) -> None:
        length = torch.zeros(1, dtype=torch.int64)
        group.recv([length], source, 0).wait()
        message = torch.empty(int(length), dtype=torch.uint8)
        group.recv([message], source, 0).wait()
        found = torch.load(io.BytesIO(message.numpy().tobytes()), weights_only=True)
        for part, values in zip(self.parts[piece :: self.pieces], found["parts"], strict=True):
            install(self.training, part, values)
        for name, each in self.training.stateful.items():
            each.load_state_dict(found["stateful"][name])

    def _group_of(self, members: tuple[int, ...]) -> dist.ProcessGroupGloo:
        """The ranks that stand at this one's place in each of these replicas; made anew where others are here."""
        if self._group is None or members != self._members:
            self._leave_group()
            store = dist.PrefixStore(f"round {self.round}, place {self.place}", self.store)
            timeout = timedelta(seconds=self.quorum.patience)
            self._group = dist.ProcessGroupGloo(store, members.index(self.replica), len(members), timeout)
            self._members = members
        return self._group

    def _leave_group(self) -> None:
        """Let go of a group, so that ranks that wait in it hear of it at once."""
        if self._group is not None:
            self._group.shutdown()
        self._group, self._members = None, ()

    def _ranks_of(self, replicas: Sequence[int] | dict[int, ReplicaSays]) -> list[int]:
        return [replica * self.width + place for replica in replicas for place in range(self.width)]

    def _by_replica(self, answers: dict[int, str]) -> dict[int, list[str]]:
        """What the ranks of each replica say, where all of them do; replicas in order."""
        found: dict[int, list[str]] = {}
        for rank in sorted(answers):
            found.setdefault(rank // self.width, []).append(answers[rank])
        return {replica: words for replica, words in found.items() if len(words) == self.width}


def require_replicas(config: TrainConfig, plan: Plan, width: int, replicas: int) -> None:
    """See whether replicas of so many ranks can vote on each step of a run.

    Raises:
        BadInput: that says what does not divide, or does not go together.
    """
    if config.is_compressed:
        raise BadInput("what a replica did not send of a gradient is lost with it: send gradients as they are")
    if config.optimizer not in ELEMENTWISE:
        raise BadInput(
            f"a replica heals piece by piece, and {config.optimizer} looks at more at once: take --optimizer "
            f"{listed(ELEMENTWISE)}"
        )
    if config.linear is LinearNumbers.FP8_DELAYED:
        raise BadInput("a replica would know the largest numbers of its own windows alone: take --linear fp8")
    if config.model.experts:
        raise BadInput("routers would count the tokens of one replica alone: take a model without experts")
    if config.outer is not Outer.NONE:
        raise BadInput("replicas that vote are equal after each step, and islands are not: leave out --outer")
    if config.spikes:
        raise BadInput("a replica that heals knows nothing of spikes before: leave out --spike-deviations")
    if plan.offload is not Offload.NONE:
        raise BadInput("a replica heals from the memory of another one: leave out --offload")
    parts = replicas * plan.dp_size(width) * plan.micro_batches
    if config.batch % parts:
        shared = f"{replicas} replicas" + (f", in {parts} parts together" if parts > replicas else "")
        raise BadInput(f"a batch of {config.batch} windows does not divide among {shared}")
