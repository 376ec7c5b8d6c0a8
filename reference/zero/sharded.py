"""ZeRO, stages 1 and 2: every rank computes with all parameters, and updates an n-th of them.

This is `plain.zero_1` and `plain.zero_2` with: any model, any number of ranks and elements, buckets that leave while
backward computes, mixed precision, and any optimizer that treats each element by itself.

Adam keeps two numbers for each parameter, mixed precision a third, and in plain data parallelism each rank keeps all of
them, to do the same arithmetic as the others. Here rank r keeps them for the r-th shard alone (Rajbhandari et al. 2020,
"ZeRO: Memory optimizations toward training trillion parameter models", sec. 5):

    backward        each bucket of gradients is reduce-scattered as soon as it is full: rank r gets the sum of shard r
    step            each rank updates its shard
    publish         all-gather: every rank gets the updated parameters

| stage | gradients that a rank keeps        | elements sent by a rank, K micro-batches | optimizer state |
|-------|------------------------------------|------------------------------------------|-----------------|
| 1     | all                                | 2Ψ(n-1)/n                                | 1/n             |
| 2     | its shard, and two buckets         | (K+1)Ψ(n-1)/n                            | 1/n             |

A reduce-scatter and an all-gather are the two halves of an all-reduce, so with one micro-batch the memory is saved for
no more bytes than plain data parallelism sends.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from reference.collectives.communicator import Communicator
from reference.collectives.default import over
from reference.data_parallel.buckets import Bucket, Buckets, in_order_of_use
from reference.data_parallel.fixed import Wrapped
from reference.data_parallel.gradient_sync import ParameterShard, StepOrder, freeze_in, require_shapes, trainable
from reference.data_parallel.replicated import BUCKET_BYTES
from reference.errors import BadInput
from reference.memory.precision import PRECISIONS, Precision

from .shards import ShardedGradients, parts_of


class ZeroStage(IntEnum):
    """What the ranks share out. Stage 3 is `FullySharded`."""

    OPTIMIZER = 1
    GRADIENTS = 2

    @classmethod
    def _missing_(cls, value: object) -> None:
        raise BadInput(f"Sharded is stage 1 or 2 of ZeRO, not {value!r}: 0 is DistributedDataParallel, 3 FullySharded")


class Shard:
    """One bucket's parameters within a flat tensor, and the n-th of it that this rank updates."""

    def __init__(self, bucket: Bucket, names: list[str], rank: int, precision: Precision) -> None:
        values = bucket.layout.pack([parameter.detach().to(precision.master) for parameter in bucket.parameters])
        self.flat = values.to(precision.compute)  # the same memory where the dtype is the same
        for parameter, view in zip(bucket.parameters, bucket.layout.views(self.flat), strict=True):
            parameter.data = view
        self.working = bucket.layout.shard_of(self.flat, rank)
        own = bucket.layout.shard_of(values, rank)
        self.master = self.working if values is self.flat else own.clone()
        self.parts = parts_of(bucket.layout, names, self.master, rank)


class Sharded:
    """A model whose update is shared out: ZeRO stage 1 or 2.

    Works with any optimizer that treats each element by itself, since shards cut through parameters;
    `require_elementwise` refuses the others. An unused parameter has a gradient of zero.

    Args:
        model: the same on every rank. Its parameters become views of flat tensors in `precision.compute`.
        group: n ranks, or a communicator of them.
        stage: 1 shares out the optimizer's state, 2 the gradients as well.
        precision: masters keep the parameters as they were, unless it computes in what it remembers.
        bucket_bytes: size of a bucket, in bytes of parameters as they were given.

    Raises:
        BadInput: for another stage; by `micro_batch`, if a parameter was replaced, added, frozen or thawed since.
        RuntimeError: where a step is not what `StepOrder` says.
    """

    units, remembered = (), ()

    def __init__(
        self,
        model: nn.Module,
        group: ProcessGroup | Communicator,
        stage: ZeroStage,
        precision: Precision = PRECISIONS["fp32"],
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        self.communicator, self.stage, self._rank, n = over(group), ZeroStage(stage), group.rank(), group.size()
        self.shard_groups = (self.communicator.group,)
        require_shapes(model)
        freeze_in(model, precision.compute)
        named = trainable(model.named_parameters())
        names = {parameter: name for name, parameter in named.items()}
        plan = in_order_of_use(list(named.values()), bucket_bytes)
        buckets = [Bucket(parameters, precision.gradients, n) for parameters in plan]
        self._shards = {b: Shard(b, [names[p] for p in b.parameters], self._rank, precision) for b in buckets}
        self.parts: tuple[ParameterShard, ...] = tuple(part for shard in self._shards.values() for part in shard.parts)
        self._gradients = ShardedGradients(group, None, keep=self.stage is ZeroStage.OPTIMIZER)
        self._buckets = Buckets(buckets, lambda bucket: self._gradients.launch(bucket, last=True))
        copies = any(shard.master is not shard.working for shard in self._shards.values())
        self._wrapped = Wrapped(model, masters=(), in_place=True, loadable=not copies)
        self._step = StepOrder()

    @contextmanager
    def micro_batch(self, last: bool) -> Iterator[None]:
        """Stage 1 sends in the last alone. Stage 2 sends in each: it has no room for what has not been sent."""
        launches = last or self.stage is ZeroStage.GRADIENTS
        with self._step.micro_batch(last, self._buckets.filled):
            self._wrapped.require_unchanged()
            self._wrapped.begin_gradients()
            if launches:
                self._buckets.expect()
            yield
            if launches:
                self._buckets.flush(last)
            if last:
                self._wrapped.hide_gradients()

    def begin_step(self) -> None:
        """As for `DataParallel`."""
        self._step.begin_step()

    def reduce_gradients(self) -> None:
        """Wait, and give each master its piece of the summed gradient."""
        self._step.reduce_gradients()
        self._gradients.finish()
        for bucket, shard in self._shards.items():
            self._gradients.give_to(shard.parts, bucket, self._rank)

    @torch.no_grad()
    def end_step(self) -> None:
        """Round and all-gather the updated shards, bucket by bucket; forget the gradients."""
        for shard in self._shards.values():
            if shard.master is not shard.working:
                shard.working.copy_(shard.master)
            self.communicator.all_gather(shard.working, shard.flat)
        for part in self.parts:
            part.master.grad = None
        self._wrapped.note_values()
        self._wrapped.begin_gradients()
        self._gradients.forget()
        self._buckets.forget()
        self._step.end_step()

    def gradients(self) -> list[Tensor]:
        """Buckets and shards that hold gradients now."""
        return self._gradients.buffers() + [bucket.flat for bucket in self._shards if bucket.flat is not None]
