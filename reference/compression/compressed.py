"""Replicas whose gradients are summed by a compressor: the form of data parallelism of this chapter.

The compressor takes a bucket when backward has filled it, in the order of all ranks. Buckets decide when gradients
travel, and never what comes out: whatever is remembered has the name of its parameter.
"""

from collections.abc import Callable, Sequence
from math import inf

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from reference.collectives.communicator import Communicator
from reference.data_parallel.buckets import Bucket, in_order_of_use
from reference.data_parallel.remembered import Remembered
from reference.data_parallel.replicated import Replicated
from reference.memory.precision import PRECISIONS, Precision

from .memory import Known, MakeCompressor


class Compressed(Replicated):
    """A model whose gradients are summed by a compressor.

    Args:
        model, group, precision: as for `Replicated`.
        unused: likewise; but what is remembered of a parameter arrives in steps, too, in which no rank has used it.
        make: the compressor of these ranks.
        bucket_bytes: of parameters whose gradients travel together while backward still computes; inf for all of them,
            at its end.
    """

    def __init__(
        self,
        model: nn.Module,
        group: ProcessGroup | Communicator,
        make: MakeCompressor,
        precision: Precision = PRECISIONS["fp32"],
        bucket_bytes: float = inf,
        unused: bool = False,
    ) -> None:
        self._bucket_bytes = bucket_bytes
        self._under_way: list[Callable[[], None]] = []
        super().__init__(model, group, precision, unused=unused)
        self.compressor = make(self.communicator)
        self._numbers = {bucket: number for number, bucket in enumerate(self._buckets.buckets)}
        self.compressor.begin([[self._known(p, bucket.dtype) for p in bucket.parameters] for bucket in self._numbers])

    @property
    def remembered(self) -> Sequence[Remembered]:
        """What the compressor needs in the next step."""
        return self.compressor.remembered()

    def _known(self, parameter: nn.Parameter, dtype: torch.dtype) -> Known:
        return Known(self._names[parameter], parameter.shape, dtype, parameter.device)

    def _plan(self, parameters: list[nn.Parameter], dtype: torch.dtype) -> list[Bucket]:
        return [Bucket(group, dtype) for group in in_order_of_use(parameters, self._bucket_bytes)]

    @torch.no_grad()
    def _launch(self, bucket: Bucket) -> None:
        bucket.complete()
        gradients: list[Tensor] = [bucket.gradient(index) for index in range(len(bucket.parameters))]
        self._under_way.append(self.compressor.start(self._numbers[bucket], gradients))

    def end_step(self) -> None:
        """As for `Replicated`. What a step that failed has sent must arrive before its buffers serve again."""
        self._finish()
        super().end_step()

    def _used(self) -> dict[nn.Parameter, bool]:
        used = super()._used()
        if not self.unused:
            return used
        remembered = {each.part.name for each in self.remembered}
        return {parameter: here or self._names[parameter] in remembered for parameter, here in used.items()}

    @torch.no_grad()
    def _finish(self) -> None:
        """Wait for what is still under way."""
        for finish in self._under_way:
            finish()
        self._under_way.clear()
