"""ZeRO stage 3 in a pipeline: a program says when a stage's parameters are gathered and freed.

A pipeline knows long before any module computes which stage is next, and keeps one whole over several micro-batches.
So nothing is found out by hooks: the pipeline's form (`reference.pipeline_parallel.per_stage_sync`) calls

    Gather      stage.unshard(stage.units)    and computes what comes before; the first use of a parameter waits
    F, B        gradients add up in buckets of whole units
    Free        stage.reshard()               gradients leave that are here; each micro-batch then adds to a shard
    Reduce      the last backward of a stage, `micro_batch(last=True)`: each unit's gradients leave when they are full
"""

from collections.abc import Iterator
from contextlib import contextmanager

from .unit import FlatParameters
from .units import ShardedUnits, require_ready


class FullyShardedByProgram(ShardedUnits):
    """One stage of a model, or all of it, that is unsharded and resharded as a whole. Arguments as for its base."""

    def reshard(self) -> None:
        """Free everything. Gradients that are still here leave first."""
        for bucket in self._parts_of:
            if bucket.filled:
                self._gradients.launch(bucket, last=False)
        self.reshard_all_but(())

    @contextmanager
    def micro_batch(self, last: bool) -> Iterator[None]:
        """Around a backward. Gradients add up, and leave in the last one alone, or where `reshard` takes the room."""
        with self._step.micro_batch(last, self.filled):
            if not last:
                yield
                return
            with self.reducing(last):
                yield

    def _used(self, unit: FlatParameters, name: str) -> None:
        """The program has begun to gather it. It stays whole until backward is over, which needs no hook."""
        unit.wait_for_unshard()
        require_ready(unit, name)
