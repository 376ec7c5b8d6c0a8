"""What was published: steps that were measured, as rows of `rows.py`, each with its source.

The files lie in `data/`, as they were gathered. Those that begin with "train" are what constants are fitted to, those
that begin with "validate" are what the fit is judged by. What a file leaves open of a model stands here.
"""

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property

from .hardware import DATA
from .job import Job
from .layouts import Layouts
from .rows import job_and_layout

MPT = {
    # name: layers, width, heads; llm-foundry, scripts/train/yamls/pretrain, at 50,368 words.
    "125m": (12, 768, 12),
    "350m": (24, 1024, 16),
    "760m": (24, 1536, 12),
    "1b": (24, 2048, 16),
    "3b": (32, 2560, 20),
    "7b": (32, 4096, 32),
    "13b": (40, 5120, 40),
    "30b": (48, 7168, 56),
    "70b": (80, 8192, 64),
}

LLAMA = {"gated": 1, "vocab": 128_256, "kv_heads": 8}
BRIDGE: Mapping[str, Mapping[str, object]] = {
    # Llama 3: arXiv:2407.21783, table 3. Qwen3: arXiv:2505.09388, tables 1 and 2. gpt-oss: its model card, table 1.
    "LLAMA3_8B": {**LLAMA, "layers": 32, "hidden": 4096, "ffn": 14_336, "heads": 32},
    "LLAMA3_70B": {**LLAMA, "layers": 80, "hidden": 8192, "ffn": 28_672, "heads": 64},
    "LLAMA3.1_405B": {**LLAMA, "layers": 126, "hidden": 16_384, "ffn": 53_248, "heads": 128},
    "Qwen3_30B_a3B": {
        **{"gated": 1, "layers": 48, "hidden": 2048, "ffn": 6144, "heads": 32, "kv_heads": 4, "head_size": 128},
        **{"vocab": 151_936, "experts": 128, "top_k": 8, "expert_ffn": 768},
    },
    "Qwen3_235B_a22B": {
        **{"gated": 1, "layers": 94, "hidden": 4096, "ffn": 12_288, "heads": 64, "kv_heads": 4, "head_size": 128},
        **{"vocab": 151_936, "experts": 128, "top_k": 8, "expert_ffn": 1536},
    },
    "GPT OSS 120B": {
        **{"gated": 1, "layers": 36, "hidden": 2880, "ffn": 2880, "heads": 64, "kv_heads": 8, "head_size": 64},
        **{"vocab": 201_088, "experts": 128, "top_k": 4, "expert_ffn": 2880},
    },
    # DeepSeek-V3: arXiv:2412.19437, sec. 4.2. Its keys and values are made of one latent vector of 576 numbers, for
    # which one head of keys and values stands here: a layer's projections have 237 million weights for 187 million, and
    # 128 heads of keys, as there are of queries, would have 470 million.
    "DeepSeekV3": {
        **{"gated": 1, "layers": 61, "hidden": 7168, "ffn": 18_432, "heads": 128, "kv_heads": 1, "head_size": 128},
        **{"vocab": 129_280, "experts": 256, "top_k": 8, "expert_ffn": 2048, "shared_experts": 1, "dense_layers": 3},
    },
}


@dataclass(frozen=True)
class Measurement:
    """A step that was timed.

    Attributes:
        row: as `rows.job_and_layout` takes it.
        seconds: of a step.
        file: in `data/`.
    """

    row: Mapping[str, str]
    seconds: float
    file: str

    @property
    def is_for_fitting(self) -> bool:
        """Whether constants may depend on it."""
        return self.file.startswith("train")

    @property
    def kind_of_gpu(self) -> str:
        """a100, h100, ..."""
        return self.row["gpu"].split("_")[0]

    @cached_property
    def asked(self) -> tuple[Job, Layouts]:
        """What was trained, and how it was laid out."""
        return job_and_layout(self.row)


def table(file: str) -> list[dict[str, str]]:
    """Rows of a file, as they were gathered."""
    with (DATA / f"{file}.csv").open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


@cache
def measurements() -> tuple[Measurement, ...]:
    """All steps whose seconds were published, of all files."""
    return (*_megatron("train_a100_megatron"), *_megatron("validate_a100_megatron"), *_fsdp(), *_bridge(), *_h100(),
            *_zero_bubble())  # fmt: skip


def _row(**values: object) -> dict[str, str]:
    return {name: str(value) for name, value in values.items() if value not in (None, "")}


def _megatron(file: str) -> Iterator[Measurement]:
    """GPTs on A100s, with layers computed again, of vTrain's data (arXiv:2312.12391)."""
    for at, row in enumerate(table(file)):
        sizes = {name: row[name] for name in ("gpus", "layers", "hidden", "heads", "seq", "global_batch")}
        axes = {"tp": row["tp"], "pp": row["pp"], "dp": row["dp"], "micro_batch": row["microbatch"]}
        named = _row(name=f"vTrain {at}", source=row["source"], gpu="a100", recompute="full", **sizes, **axes)
        yield Measurement(named, float(row["iter_ms"]) / 1e3, file)


def _fsdp() -> Iterator[Measurement]:
    """MPTs on A100s with PyTorch's FSDP, of llm-foundry's README."""
    for at, row in enumerate(table("train_a100_fsdp")):
        layers, hidden, heads = MPT[row["model"]]
        named = _row(
            name=f"MPT {row['model']} {at}", source=row["source"], gpu=row["gpu"], gpus=row["gpus"], seq=row["seq"],
            layers=layers, hidden=hidden, heads=heads, vocab=50_368, global_batch=row["global_batch"],
            micro_batch=row["microbatch"], sharding="fsdp", recompute="full" if row["act_ckpt"] == "True" else "none",
        )  # fmt: skip
        tokens = int(row["global_batch"]) * int(row["seq"]) / int(row["gpus"])
        yield Measurement(named, tokens / float(row["tokens_s_gpu"]), "train_a100_fsdp")


def _bridge() -> Iterator[Measurement]:
    """Llama 3, Qwen3, gpt-oss and DeepSeek-V3 on H100s and later GPUs, of Megatron-Bridge's summary.

    DeepSeek-V3 has one layer more, that predicts a token further (MTP), where the summary does not say "w/o MTP": it
    counts 260 GFLOPs for a token there, and 250 without.
    """
    for at, row in enumerate(table("train_megatron_bridge")):
        model, gpu = row["model"].split(" (")[0], row["system"].removeprefix("DGX-").lower().replace("gb300", "b300")
        tokens_per_second, fsdp, tp, pp, cp, chunks, ep = (
            row[name].split()[0].replace("n/a", "1") for name in ("tokens_s_gpu", "fsdp", "tp", "pp", "cp", "vp", "ep")
        )
        sizes = dict(BRIDGE[model])
        if model == "DeepSeekV3" and "w/o MTP" not in row["model"]:
            sizes["layers"] = 61 + 1
        named = _row(
            name=f"{row['model']} {gpu} {at}", source=row["source"], gpu=gpu, gpus=row["gpus"],
            seq=row["seq"], global_batch=row["gbs"], micro_batch=row["mbs"], tp=tp, pp=pp, cp=cp, ep=ep,
            chunks=chunks, precision="bf16" if row["precision"] == "BF16" else "fp8",
            sharding="fsdp" if int(fsdp) > 1 else "zero1", sequence_parallel=int(int(tp) > 1), **sizes,
        )  # fmt: skip
        tokens = int(row["gbs"]) * int(row["seq"]) / int(row["gpus"])
        yield Measurement(named, tokens / float(tokens_per_second), "train_megatron_bridge")


def _h100() -> Iterator[Measurement]:
    """GPTs on H100s, of Megatron-LM's README: sequence parallelism and a distributed optimizer, s 4096, V 131,072."""
    from .work import model_flops

    for row in table("validate_h100_megatron"):
        sizes = {name: row[name] for name in ("gpus", "layers", "hidden", "heads", "tp", "pp", "dp", "global_batch")}
        named = _row(
            name=f"GPT {row['params_b']}B", source=row["source"], gpu="h100", seq=4096, vocab=131_072, sharding="zero1",
            sequence_parallel=int(int(row["tp"]) > 1), **sizes,
        )  # fmt: skip
        flops = model_flops(job_and_layout(named)[0]) / int(row["gpus"])
        yield Measurement(named, flops / (1e12 * float(row["tflops_per_gpu_model"])), "validate_h100_megatron")


def _zero_bubble() -> Iterator[Measurement]:
    """GPTs in pipelines on A100s (arXiv:2401.10241, tables 4 and 5): those that were measured."""
    schedules = {"1F1B": ("1f1b", 1), "1F1B-I": ("interleaved", None), "ZB-1p": ("zb-h1", 1), "ZB-2p": ("zb-h2", 1)}
    for row in table("validate_zero_bubble"):
        if not row["samples_per_gpu_s"] or row["schedule"] not in schedules:
            continue
        schedule, chunks = schedules[row["schedule"]]
        p, m, b = int(row["pp_gpus"]), int(row["n_microbatches"]), int(row["microbatch"])
        named = _row(
            name=f"zero bubble {row['model']} {row['schedule']} m={m}", source=row["source"], gpu="a100", gpus=p,
            layers=row["layers"], hidden=row["hidden"], heads=row["heads"], seq=row["seq"], pp=p, micro_batch=b,
            global_batch=m * b, schedule=schedule, chunks=chunks or (int(row["layers"]) + 2) // p,
        )  # fmt: skip
        yield Measurement(named, m * b / p / float(row["samples_per_gpu_s"]), "validate_zero_bubble")
