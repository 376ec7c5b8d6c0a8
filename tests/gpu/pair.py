"""Two ranks on one GPU that do one thing together, under a limit: `run_pair`.

python pair.py WHAT RANK STORE [--dry-run]
"""

import gc
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from checks import ROOT
from expected import SLOW
from launcher import CONNECTIONS, SHARING

from reference import launch, on_gpus
from reference.memory.precision import PRECISIONS
from reference.models import GPTConfig
from reference.parallelize import DataParallelism, PipelineSchedule, Plan
from reference.train import TrainConfig, Training

MODEL = GPTConfig(layers=8, width=256, heads=4, kv_heads=2, hidden=512)
TASK = TrainConfig(MODEL, steps=4, batch=8, sequence=256, precision=PRECISIONS["bf16"])
TINY = replace(TASK, model=replace(MODEL, width=16, hidden=24), sequence=8)
ONE_THREAD = {"OMP_NUM_THREADS": "1"}  # as torchrun has it
FAILS = "fails"  # what to do, beside the names of orders


def run_pair(what: str, dry: bool, limit: float, variables: Mapping[str, str] | None = None) -> tuple[float, str]:
    """Have two ranks do it.

    Args:
        what: `FAILS`: rank 1 raises in its second step; else the order of a pipeline.
        dry: over gloo, on the CPU.
        limit: seconds, after which both are ended; more of them where it is dry.
        variables: of their environment.

    Returns:
        Seconds until one had failed, or all had ended; and what they said.
    """
    with tempfile.TemporaryDirectory() as folder:
        words = [Path(folder, f"words{rank}") for rank in range(2)]
        ranks = [
            subprocess.Popen(
                [sys.executable, __file__, what, str(rank), f"{folder}/store", *(["--dry-run"] if dry else [])],
                env=CONNECTIONS
                | ONE_THREAD
                | os.environ
                | SHARING
                | {"NCCL_HOSTID": f"rank{rank}"}
                | dict(variables or {}),
                stdout=words[rank].open("w"),
                stderr=subprocess.STDOUT,
                cwd=ROOT,
            )
            for rank in range(2)
        ]
        limit *= SLOW if dry else 1
        began = time.monotonic()
        while time.monotonic() < began + limit and any(rank.poll() is None for rank in ranks):
            if what == FAILS and ranks[1].poll() is not None:
                break
            time.sleep(0.05)
        seconds = time.monotonic() - began
        for rank in ranks:  # both before either is waited for: one that is left alone would say that the other is gone
            rank.kill()
        for rank in ranks:
            rank.wait()
        return seconds, "\n".join(each.read_text(errors="replace")[-2000:] for each in words)


def main(what: str, rank: str, store: str, *options: str) -> None:
    """Be one of the two."""
    dry = "--dry-run" in options
    device = torch.device("cpu" if dry else "cuda:0")
    if not dry:
        torch.cuda.set_device(device)
    dist.init_process_group(
        "cpu:gloo,cuda:gloo" if dry else "cpu:gloo,cuda:nccl",
        store=dist.FileStore(store, 2),
        rank=int(rank),
        world_size=2,
        timeout=timedelta(seconds=60),
    )
    if dry:
        on_gpus.is_gpu = lambda device: True  # all that a GPU asks is done on the CPU, too
    on_gpus.require_connections = lambda channels: None  # what it would refuse is tried here
    task = TINY if dry else TASK
    if what == FAILS:
        fail(task, device)
    train(task, device, Plan(DataParallelism.DDP, 4, pipeline_parallel=2, schedule=PipelineSchedule(what)))
    gc.collect()
    dist.destroy_process_group()
    print(f"rank {rank} has ended", flush=True)


def train(task: TrainConfig, device: torch.device, plan: Plan) -> None:
    """All steps."""
    training = Training(task, dist.group.WORLD, device, plan)
    for step in range(task.steps):
        training.backward(step)
        training.update(step)


def fail(task: TrainConfig, device: torch.device) -> None:
    """Through `reference.launch`, whose rank 1 raises in its second step."""
    training = Training(task, dist.group.WORLD, device, Plan(DataParallelism.DDP))

    def run(*arguments: object) -> None:
        for step in range(1000):
            if step == 1 and dist.get_rank() == 1:
                print(f"raises at {time.time()}", flush=True)
                raise RuntimeError("rank 1 fails")
            training.backward(step)
            training.update(step)

    launch.join = lambda: None  # this process is a rank already
    launch.agree = lambda arguments: ()
    launch.run = run
    sys.exit(launch.main())


if __name__ == "__main__":
    main(*sys.argv[1:])
