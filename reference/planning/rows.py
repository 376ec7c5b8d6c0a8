"""Rows of a file, predicted one by one: a training in columns of numbers and words, and what it costs.

| columns                                                                | what is usual, where a column is missing |
|------------------------------------------------------------------------|------------------------------------------|
| name, source                                                           | row 1, row 2, ...                        |
| gpu, gpus, gpus_per_node                                               | gpu and gpus must be said; 8             |
| layers, hidden, ffn, gated, heads, kv_heads, head_size, vocab, tied    | the first two must be said; 4 hidden, 0, |
|                                                                        | hidden / 128, heads, hidden / heads,     |
|                                                                        | 51,200, tied where not gated             |
| experts, top_k, expert_ffn, shared_experts, dense_layers               | no experts; 2, ffn, 0, 0                 |
| seq, global_batch, micro_batch                                         | the first two must be said; the fastest  |
|                                                                        | that fits                                |
| tp, pp, dp, cp, ep, etp, chunks                                        | 1; dp is what is left of the GPUs        |
| sharding, sequence_parallel, recompute, schedule, precision, attention | none, 0, none, 1f1b or, with chunks,     |
|                                                                        | interleaved, bf16; see `usual_attention` |
"""

import csv
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from reference.choices import Recompute
from reference.errors import BadInput
from reference.models.config import GPTConfig
from reference.models.moe_config import MoEConfig
from reference.plan import PipelineSchedule

from .hardware import MOST, GpuCluster, gpu
from .job import AttentionKernel, Job, Numbers
from .layouts import Layouts, Sharding
from .predict import Prediction, predict

WORDS = {
    "sharding": Sharding,
    "recompute": Recompute,
    "schedule": PipelineSchedule,
    "precision": Numbers,
    "attention": AttentionKernel,
}
FLAGS = ("gated", "sequence_parallel", "tied")
NEEDED = ("gpu", "gpus", "layers", "hidden", "seq", "global_batch")
NUMBERS = (
    *("gpus", "gpus_per_node", "layers", "hidden", "ffn", "heads", "kv_heads", "head_size", "vocab", "seq"),
    *("global_batch", "micro_batch", "tp", "pp", "dp", "cp", "ep", "etp", "chunks"),
    *("experts", "top_k", "expert_ffn", "shared_experts", "dense_layers"),
)
COLUMNS = ("name", "source", "gpu", *NUMBERS, *FLAGS, *WORDS)
MAY_BE_ZERO = ("experts", "top_k", "expert_ffn", "shared_experts", "dense_layers", "head_size")


Row = Mapping[str, str]


def read(path: str | Path) -> list[Row]:
    """The rows of a file with commas, whose first line names the columns, in any order.

    Raises:
        BadInput: if it cannot be read, or has a column that is not known, or lacks one that is needed.
    """
    try:
        with Path(path).expanduser().open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadInput(f"{path} cannot be read as rows with commas: {error}") from error
    if not rows:
        raise BadInput(f"{path} has no rows: its first line names columns, and each line after it is a training")
    for at, row in enumerate(rows, 1):
        if None in row or None in row.values():
            raise BadInput(
                f"{path}, row {at}: it has {'more' if None in row else 'fewer'} values than there are columns"
            )
    return rows


def job_and_layout(row: Row, at: int = 1) -> tuple[Job, Layouts]:
    """What one row says.

    Args:
        row: its values, as text.
        at: which row it is, for messages.

    Raises:
        BadInput: naming the row and the column, if a value makes no sense, or the ranks or the batch do not divide.
    """
    try:
        return _of(_Values({name: text.strip() for name, text in row.items() if text and text.strip()}))
    except BadInput as error:
        called = f" ({row['name']})" if row.get("name") else ""
        raise BadInput(f"row {at}{called}: {error}") from None


class _Values:
    """A row's values by their kinds."""

    def __init__(self, texts: dict[str, str]) -> None:
        if unknown := [name for name in texts if name not in COLUMNS]:
            raise BadInput(f"no column is called {unknown[0]!r}; there are {', '.join(COLUMNS)}")
        if missing := [name for name in NEEDED if name not in texts]:
            raise BadInput(f"it does not say {', '.join(missing)}")
        self.texts = texts

    def number(self, name: str, usual: float) -> int:
        if name not in self.texts:
            return int(usual)
        try:
            value = float(self.texts[name])
        except ValueError:
            value = -1.0
        least = 0 if name in MAY_BE_ZERO else 1
        if not value.is_integer() or not least <= value <= MOST:
            raise BadInput(f"{name} is a whole number, {least} to {MOST:,}, not {self.texts[name]!r}")
        return int(value)

    def flag(self, name: str, usual: bool) -> bool:
        text = self.texts.get(name, str(int(usual))).lower()
        known = {"0": False, "1": True, "false": False, "true": True, "no": False, "yes": True}
        if text not in known:
            raise BadInput(f"{name} is 0 or 1, not {text!r}")
        return known[text]

    def word(self, name: str, usual: str) -> str:
        text, kind = self.texts.get(name, usual).lower(), WORDS[name]
        if text not in list(kind):
            raise BadInput(f"{name} is one of {', '.join(kind)}, not {text!r}")
        return kind(text)


def _of(values: _Values) -> tuple[Job, Layouts]:
    number = values.number
    cluster = GpuCluster(gpu(values.texts["gpu"]), number("gpus", 0), number("gpus_per_node", 8))
    model, is_gated = _model(values), values.flag("gated", False)
    tp, pp, cp = (number(name, 1) for name in ("tp", "pp", "cp"))
    dp = number("dp", max(1, cluster.gpus // (tp * pp * cp)))
    chunks = number("chunks", 1)
    schedule = values.word("schedule", PipelineSchedule.ONE_F_ONE_B)
    if chunks > 1 and schedule is PipelineSchedule.ONE_F_ONE_B:
        schedule = PipelineSchedule.INTERLEAVED  # 1F1B of several stages on a rank
    layout = Layouts(
        tp, cp, dp, pp, number("ep", 1), number("etp", 1), number("micro_batch", 1), chunks,
        values.word("sharding", Sharding.NONE), values.word("recompute", Recompute.NONE),
        schedule, values.flag("sequence_parallel", False) and tp > 1,
    )  # fmt: skip
    attention = values.word("attention", usual_attention(cluster.gpu.name, is_gated, layout.sharding))
    numbers = values.word("precision", Numbers.BF16)
    job = Job(model, cluster, number("seq", 0), number("global_batch", 0), numbers, attention)
    if "micro_batch" not in values.texts:
        layout = replace(layout, micro_batch=usual_micro_batch(job, layout))
    require_possible(job, layout)
    return job, layout


def usual_micro_batch(job: Job, layout: Layouts) -> int:
    """What a run would have tried out, where a row is silent: the fastest that fits, of 1, 2, 4, ... windows."""
    sizes = [b for b in (1, 2, 4, 8, 16, 32) if job.batch % (int(layout.dp) * b) == 0]
    if not sizes:
        return 1
    found = predict(job, replace(layout, micro_batch=np.array(sizes)))
    return sizes[int(np.argmin(np.where(found.fits, found.seconds, np.inf)))]


def usual_attention(gpu: str, is_gated: bool, sharding: Sharding) -> AttentionKernel:
    """How published runs treated the scores, where a row is silent.

    GPTs without gated feed-forwards on V100s and A100s were trained by Megatron's pipelines of 2020 to 2022, which
    wrote them to memory; everything else came after flash attention (Dao et al. 2022).
    """
    old = gpu.startswith(("V100", "A100")) and not is_gated and sharding is not Sharding.FSDP
    return AttentionKernel.WRITTEN if old else AttentionKernel.FLASH


def _model(values: _Values) -> GPTConfig:
    number, is_gated = values.number, values.flag("gated", False)
    hidden = number("hidden", 0)
    heads = number("heads", max(1, hidden // 128))
    sizes = {
        "layers": number("layers", 0),
        "width": hidden,
        "heads": heads,
        "kv_heads": number("kv_heads", heads),
        "hidden": number("ffn", 4 * hidden),
        "vocabulary": number("vocab", 51_200),
        "tied": values.flag("tied", not is_gated),
        "head_size": number("head_size", 0) or _head_size(hidden, heads),
    }
    if not number("experts", 0):
        return GPTConfig(**sizes, gated=is_gated, activation="silu" if is_gated else "gelu")
    top_k = number("top_k", 2)
    experts = {name: number(name, 0) for name in ("experts", "shared_experts", "dense_layers")}
    return MoEConfig(
        **sizes, **experts, top_k=top_k, expert_hidden=number("expert_ffn", sizes["hidden"]), normalised=top_k > 1
    )


def _head_size(hidden: int, heads: int) -> int | None:
    """As wide as it comes; a little wider where heads do not divide the width (as in gpt-oss)."""
    return None if hidden % (2 * heads) == 0 else 2 * -(-hidden // (2 * heads))


def require_possible(job: Job, layout: Layouts) -> None:
    """See that one layout divides what it shares.

    Raises:
        BadInput: that says what does not divide.
    """
    t, c, d, p, ep, etp, b, v = (int(getattr(layout, name)) for name in _SIZES)
    model, gpus = job.model, job.cluster.gpus
    if t * c * d * p != gpus:
        raise BadInput(f"tp {t} x cp {c} x dp {d} x pp {p} are {t * c * d * p} ranks, and there are {gpus} GPUs")
    if model.heads % t or model.hidden % t:
        raise BadInput(f"{model.heads} heads and {model.hidden} features do not divide among {t} tensor-parallel ranks")
    if job.sequence % c:
        raise BadInput(f"{job.sequence} tokens of a window do not divide among {c} ranks")
    if job.batch % (d * b):
        raise BadInput(f"{job.batch} windows do not divide among {d} replicas with micro-batches of {b}")
    if p * v > model.layers + 2:  # embedding and head may be stages' only layers
        raise BadInput(f"{model.layers} layers do not make {p * v} stages")
    if ep * etp > 1 and not model.experts:
        raise BadInput(f"ep {ep} and etp {etp} share out experts, and this model has none")
    if model.experts and (ep > model.experts or t * c * d % (ep * etp)):
        raise BadInput(f"{model.experts} experts on {t * c * d} ranks of a stage do not divide by ep {ep} x etp {etp}")


_SIZES = ("tp", "cp", "dp", "pp", "ep", "etp", "micro_batch", "chunks")


def predict_rows(path: str | Path) -> list[dict[str, object]]:
    """One object for each row of a file, in its order.

    Raises:
        BadInput: naming the row, if one is wrong; nothing is predicted then.
    """
    rows = read(path)
    asked = [job_and_layout(row, at) for at, row in enumerate(rows, 1)]
    return [
        answer(row.get("name") or f"row {at}", predict(job, layout))
        for at, (row, (job, layout)) in enumerate(zip(rows, asked, strict=True), 1)
    ]


def answer(name: str, found: Prediction) -> dict[str, object]:
    """Of one layout, in the units of papers: seconds, 10^12 FLOP/s, percent, 10^9 bytes."""
    return {
        "name": name,
        "step_s": float(found.seconds),
        "tflops_per_gpu": float(found.tflops_per_gpu),
        "hfu_pct": 100 * float(found.hfu),
        "mfu_pct": 100 * float(found.mfu),
        "tokens_per_second": float(found.tokens_per_second),
        "memory_gb": float(found.bytes) / 1e9,
        "fits": bool(np.all(found.fits)),
        "seconds": {part: float(seconds) for part, seconds in found.time.items()},
        "memory_parts_gb": {part: float(size) / 1e9 for part, size in found.room.items()},
    }


def write(answers: list[dict[str, object]], path: str | Path) -> None:
    """As a list of JSON."""
    Path(path).expanduser().write_text(json.dumps(answers, indent=1) + "\n", encoding="utf-8")
