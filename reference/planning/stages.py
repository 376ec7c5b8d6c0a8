"""How layers make stages: which rank of a pipeline has most of them, and whether the two ends have fewer."""

from dataclasses import dataclass

import numpy as np

from .job import Job
from .layouts import Column, Layouts


@dataclass(frozen=True)
class StageLayers:
    """Of each layout.

    Attributes:
        layers: of a rank in the middle of the pipeline, on all its stages together: the most that a rank has.
        relief: how many fewer the first and the last rank have, beside the table of tokens and the head.
    """

    layers: Column
    relief: Column


def held(job: Job, layouts: Layouts) -> StageLayers:
    """Whole layers on each stage: the same number on all, and where that leaves two over, the two ends have one fewer.

    So do 126 layers on 16 stages: 7, then 14 times 8, then 7 (Llama 3, arXiv:2407.21783, sec. 3.3.2).
    """
    of_all = layouts.pp * layouts.chunks
    each = np.ceil(job.model.layers / of_all)
    left = each * of_all - job.model.layers
    return StageLayers(each * layouts.chunks, np.where((left >= 2) & (layouts.pp > 1), 1.0, 0.0))
