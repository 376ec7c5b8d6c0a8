"""One program that runs every schedule: each rank goes through its line, step by step.

This is `plain.step` with: any placement of stages, backward in halves, receives that are begun early, shapes that the
sender tells, data parallelism for each stage (FSDP too), and a proof of the schedule before it runs.

    F           take what the stage before has made; compute; have it ready
    B           take the gradient of what was made; go backward; have the gradient of what was given ready
    I, W        the same in two halves: see `split_backward`
    all else    as `passes` says

An action waits for nothing but what it takes, so a step takes as long as `simulate` says.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from reference.collectives.communicator import Communicator
from reference.errors import BadInput

from .messages import Messages
from .passes import Channel, Free, Gather, Receive, Reduce, Send, programmed
from .schedule import Action, Kind, Schedule
from .simulate import makes, needs
from .split_backward import DeferredWeightGradients
from .validate import validate

Inputs = Callable[[int], tuple[Tensor, ...]]
"""Of a micro-batch, by number: the input of its first stage, and what every stage gets besides."""

Loss = Callable[[Tensor, int], Tensor]
"""From what the last stage has made of a micro-batch, and its number, to its part of the loss."""


class StageSync(Protocol):
    """What the stages of a pipeline ask of the form of data parallelism that they are in."""

    shards_parameters: bool  # whether parameters must be gathered

    def backward_of(self, stage: int, last: bool) -> AbstractContextManager[None]:
        """Around the end of a stage's backward for a micro-batch. All its gradients are there after the `last`."""

    def gather(self, stage: int) -> None:
        """Begin to make the parameters of a stage whole."""

    def free(self, stage: int) -> None:
        """Keep its shards alone."""


class NoSync:
    """The form of a pipeline that has no replicas."""

    shards_parameters = False

    def backward_of(self, stage: int, last: bool) -> AbstractContextManager[None]:
        """Gradients add up in the parameters."""
        return nullcontext()


class Pipeline:
    """One rank of a pipeline.

    Args:
        schedule: that all ranks follow.
        stages: those that this rank has, by number. Their parameters collect gradients.
        group: the ranks of the pipeline.
        device: where this rank computes.
        deferred: weight gradients of this rank's stages that wait for the second half of backward; needed where the
            schedule has two halves.
        form: of data parallelism, over this rank's stages.
        channels, copies: as for `Messages`.
        context: entered around each action that computes, to measure it or to change what it computes with.

    Raises:
        BadInput: if the schedule computes no step, or not with these ranks and stages.
    """

    needs_warm_up = True  # an `Engine`

    def __init__(
        self,
        schedule: Schedule,
        stages: Mapping[int, nn.Module],
        group: ProcessGroup | Communicator,
        device: torch.device,
        *,
        deferred: DeferredWeightGradients | None = None,
        form: StageSync | None = None,
        channels: Mapping[Channel, ProcessGroup | Communicator] | None = None,
        copies: ProcessGroup | Communicator | None = None,
        context: Callable[[Action], AbstractContextManager] = nullcontext,
    ) -> None:
        self.schedule, self.stages = schedule, stages
        self._deferred, self._form, self._context = deferred, form or NoSync(), context
        ahead = max(1, validate(schedule).room)
        if schedule.ranks != group.size():
            raise BadInput(f"a schedule of {schedule.ranks} ranks does not run on {group.size()}")
        if set(stages) != set(own := schedule.stages_on(group.rank())):
            raise BadInput(f"rank {group.rank()} has stages {own} in the schedule, and was given {(*stages,)}")
        self.line = programmed(schedule, ahead, self._form.shards_parameters).lines[group.rank()]
        self._actions = actions = schedule.lines[group.rank()]
        self._split = {action[1:] for action in actions if action.kind is Kind.INPUT}
        if self._split and deferred is None:
            raise BadInput("the schedule splits backward: give `deferred=DeferredWeightGradients()` of its stages")
        self._trains = any(action.kind is not Kind.FORWARD for action in actions)
        self._messages = Messages(schedule, group, device, ahead, channels, copies)
        self._held: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}  # input and output of a stage, until backward

    def step(self, inputs: Inputs, loss: Loss) -> Tensor | None:
        """Forward and backward of all micro-batches; their gradients add up in the parameters.

        Args:
            inputs: what micro-batches are.
            loss: called where a route ends.

        Returns:
            The sum of losses, on a rank on which routes end.

        Raises:
            BadInput: if a stage or the loss makes anything but a tensor, or a step of training runs without gradients.
        """
        if self._trains and not torch.is_grad_enabled():
            raise BadInput("the schedule goes backward, and gradients are off: for inference, take `forward_only`")
        total = None
        self._held.clear()  # a step before may have failed halfway
        if self._deferred:
            self._deferred.forget()
        self._messages.begin()
        for step in self.line:
            match step:
                case Send():
                    self._messages.send(step)
                case Receive():
                    self._messages.receive(step)
                case Gather():
                    self._form.gather(step.stage)
                case Free():
                    self._form.free(step.stage)
                case Reduce():
                    self._backward(step.action, last=True)
                case _ if step.kind is Kind.FORWARD:
                    total = added(total, self._forward(step, inputs, loss))
                case _:
                    self._backward(step, last=False)
        self._messages.end()
        return total

    def warm_up(self, inputs: Inputs, like: Tensor, loss: Loss) -> None:
        """Compute all that a step computes, on a few micro-batches, without a message: every kernel is loaded then.

        On GPUs that must not happen while a receive waits, see `reference.on_gpus`. To the form this is a step: its
        gradients, which mean nothing, are to be collected and forgotten.

        Args:
            inputs, loss: as for `step`.
            like: stands for what other stages make, and for gradients of it.
        """
        total = None
        self._held.clear()
        self._messages.begin()
        for stage in self.stages:
            actions = _twice_each_way([action for action in self._actions if action.stage == stage])
            last = max(at for at, action in enumerate(actions) if action.kind in (Kind.BACKWARD, Kind.WEIGHT))
            if self._form.shards_parameters:
                self._form.gather(stage)
            for at, action in enumerate(actions):
                needed, made = needs(self.schedule, action), makes(action)
                if needed and needed.stage != stage and action.kind is not Kind.WEIGHT:
                    self._messages.keep(needed, like)
                if action.kind is Kind.FORWARD:
                    total = added(total, self._forward(action, inputs, loss))
                else:
                    self._backward(action, last=at == last)
                self._messages.drop(made)
            if self._form.shards_parameters:
                self._form.free(stage)

    def _forward(self, action: Action, inputs: Inputs, loss: Loss) -> Tensor | None:
        """Keep input and output of a stage, with a graph between them that knows nothing of other stages.

        Returns:
            The loss, where the route ends.
        """
        self._splits(action[1:] in self._split)
        x, *others = inputs(action.micro_batch)
        if needed := needs(self.schedule, action):
            x = self._messages.take(needed).detach().requires_grad_()
        ends = self.schedule.after(action.stage, action.micro_batch) is None
        with self._context(action):
            y = self.stages[action.stage](x, *others)
            if ends:
                y = loss(y, action.micro_batch)
        if not isinstance(y, Tensor):
            maker = "the loss" if ends else f"stage {action.stage}"
            raise BadInput(f"{maker} makes a {type(y).__name__}, and what is handed on is one tensor")
        if self._trains:
            self._held[action.stage, action.micro_batch] = x, y
        if ends:
            return y.detach()
        self._messages.keep(makes(action), y.detach())
        return None

    def _backward(self, action: Action, last: bool) -> None:
        """Go back through one stage, or do what was left for later."""
        place = action.stage, action.micro_batch
        finishing = nullcontext() if action.kind is Kind.INPUT else self._form.backward_of(action.stage, last)
        if action.kind is Kind.WEIGHT:
            with self._context(action), finishing:
                self._deferred.compute(place)
            return
        self._splits(action.kind is Kind.INPUT)  # for what is computed again
        x, y = self._held.pop(place)
        needed = needs(self.schedule, action)
        gradient = self._messages.take(needed) if needed.is_gradient else None
        deferring = self._deferred.defer(place) if action.kind is Kind.INPUT else nullcontext()
        with self._context(action), finishing, deferring:
            if y.requires_grad:  # not what frozen layers have made of tokens
                y.backward(gradient)
        if x.requires_grad:  # a stage that made nothing of it leaves it no gradient
            self._messages.keep(makes(action), torch.zeros_like(x) if x.grad is None else x.grad)

    def _splits(self, splits: bool) -> None:
        """Whether the backward of what goes forward now will come in halves."""
        if self._deferred:
            self._deferred.splits = splits


def added(total: Tensor | None, part: Tensor | None) -> Tensor | None:
    """The sum of those that there are, if there are any."""
    if total is None or part is None:
        return part if total is None else total
    return total + part


def _twice_each_way(actions: Sequence[Action]) -> list[Action]:
    """Of the actions of one stage, those of two micro-batches that go back whole, and of two that do in halves.

    Two, since the second adds its gradients to those of the first, also where its first half comes before the second
    half of the first.
    """
    ways: defaultdict[tuple[Kind, ...], list[list[Action]]] = defaultdict(list)
    for micro_batch in dict.fromkeys(action.micro_batch for action in actions):
        own = [action for action in actions if action.micro_batch == micro_batch]
        ways[tuple(action.kind for action in own)].append(own)
    chosen = [[action for own in alike[:2] for action in own] for alike in ways.values()]
    return [action for alike in chosen for action in sorted(alike, key=lambda action: action.kind is Kind.WEIGHT)]
