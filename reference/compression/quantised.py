"""A communicator that carries fewer bits, under any strategy: what is said is quantised once, and sums are of numbers.

This is `plain.reduce_scatter_once` with: any format, any length, gathers, all-reduces, two levels of links, and
messages that travel while this rank computes. Of m numbers from each of n ranks a rank sends, where f(m) are the bytes
of m numbers in a format:

| collective        | how                                                     | bytes sent by a rank      | rounded |
|-------------------|---------------------------------------------------------|---------------------------|---------|
| all-gather        | each rank quantises what it brings                      | (n-1) f(m)                | once    |
| reduce-scatter    | all-to-all; what arrives is dequantised and then summed | (n-1) f(m)                | once    |
| ... on two levels | the same in nodes of L ranks, then between N of them    | (L-1) N f(m) + (N-1) g(m) | twice   |
| all-reduce        | reduce-scatter, all-gather                              | 2(n-1) f(m)               | twice   |

A ring, or halving, would dequantise, add and quantise again at each of its steps: n-1 or log2 n roundings, of ever
larger sums. On two levels few bits leave a node: each node sends its sum, and not what each of its ranks has.

All ranks get the same from a gather, the one that brings it too. In a reduce-scatter a rank adds its own numbers as
they are. Integers, maxima and broadcasts travel as they are; so does everything where there is no format for it.

Wang et al. 2023, "ZeRO++", arXiv 2306.10209, sec. 3: qwZ is the gather, qgZ the reduce-scatter on two levels.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from reference.collectives.communicator import SUM, Communicator, Finish
from reference.collectives.relay import Relay
from reference.dtypes import accumulator
from reference.errors import BadInput

from .formats import Format


class Quantised(Relay):
    """Gathers in one format, sums in another. All else passes to another communicator.

    Args:
        group: n ranks, or the communicator that carries the bytes.
        gathered: of what is gathered; None leaves it as it is.
        reduced: of what is summed; None leaves it as it is.
    """

    def __init__(
        self, group: ProcessGroup | Communicator, gathered: Format | None = None, reduced: Format | None = None
    ) -> None:
        super().__init__(group)
        self.gathered, self.reduced = gathered, reduced

    def all_gather(self, x: Tensor, out: Tensor) -> None:
        self.start_all_gather(x, out)()

    def reduce_scatter(self, x: Tensor, out: Tensor) -> None:
        if self._sums(x, SUM):
            self.start_reduce_scatter(x, out)()
        else:
            super().reduce_scatter(x, out)

    def all_reduce(self, x: Tensor, op: dist.ReduceOp = SUM) -> None:
        self.start_all_reduce(x, op)()

    def start_all_gather(self, x: Tensor, out: Tensor) -> Finish:
        if self.gathered is None or not x.is_floating_point():
            return super().start_all_gather(x, out)
        return self._start_gather(x, out, self.gathered)

    def start_reduce_scatter(self, x: Tensor, out: Tensor) -> Finish:
        if not self._sums(x, SUM):
            return super().start_reduce_scatter(x, out)
        sums = self._start_sum(x)
        return lambda: out.copy_(sums().view_as(out))

    def start_all_reduce(self, x: Tensor, op: dist.ReduceOp = SUM) -> Finish:
        """What is gathered are sums: so they are in the format of sums, and start when those are there."""
        if not self._sums(x, op):
            return super().start_all_reduce(x, op)
        padded = x.new_zeros(-(-x.numel() // self.size()) * self.size())
        padded[: x.numel()] = x.view(-1)
        sums = self._start_sum(padded)

        def finish() -> Tensor:
            self._start_gather(sums(), padded, self.reduced)()
            return x.copy_(padded[: x.numel()].view_as(x))

        return finish

    def _sums(self, x: Tensor, op: dist.ReduceOp) -> bool:
        return self.reduced is not None and x.is_floating_point() and op == SUM

    def _start_gather(self, x: Tensor, out: Tensor, form: Format) -> Finish:
        payload = form.encode(x.reshape(-1))
        received = payload.new_empty(self.size(), len(payload))
        arrive = self.inner.start_all_gather(payload, received.view(-1))

        def finish() -> Tensor:
            arrive()
            for chunk, written in zip(out.view(self.size(), -1), received, strict=True):
                chunk.copy_(form.decode(written, len(chunk)))
            return out

        return finish

    def _start_sum(self, x: Tensor) -> Finish:
        """Start the sum of this rank's chunk, in the dtype of `x`."""
        sums = start_sum(x.view(self.size(), -1), self.reduced, self.inner)
        return lambda: sums().to(x.dtype)


class QuantisedOnNodes(Quantised):
    """The same with sums on two levels: within nodes first, in one format, then between nodes, in another.

    Args:
        group: n ranks, those of a node one after another.
        inside: the L ranks of this node, or their communicator.
        between: the ranks that are this one's neighbours in the N nodes, or their communicator.
        gathered: as for `Quantised`.
        reduced: of what is summed between nodes.
        reduced_inside: of what is summed within one.

    Raises:
        BadInput: if the groups do not make up `group`.
    """

    def __init__(
        self,
        group: ProcessGroup | Communicator,
        inside: Communicator,
        between: Communicator,
        gathered: Format | None,
        reduced: Format,
        reduced_inside: Format,
    ) -> None:
        super().__init__(group, gathered, reduced)
        self.inside, self.between, self.reduced_inside = inside, between, reduced_inside
        if (
            self.rank() != between.rank() * inside.size() + inside.rank()
            or self.size() != between.size() * inside.size()
        ):
            raise BadInput("ranks of a node follow each other: rank r of n is the (r mod L)th of its node of L ranks")

    def _start_sum(self, x: Tensor) -> Finish:
        nodes, ranks = self.between.size(), self.inside.size()
        for_each = x.view(nodes, ranks, -1).transpose(0, 1)  # [L, N, m]: what my neighbours will sum, by node
        of_node = start_sum(for_each, self.reduced_inside, self.inside)
        return lambda: start_sum(of_node(), self.reduced, self.between)().to(x.dtype)


def start_sum(rows: Tensor, form: Format, communicator: Communicator) -> Callable[[], Tensor]:
    """Start to sum row i of all ranks' `rows` on rank i: quantised once, summed in float32 or more.

    Args:
        rows: [n, ..., m], a row for each of n ranks.
        form: in which they travel; the m numbers of each are quantised by themselves.
        communicator: of n ranks.

    Returns:
        Waits, and returns this rank's sum: [..., m].
    """
    n, own = communicator.size(), communicator.rank()
    total = rows[own].to(accumulator(rows.dtype), copy=True)
    payload = form.encode(rows)
    received = torch.empty_like(payload)
    arrive = communicator.start_all_to_all_uneven(payload.view(n, -1), received.view(n, -1), [1] * n, [1] * n)

    def finish() -> Tensor:
        arrive()
        for source, written in enumerate(received):
            if source != own:
                total.add_(form.decode(written, rows.shape[-1]))
        return total

    return finish
