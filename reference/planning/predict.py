"""What a step costs: seconds and memory of many layouts at once, and what follows from them.

job = Job(preset("llama3-70b"), GpuCluster(gpu("h100"), 512), sequence=8192, batch=1024)
predict(job, Layouts(tp=8, pp=4, dp=16, sequence_parallel=True)).seconds  # of a step
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import inf

from . import memory, step, work
from .constants import likely_error, of_gpu
from .job import Job, Numbers
from .layouts import Column, Layouts
from .step import Constants


@dataclass(frozen=True)
class Prediction:
    """Of all layouts of one kind; each number is a column.

    Attributes:
        time: seconds of a step by part, of which `seconds` is the sum.
        room: bytes of the fullest rank by part, of which `bytes` is the sum.
    """

    job: Job
    layouts: Layouts
    time: Mapping[str, Column]
    room: Mapping[str, Column]

    @cached_property
    def seconds(self) -> Column:
        """Of a step."""
        return sum(self.time.values())

    @cached_property
    def bytes(self) -> Column:
        """Of the fullest rank."""
        return sum(self.room.values())

    @property
    def bounds(self) -> tuple[Column, Column]:
        """Seconds between which 19 of 20 published steps lay on this kind of GPU; wider where none was published."""
        error = likely_error(self.job.cluster.gpu)  # of predicted over measured seconds, less 1
        return self.seconds / (1 + error), self.seconds / (1 - error) if error < 1 else self.seconds * inf

    @property
    def fits(self) -> Column:
        """Whether the fullest rank has room for it."""
        return self.bytes <= self.job.cluster.gpu.memory

    @property
    def tokens_per_second(self) -> Column:
        """Of all ranks together."""
        return self.job.tokens / self.seconds

    @property
    def tflops_per_gpu(self) -> Column:
        """10^12 model FLOPs per second of each GPU: nothing counts that is computed again."""
        return work.model_flops(self.job) / self.seconds / self.job.cluster.gpus / 1e12

    @property
    def mfu(self) -> Column:
        """Model FLOPs over what the GPUs could do at their peak, in the numbers of the job; from 0 to 1."""
        gpu = self.job.cluster.gpu
        return self.tflops_per_gpu * 1e12 / (gpu.peak_fp8 if self.job.numbers is Numbers.FP8 else gpu.peak)

    @property
    def hfu(self) -> Column:
        """The same with what is computed again; from 0 to 1."""
        return self.mfu * work.computed_again(self.job, self.layouts)


def predict(job: Job, layouts: Layouts, constants: Constants | None = None) -> Prediction:
    """Seconds and memory of each layout, with the constants that were fitted for this GPU.

    Layouts need not fit into memory, nor divide what they share: `refusals.py` says what stands against each.
    """
    constants = of_gpu(job.cluster.gpu) if constants is None else constants
    return Prediction(job, layouts, step.parts(job, layouts, constants), memory.parts(job, layouts))
