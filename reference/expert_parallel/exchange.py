"""Rows that travel between ranks while something else is computed, in forward and in backward.

Autograd knows no messages in flight. So an exchange is two functions: one begins to send, and what it returns has no
values yet; the other waits. In backward their order is the opposite one, and so are their roles:

    forward      BeginExchange begins     ... whatever is computed in between ...     EndExchange waits
    backward     BeginExchange waits      ... the gradients of that ...               EndExchange begins
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from reference.collectives.communicator import Communicator, Finish
from reference.collectives.compat import device_of


@dataclass
class Exchange:
    """Rows between ranks: sent[j] of them, in order, go to rank j, and received[i] come from rank i."""

    communicator: Communicator
    sent: Sequence[int]
    received: Sequence[int]
    finish: Finish | None = field(default=None, init=False)  # of what is under way

    def reversed(self) -> "Exchange":
        """The way back."""
        return Exchange(self.communicator, self.received, self.sent)

    def begin(self, x: Tensor, back: bool = False) -> Tensor:
        """Begin to exchange the rows of `x`; returns where they will be."""
        sent, received = (self.received, self.sent) if back else (self.sent, self.received)
        out = x.new_empty(sum(received), *x.shape[1:])
        self.finish = self.communicator.start_all_to_all_uneven(x.contiguous(), out, sent, received)
        return out

    def end(self) -> Tensor:
        """Wait for what has begun."""
        finish, self.finish = self.finish, None
        return finish()


class BeginExchange(Function):
    """`apply(x, exchange)`: rows of other ranks, which are not there before `EndExchange`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, exchange: Exchange) -> Tensor:
        ctx.exchange = exchange
        return exchange.begin(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.exchange.end(), None


class EndExchange(Function):
    """`apply(rows, exchange)`: the same, when they are there."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, exchange: Exchange) -> Tensor:
        ctx.exchange = exchange
        exchange.end()
        return rows.view_as(rows)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.exchange.begin(gradient, back=True)
        return gradient, None  # stands for what is under way: `BeginExchange` has it


def start_exchange(x: Tensor, exchange: Exchange) -> Callable[[], Tensor]:
    """Begin to exchange rows, through which gradients go back; the result waits for them."""
    rows = BeginExchange.apply(x, exchange)
    return lambda: EndExchange.apply(rows, exchange)


def exchange_counts(counts: Tensor, communicator: Communicator) -> Callable[[], Tensor]:
    """Begin to tell each rank how many rows come: row j of [n, ...] goes to rank j; the result has theirs."""
    x = counts.to(device_of(communicator.group)).contiguous()
    out, ones = torch.empty_like(x), [1] * communicator.size()
    finish = communicator.start_all_to_all_uneven(x, out, ones, ones)
    return lambda: finish().to(counts.device)
