"""One program that runs every schedule: each rank goes through its line, action by action.

    F       take what the stage before has made; compute; hand it on
    B       take the gradient of what was made; go backward; hand on the gradient of what was given
    I, W    the same in two halves: see `split_backward`

An action waits for nothing but what it takes, so a step takes as long as `simulate` says.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from .messages import Messages
from .schedule import Action, Kind, Schedule
from .simulate import makes, needs
from .split_backward import Later
from .validate import validate

Loss = Callable[[Tensor, int], Tensor]
"""From what the last stage has made of a micro-batch, and its number, to its part of the loss."""


class Pipeline:
    """One rank of a pipeline.

    Args:
        schedule: that all ranks follow.
        stages: those that this rank has, by number. Their parameters collect gradients.
        forward, backward: as of `Messages`.
        device: where this rank computes.
        later: what keeps weight gradients of this rank's stages for the second half of backward; needed where the
            schedule has one.

    Raises:
        BadInput: if the schedule computes no step.
    """

    def __init__(
        self,
        schedule: Schedule,
        stages: Mapping[int, nn.Module],
        forward: ProcessGroup,
        backward: ProcessGroup,
        device: torch.device,
        later: Later | None = None,
    ) -> None:
        self.schedule, self.stages, self.later = schedule, stages, later
        self._line = schedule.lines[forward.rank()]
        self._messages = Messages(schedule, forward, backward, device, ahead=max(1, validate(schedule).room))

    def step(self, given: Callable[[int], tuple[Tensor, ...]], loss: Loss) -> Tensor | None:
        """Forward and backward of all micro-batches; their gradients add up in the parameters.

        Args:
            given: of a micro-batch, by number: the input of its first stage, and what every stage gets besides.
            loss: called where a route ends.

        Returns:
            The sum of losses, on a rank on which routes end.
        """
        held: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        total = None
        self._messages.begin()
        for action in self._line:
            if action.kind is Kind.FORWARD:
                held[action.stage, action.micro_batch] = x_and_y = self._forward(action, given, loss)
                if self.schedule.behind(action.stage, action.micro_batch) is None:
                    part = x_and_y[1].detach()
                    total = part if total is None else total + part
            elif action.kind is Kind.WEIGHT:
                self.later.finish((action.stage, action.micro_batch))
            else:
                self._backward(action, *held.pop((action.stage, action.micro_batch)))
        self._messages.end()
        return total

    def _forward(self, action: Action, given: Callable[[int], tuple[Tensor, ...]], loss: Loss) -> tuple[Tensor, Tensor]:
        """Input and output of a stage, with a graph between them that knows nothing of other stages."""
        x, *others = given(action.micro_batch)
        if needed := needs(self.schedule, action):
            x = self._messages.take(needed).detach().requires_grad_()
        y = self.stages[action.stage](x, *others)
        if self.schedule.behind(action.stage, action.micro_batch) is None:
            return x, loss(y, action.micro_batch)
        self._messages.give(makes(action), y.detach())
        return x, y

    def _backward(self, action: Action, x: Tensor, y: Tensor) -> None:
        """Go back through one stage, and hand on the gradient of its input."""
        needed = needs(self.schedule, action)
        gradient = self._messages.take(needed) if needed.is_gradient else None
        if action.kind is Kind.INPUT:
            with self.later.keeping((action.stage, action.micro_batch)):
                y.backward(gradient)
        else:
            y.backward(gradient)
        if x.requires_grad:
            self._messages.give(makes(action), x.grad)
