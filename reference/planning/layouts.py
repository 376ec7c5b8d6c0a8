"""How ranks may share the work, many ways at once: choices that all of them share, and sizes in columns.

A column is a number, or an array [N] of numbers, one for each layout; all arithmetic on them is numpy's, so a
prediction for one layout and for a million is one code. Ranks lie as `reference.mesh` has them: tensor-parallel ranks
are neighbours, then those that share windows, then replicas, and stages of a pipeline are farthest apart.
"""

from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any

import numpy as np

from reference.choices import Recompute
from reference.plan import PipelineSchedule

from .job import Job

Column = Any  # a number, or an array [N] of them


class Sharding(StrEnum):
    """What data-parallel ranks share out among each other."""

    NONE = "none"
    ZERO1 = "zero1"  # the optimizer's state
    ZERO2 = "zero2"  # gradients, too
    FSDP = "fsdp"  # parameters, too


SIZES = ("tp", "cp", "dp", "pp", "ep", "etp", "micro_batch", "chunks")


@dataclass(frozen=True)
class Layouts:
    """Layouts of one kind.

    Attributes:
        tp, cp, dp, pp: ranks along each axis: that share matrices, windows, nothing but the batch, and layers.
        ep, etp: ranks that share out experts, and the matrices of one; both out of the ranks of a stage.
        micro_batch: windows of a micro-batch.
        chunks: stages on each rank of a pipeline.
        sharding, recompute, schedule, sequence_parallel: choices that all of them share.
    """

    tp: Column = 1
    cp: Column = 1
    dp: Column = 1
    pp: Column = 1
    ep: Column = 1
    etp: Column = 1
    micro_batch: Column = 1
    chunks: Column = 1
    sharding: Sharding = Sharding.NONE
    recompute: Recompute = Recompute.NONE
    schedule: PipelineSchedule = PipelineSchedule.ONE_F_ONE_B
    sequence_parallel: bool = False

    def __post_init__(self) -> None:
        columns = np.broadcast_arrays(*(np.asarray(getattr(self, name), dtype=np.float64) for name in SIZES))
        for name, column in zip(SIZES, columns, strict=True):
            object.__setattr__(self, name, column)

    def __len__(self) -> int:
        return self.tp.size

    @property
    def ranks(self) -> Column:
        """Of all axes together."""
        return self.tp * self.cp * self.dp * self.pp

    def micro_batches(self, job: Job) -> Column:
        """m: how many a rank computes in a step."""
        return job.batch / (self.dp * self.micro_batch)

    def tokens(self, job: Job) -> Column:
        """Of a micro-batch, on one rank."""
        return self.micro_batch * job.sequence / self.cp

    def take(self, index: Any) -> "Layouts":
        """Some of them: by a mask or by indices."""
        return replace(self, **{name: getattr(self, name)[index] for name in SIZES})

    def __str__(self) -> str:
        """What is not as usual, of a single layout: "tp 8, pp 16, dp 128, fsdp"."""
        usual = Layouts()
        sizes = [f"{name} {int(getattr(self, name))}" for name in SIZES if getattr(self, name) != 1]
        choices = [
            str(getattr(self, each.name))
            for each in fields(self)
            if each.name not in SIZES
            and each.name != "sequence_parallel"
            and getattr(self, each.name) != getattr(usual, each.name)
        ]
        return ", ".join([*sizes, *choices, *["sequence parallel"] * self.sequence_parallel]) or "one rank"
