"""What the buckets of ZeRO and the units of FSDP have in common: a flat tensor of which each rank updates a shard."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup, Work

from reference.collectives import begin
from reference.data_parallel.buckets import Bucket
from reference.data_parallel.form import Part
from reference.data_parallel.layout import FlatLayout

IN_FLIGHT = 1  # reductions that may be under way while the next bucket fills


def parts_of(layout: FlatLayout, names: Sequence[str], shard: Tensor, rank: int) -> list[Part]:
    """The pieces of parameters in the shard of `rank`, each with a master that is a view of the shard.

    Args:
        layout: of the flat tensor.
        names: of its parameters.
        shard: `layout.shard` elements, in the precision of the update.
        rank: whose shard it is.
    """
    return [
        Part(
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
    finish: begin.Finish
    last: bool  # nothing more will be added to it in this step


class ShardedGradients:
    """Reduce-scatters buckets, each while the next one fills, and adds up shards from micro-batch to micro-batch.

    Args:
        group: the n ranks that share each bucket.
        replicas: ranks that hold the same shard and read other data, as in hybrid sharding; None if there are none.
        keep: leave each bucket its memory until the step is over, as ZeRO-1 does.
    """

    def __init__(self, group: ProcessGroup, replicas: ProcessGroup | None, keep: bool) -> None:
        self.group, self.replicas, self.keep = group, replicas, keep
        self.of: dict[Bucket, Tensor] = {}  # this rank's shard of each bucket's gradients
        self._under_way: deque[_Reduction] = deque()
        self._between_replicas: list[Work] = []

    def launch(self, bucket: Bucket, last: bool) -> None:
        """Start the reduction of a full bucket. `last`: nothing will be added to its gradients in this step."""
        whole = bucket.complete()
        self._under_way.append(_Reduction(bucket, whole, begin.reduce_scatter(whole, self.group), last))
        if not self.keep:
            bucket.release()  # what comes next gets a buffer of its own
            self._finish_all_but(IN_FLIGHT)

    def finish(self) -> None:
        """Wait for everything that was launched."""
        self._finish_all_but(0)
        for work in self._between_replicas:
            work.wait()
        self._between_replicas.clear()

    def give_to(self, parts: Sequence[Part], bucket: Bucket, rank: int) -> None:
        """Let each master's `grad` be its piece of the bucket's shard, in the master's dtype."""
        for piece, part in zip(bucket.layout.pieces(rank), parts, strict=True):
            part.master.grad = piece.within(self.of[bucket]).to(part.master.dtype)

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
            done.finish()
            self._add(done.bucket, done.bucket.layout.shard_of(done.whole, dist.get_rank(self.group)))
            if self.keep:
                done.bucket.filled.clear()
            else:
                done.whole.untyped_storage().resize_(0)  # now: gloo's thread may hold the tensor for a while yet
            if done.last and self.replicas is not None:
                work = dist.all_reduce(self.of[done.bucket], group=self.replicas, async_op=True)
                self._between_replicas.append(work)

    def _add(self, bucket: Bucket, own: Tensor) -> None:
        if bucket in self.of:
            self.of[bucket].add_(own)
        else:
            self.of[bucket] = own if self.keep else own.clone()  # that nothing else of the bucket stays
