"""What the buckets of ZeRO and the units of FSDP have in common: a flat tensor of which each rank updates a shard."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from reference.collectives.communicator import Communicator, Finish, own_chunk
from reference.collectives.default import over
from reference.data_parallel.buckets import Bucket
from reference.data_parallel.flat_layout import FlatLayout
from reference.data_parallel.gradient_sync import ParameterShard
from reference.dtypes import give_gradient

IN_FLIGHT = 1  # reductions that may be under way while the next bucket fills


def parts_of(layout: FlatLayout, names: Sequence[str], shard: Tensor, rank: int) -> list[ParameterShard]:
    """The pieces of parameters in the shard of `rank`, each with a master that is a view of the shard.

    Args:
        layout: of the flat tensor.
        names: of its parameters.
        shard: `layout.shard` elements, in the precision of the update.
        rank: whose shard it is.
    """
    return [
        ParameterShard(
            names[piece.index],
            layout.shapes[piece.index],
            piece.begin,
            piece.end,
            nn.Parameter(piece.within(shard)),
        )
        for piece in layout.pieces(rank)
    ]


@dataclass(frozen=True)
class _Reduction:
    """A reduce-scatter under way."""

    bucket: Bucket
    whole: Tensor
    finish: Finish
    last: bool  # nothing more will be added to it in this step


class ShardedGradients:
    """Reduce-scatters buckets, each while the next one fills, and adds up shards from micro-batch to micro-batch.

    Args:
        group: the n ranks that share each bucket, or a communicator of them.
        replicas: ranks that hold the same shard and read other data, as in hybrid sharding; None if there are none.
        keep: leave each bucket its memory until the step is over, as ZeRO-1 does.
    """

    def __init__(
        self, group: ProcessGroup | Communicator, replicas: ProcessGroup | Communicator | None, keep: bool
    ) -> None:
        self.communicator, self.keep = over(group), keep
        self.replicas = None if replicas is None else over(replicas)
        self.of: dict[Bucket, Tensor] = {}  # this rank's shard of each bucket's gradients
        self._under_way: deque[_Reduction] = deque()
        self._between_replicas: list[Finish] = []

    def launch(self, bucket: Bucket, last: bool) -> None:
        """Start the reduction of a full bucket. `last`: nothing will be added to its gradients in this step."""
        whole = bucket.complete()
        place = own_chunk(self.communicator, whole)
        out = place if self.keep else torch.empty_like(place)  # of its own: nothing else of the bucket must stay
        self._under_way.append(_Reduction(bucket, whole, self.communicator.start_reduce_scatter(whole, out), last))
        if not self.keep:
            bucket.release()  # what comes next gets a buffer of its own
            self._finish_all_but(IN_FLIGHT)

    def finish(self) -> None:
        """Wait for everything that was launched."""
        self._finish_all_but(0)
        for finish in self._between_replicas:
            finish()
        self._between_replicas.clear()

    def give_to(self, parts: Sequence[ParameterShard], bucket: Bucket, rank: int) -> None:
        """Let each master's `grad` be its piece of the bucket's shard."""
        for piece, part in zip(bucket.layout.pieces(rank), parts, strict=True):
            give_gradient(part.master, piece.within(self.of[bucket]))

    def buffers(self) -> list[Tensor]:
        """Shards, and buckets whose reduction is under way."""
        return [*self.of.values(), *(each.whole for each in self._under_way)]

    def forget(self) -> None:
        """Be ready for the next step. What a step that failed has launched must arrive first."""
        self.finish()
        self.of.clear()

    def _finish_all_but(self, left: int) -> None:
        while len(self._under_way) > left:
            done = self._under_way.popleft()
            self._add(done.bucket, done.finish())
            if self.keep:
                done.bucket.filled.clear()
            else:
                done.whole.untyped_storage().resize_(0)  # now: gloo's thread may hold the tensor for a while yet
            if done.last and self.replicas is not None:
                self._between_replicas.append(self.replicas.start_all_reduce(self.of[done.bucket]))

    def _add(self, bucket: Bucket, own: Tensor) -> None:
        if bucket in self.of:
            self.of[bucket].add_(own)
        else:
            self.of[bucket] = own
