"""`rankwise train`: train a GPT on ranks of this machine."""

from pathlib import Path
from typing import Annotated

from typer import Option


def train(
    ranks: Annotated[int, Option(help="Processes that share the work; with --device cuda, one for each GPU.")] = 4,
    model: Annotated[str, Option(help="tiny, demo or small.")] = "demo",
    data: Annotated[str | None, Option(help="A file of text; Python's own documentation by default.")] = None,
    steps: Annotated[int, Option(help="Updates to make.")] = 300,
    batch: Annotated[int, Option(help="Windows in a step, of all ranks together.")] = 16,
    sequence: Annotated[int, Option(help="Tokens (bytes) in a window.")] = 128,
    learning_rate: Annotated[float, Option(help="At its peak.")] = 3e-3,
    dropout: Annotated[float, Option(help="Share of what blocks compute that a step leaves out, at random.")] = 0.0,
    seed: Annotated[int, Option(help="Of weights, of the order of the text and of dropout.")] = 0,
    data_parallel: Annotated[str, Option(help="naive, flat, ddp, zero1, zero2, fsdp or hsdp.")] = "flat",
    replicas: Annotated[int | None, Option(help="Of the model, with hsdp; 2 by default.")] = None,
    tensor_parallel: Annotated[int, Option(help="Ranks that share every matrix, and read the same windows.")] = 1,
    sequence_parallel: Annotated[bool, Option("--sequence-parallel", help="And the tokens, between matrices.")] = False,
    async_tensor_parallel: Annotated[
        bool, Option("--async-tensor-parallel", help="And slices of these travel while others are multiplied.")
    ] = False,
    pipeline_parallel: Annotated[int, Option(help="Ranks that share the layers.")] = 1,
    schedule: Annotated[str, Option(help="Of a pipeline: gpipe, 1f1b, interleaved, zb-h1, zb-v, ...")] = "1f1b",
    chunks: Annotated[
        int | None, Option(help="Stages on a rank, with interleaved and breadth-first; 2 by default.")
    ] = None,
    accumulate: Annotated[int, Option("--accumulate", "--micro-batches", help="Micro-batches in a step.")] = 1,
    recompute: Annotated[str, Option(help="In backward, instead of keeping: none, selective or full.")] = "none",
    precision: Annotated[str, Option(help="fp32, tf32, bf16, fp16 or fp64.")] = "fp32",
    offload: Annotated[str, Option(help="Where optimizer state lives: none (with the model), cpu or disk.")] = "none",
    save: Annotated[str | None, Option(metavar="PATH", help="Save checkpoints in this folder.")] = None,
    save_every: Annotated[int | None, Option(help="Steps from one checkpoint to the next; 100 by default.")] = None,
    resume: Annotated[bool, Option("--resume", help="Go on from the newest checkpoint in --save.")] = False,
    device: Annotated[str, Option(help="auto, cpu (gloo) or cuda (NCCL).")] = "auto",
    log: Annotated[Path | None, Option(help="Keep every step in this file, one JSON object a line.")] = None,
) -> None:
    """Train a GPT by data, tensor and pipeline parallelism on ranks of this machine."""
    from rankwise.training import train_on_cluster
    from reference.options import configure
    from reference.saves import saves_of

    saves = saves_of(save, save_every, resume)
    config, plan = configure(
        model=model,
        data=data,
        steps=steps,
        batch=batch,
        sequence=sequence,
        learning_rate=learning_rate,
        dropout=dropout,
        seed=seed,
        data_parallel=data_parallel,
        replicas=replicas,
        tensor_parallel=tensor_parallel,
        sequence_parallel=sequence_parallel,
        async_tensor_parallel=async_tensor_parallel,
        pipeline_parallel=pipeline_parallel,
        schedule=schedule,
        chunks=chunks,
        accumulate=accumulate,
        recompute=recompute,
        precision=precision,
        offload=offload,
    )
    train_on_cluster(config, plan, saves, ranks, device, log)


COMMANDS = (train,)
