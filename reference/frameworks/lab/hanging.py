"""A hang of a framework, recorded: DeepSpeed's `save_checkpoint` behind an `if rank == 0`.

    python -m reference.frameworks.lab.hanging        runs it, and writes data/hang.json

All ranks have to call `save_checkpoint`: what each holds of the optimizer it writes by itself. If the first alone does,
it waits there for the others, and they wait in their next step for it. Gloo's patience is a minute in the group of all
ranks; groups that DeepSpeed makes besides have torch's half an hour. So the first rank is told an error, and the others
are looked at while they wait. Each leaves where it was, and the last calls that torch's flight recorder has kept.
"""

import json
import os
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from reference.frameworks.catalogue import find
from reference.frameworks.environments import python_of
from reference.frameworks.plain import Course
from reference.frameworks.words import DATA

from . import runs
from .failing import RANK, meet

RANKS = 3
PATIENCE = 60  # seconds of gloo: more than a step takes on a busy machine
LOOKED_AT = 90  # seconds after the first step
KEPT = 4  # calls of each rank
FIELDS = ("process_group", "collective_seq_id", "profiling_name", "input_sizes", "time_created_ns", "is_p2p", "state")


@dataclass(frozen=True)
class Waiting:
    """What one rank of a job that hangs leaves."""

    said: str  # the error that it was told; "" while it still waits
    where: tuple[str, ...]  # functions, from the program's own down to the call
    calls: tuple[Mapping[str, Any], ...]  # the last ones, as the flight recorder has them, the oldest first


def on_rank(folder: str) -> None:
    """One rank, in DeepSpeed's environment."""
    import deepspeed

    meet()
    deepspeed.init_distributed(dist_backend="gloo", timeout=timedelta(seconds=PATIENCE), verbose=False)
    look = threading.Timer(LOOKED_AT, look_at, (folder, threading.get_ident()))
    try:
        train(deepspeed.initialize, folder, look)
    except RuntimeError as error:
        look.cancel()
        leave(folder, str(error), traceback.extract_tb(error.__traceback__))
        time.sleep(LOOKED_AT)  # when it ends, torchrun ends the others
        os._exit(1)


def train(initialize: Any, folder: str, look: threading.Timer) -> None:
    """ZeRO-1, and the mistake."""
    rank, course = dist.get_rank(), Course(dtype=torch.float32, batch=2 * RANKS, steps=2)
    model = course.model()
    config = {"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 1}}
    config["zero_allow_untested_optimizer"] = True
    engine, *_ = initialize(model=model, optimizer=course.optimizer(model.parameters()), config=config)
    for step in range(course.steps):
        tokens, targets = course.read(step, rank, RANKS)
        engine.backward(course.loss(engine(tokens), targets))
        engine.step()
        if step == 0:
            look.start()
        if rank == 0:
            engine.save_checkpoint(folder)


def look_at(folder: str, thread: int) -> None:
    """Leave where a thread is, which waits."""
    leave(folder, "", traceback.extract_stack(sys._current_frames()[thread]))


def leave(folder: str, said: str, frames: traceback.StackSummary) -> None:
    """Write what is known of this rank, unless that has been done: it may be told of the end of another."""
    file = Path(folder, f"{dist.get_rank()}.json")
    if file.exists():
        return
    names = [frame.name for frame in frames]
    kept = json.loads(torch._C._distributed_c10d._dump_fr_trace_json())["entries"][-KEPT:]
    calls = tuple({field: call[field] for field in FIELDS} for call in kept)
    left = Waiting(" ".join(said.split()), tuple(names[names.index("train") + 1 :]), calls)
    file.write_text(json.dumps(asdict(left)), encoding="utf-8")


def recorded() -> list[Waiting]:
    """What each rank of a run leaves.

    Raises:
        BadInput: if DeepSpeed is not installed.
    """
    python = python_of("deepspeed", find("deepspeed")[0])
    with tempfile.TemporaryDirectory() as folder:
        program = ["-m", "reference.frameworks.lab.hanging", RANK, folder]
        runs.started([python, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}", *program])
        return [Waiting(**json.loads(Path(folder, f"{rank}.json").read_text())) for rank in range(RANKS)]


def stored() -> list[Waiting]:
    """What each rank of a run has left once."""
    return [Waiting(**each) for each in json.loads((DATA / "hang.json").read_text(encoding="utf-8"))]


if __name__ == "__main__":
    if sys.argv[1:2] == [RANK]:
        on_rank(sys.argv[2])
    else:
        text = json.dumps([asdict(each) for each in recorded()], indent=1, ensure_ascii=False)
        (DATA / "hang.json").write_text(text + "\n", encoding="utf-8")
