"""The planner, to play with: model, GPUs, window and axes; memory, time and reasons follow at once."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

from reference.choices import Recompute
from reference.errors import BadInput
from reference.models import PRESETS
from reference.plan import PipelineSchedule
from reference.planning.hardware import GpuCluster, gpu, gpus
from reference.planning.job import Job
from reference.planning.layouts import Layouts, Sharding
from reference.planning.predict import Prediction, predict
from reference.planning.rows import require_possible

from . import explorer
from .explorer import Explorer, Menu, Slider
from .planned import ROOM, TIME, name_parts
from .style import SMALL, TEXT, Colour, Picture, bytes_text, figure, ink_on, plain, seconds_text

MODELS = ("llama3-8b", "llama3-70b", "llama3-405b", "qwen2-7b", "qwen2-72b")


@dataclass(frozen=True)
class Choice(explorer.Choice):
    """What the controls say."""

    model: str = "llama3-70b"
    gpu: str = "h100"
    gpus: int = 512
    sequence: int = 8192
    batch: int = 1024
    tp: int = 8
    pp: int = 4
    cp: int = 1
    micro_batch: int = 1
    chunks: int = 1
    sharding: str = "zero1"
    recompute: str = "none"

    @cached_property
    def plan(self) -> Prediction:
        """What this costs. Raises BadInput if it does not divide."""
        if self.gpus % (self.tp * self.pp * self.cp):
            raise BadInput(f"{self.gpus} GPUs do not divide into tp {self.tp} x cp {self.cp} x pp {self.pp}")
        cluster = GpuCluster(gpu(self.gpu), self.gpus)
        job = Job(explorer.named(PRESETS, self.model, "model"), cluster, self.sequence, self.batch)
        schedule = PipelineSchedule.INTERLEAVED if self.chunks > 1 else PipelineSchedule.ONE_F_ONE_B
        layout = Layouts(
            tp=self.tp, cp=self.cp, pp=self.pp, dp=self.gpus // (self.tp * self.pp * self.cp),
            micro_batch=self.micro_batch, chunks=self.chunks, sharding=Sharding(self.sharding),
            recompute=Recompute(self.recompute), schedule=schedule, sequence_parallel=self.tp > 1,
        )  # fmt: skip
        require_possible(job, layout)
        return predict(job, layout)

    @property
    def idle(self) -> Collection[str]:
        """Stages on a rank are those of a pipeline."""
        return ("chunks",) if self.pp == 1 else ()

    @property
    def finding(self) -> str:
        """Whether it fits, how long a step takes, and what most of the lost time is."""
        plan = self.plan
        low, high = (float(bound) for bound in plan.bounds)
        over = float(plan.bytes) - plan.job.cluster.gpu.memory
        fits = "fits" if over <= 0 else f"needs {bytes_text(over)} too much"
        lost = {part: float(plan.time[part]) for part in ("tp", "cp", "pp", "dp", "bubble")}
        most = max(lost, key=lost.__getitem__)
        part = lost[most] / float(plan.seconds)
        why = f"; most is lost to {most}, {part:.0%}" if part >= 0.005 else ""
        step = f"{seconds_text(float(plan.seconds))} a step ({seconds_text(low)} to {seconds_text(high)})"
        return f"It {fits}; {step}, MFU {float(plan.mfu):.0%}{why}"

    def draw(self) -> Picture:
        """Two bars: memory of the fullest rank against the GPU's, and a step by part."""
        picture = figure(3.2, self.finding)
        above, below = picture.subplots(2, 1)
        limit = self.plan.job.cluster.gpu.memory
        _bar(above, {part: float(size) for part, size in self.plan.room.items()}, ROOM, bytes_text, limit)
        above.axvline(limit, color=Colour.ERROR, linewidth=1.4, zorder=5)
        above.set_xlim(0, 1.15 * max(float(self.plan.bytes), limit))
        above.set_title(f"memory of the fullest rank, and the GPU's {bytes_text(limit)}", **_ABOVE)
        _bar(below, {part: float(seconds) for part, seconds in self.plan.time.items()}, TIME, seconds_text)
        below.set_xlim(0, 1.02 * float(self.plan.seconds))
        below.set_title("a step: what is computed, and what is waited for", **_ABOVE)
        return picture


_ABOVE: Mapping[str, Any] = MappingProxyType({"fontsize": TEXT, "loc": "left", "pad": 26})  # of the legend


def _bar(axes: Any, parts: Mapping[str, float], faces: Mapping[str, str], text: Any, limit: float = 0.0) -> None:
    """One bar, with the sizes of parts that have room for them, and a legend of all that can be seen."""
    whole, left = sum(parts.values()), 0.0
    plain(axes).grid(False, axis="y")
    axes.set_yticks([])
    for part, size in parts.items():
        axes.barh(0, size, 0.6, left, color=faces[part], edgecolor="white", linewidth=0.5, zorder=3)
        begin, end = left, left + size
        if begin < limit < end:  # its words stand beside the line, where there is more room
            begin, end = max((begin, limit), (limit, end), key=lambda ends: ends[1] - ends[0])
        if end - begin > 0.13 * max(whole, limit):
            words = {"fontsize": SMALL, "color": ink_on(faces[part]), "ha": "center", "va": "center", "zorder": 4}
            axes.text((begin + end) / 2, 0, f"{part}\n{text(size)}", clip_on=True, **words)
        left += size
    name_parts(axes, [parts], faces, len(faces))
    axes.xaxis.set_major_formatter(lambda value, _: text(value))


_SIZES = (1, 2, 4, 8, 16)
CONTROLS: Mapping[str, Menu | Slider] = MappingProxyType(
    {
        "model": Menu("model", MODELS),
        "gpu": Menu("GPU", tuple(gpus())),
        "gpus": Menu("GPUs", tuple(2**k for k in range(3, 18))),
        "sequence": Menu("sequence", tuple(2**k for k in range(11, 18))),
        "batch": Menu("windows of a step", tuple(2**k for k in range(5, 13))),
        "tp": Menu("tp", _SIZES),
        "pp": Menu("pp", _SIZES),
        "cp": Menu("cp", _SIZES),
        "micro_batch": Menu("micro-batch", _SIZES),
        "chunks": Slider("stages of a rank", 1, 10, 1),
        "sharding": Menu("sharding", tuple(map(str, Sharding))),
        "recompute": Menu("recompute", tuple(map(str, Recompute))),
    }
)
"""By field of `Choice`: what is trained on what, and how it is laid out."""


def explore(**choice: Any) -> Explorer:
    """Memory, time and reasons; begin with any fields of `Choice`: `explore(model="llama3-8b", gpus=64)`."""
    return Explorer(Choice(**choice), CONTROLS)
