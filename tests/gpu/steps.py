"""The steps of the first half hour: each prints its numbers as lines of JSON, by the names of `expected.EXPECTED`.

    python steps.py NAME [--dry-run]

A dry run does the same on the CPU and over gloo, as small as can be: its numbers say nothing, but it has run.
"""

import json
import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist
from checks import ROOT, names_for
from expected import PEAK, SLOW, TFLOP
from launcher import launch, wrong

from reference.memory.offload import Offload
from reference.memory.precision import PRECISIONS
from reference.memory.recompute import Recompute
from reference.models import GPTConfig, gpt
from reference.models.dropout import dropout, token_seeds
from reference.parallelize import DataParallelism, Plan
from reference.train import TrainConfig, Training

Numbers = Iterator[tuple[str, float]]
MODEL = GPTConfig(layers=20, width=2048, heads=16, kv_heads=8, hidden=5632)
TASK = TrainConfig(MODEL, batch=8, sequence=2048, steps=40, precision=PRECISIONS["bf16"])
SMALL = replace(TASK, model=GPTConfig(layers=2, width=32, heads=4, kv_heads=2, hidden=48), batch=2, sequence=16)
WARM, TIMED = 3, 10  # steps
SILENT = 150.0  # seconds that a check may take


class Here:
    """Where a step runs: on the first GPU, or in a dry run on the CPU."""

    def __init__(self, dry: bool) -> None:
        self.dry = dry
        if dry:
            torch.set_num_threads(1)  # several on a busy machine wait for each other
        self.device = torch.device("cpu" if dry else "cuda:0")
        self.task = SMALL if dry else TASK
        self.backend = "gloo" if dry else "nccl"

    def synchronize(self) -> None:
        """Wait for the GPU."""
        if not self.dry:
            torch.cuda.synchronize()

    def seconds(self, do: Callable[[], object], times: int = TIMED, warm: int = WARM) -> float:
        """Of one call, on average."""
        for _ in range(warm):
            do()
        self.synchronize()
        began = time.perf_counter()
        for _ in range(times):
            do()
        self.synchronize()
        return (time.perf_counter() - began) / times


def machine(here: Here) -> Numbers:
    """Is there anything, and what?"""
    words = ["nvidia-smi"] if not here.dry else [sys.executable, "--version"]
    print(subprocess.run(words, capture_output=True, text=True, timeout=20).stdout, file=sys.stderr)
    print(sys.version, torch.__version__, torch.version.cuda, file=sys.stderr)
    yield "GPUs", torch.cuda.device_count()
    yield "file descriptors", resource.getrlimit(resource.RLIMIT_NOFILE)[1]


def ceilings(here: Here) -> Numbers:
    """What this GPU can do at all: large products, a large copy."""
    n = 64 if here.dry else 8192
    for name, dtype in (("bf16", torch.bfloat16), ("fp32", torch.float32), ("tf32", torch.float32)):
        x = torch.randn(n, n, device=here.device).to(dtype)  # of ones it is faster: fewer bits change
        with PRECISIONS[name].products():
            yield f"matmul {name}", 2 * n**3 / here.seconds(lambda x=x: x @ x, times=10) / 1e12
    x = torch.empty(1000 if here.dry else 4_000_000_000, dtype=torch.uint8, device=here.device)
    yield "copy", 2 * x.nbytes / here.seconds(x.clone) / 1e12


def checked(here: Here, ranks: int, start: str, only: tuple[str, ...] = ()) -> float:
    """How many checks some rank has not passed; what they say goes to stderr."""
    names = only or tuple(names_for(ranks, start))
    if here.dry:
        names = names[:1]
    limit = SILENT * (SLOW if here.dry else 1)
    found = wrong(launch(ranks, [str(here.device)], here.backend, start, names, limit=limit), names)
    for name, said in found.items():
        print(f"{name}: {said}", file=sys.stderr)
    return len(found)


def alone_eager(here: Here) -> Numbers:
    """All checks of one rank, as the tests start it."""
    yield "wrong: 1 rank, eager", checked(here, 1, "eager")


def alone_lazy(here: Here) -> Numbers:
    """All checks of one rank, as launch and Cluster start it."""
    yield "wrong: 1 rank, lazy", checked(here, 1, "lazy")


def together_connect(here: Here) -> Numbers:
    """May two ranks share a GPU?"""
    yield "wrong: 2 ranks connect", checked(here, 2, "lazy", ("connected",))


def together_eager(here: Here) -> Numbers:
    """All checks of two ranks, as the tests start them."""
    yield "wrong: 2 ranks, eager", checked(here, 2, "eager")


def together_lazy(here: Here) -> Numbers:
    """All checks of two ranks, as launch and Cluster start them."""
    yield "wrong: 2 ranks, lazy", checked(here, 2, "lazy")


def losses(here: Here, precision: str, device: torch.device) -> list[float]:
    """Of a small model."""
    task = replace(SMALL, steps=5 if here.dry else 100, precision=PRECISIONS[precision])
    training, found = Training(task, alone(here), device, Plan(DataParallelism.DDP)), []
    for step in range(task.steps):
        found.append(float(training.backward(step)))
        training.update(step)
    return found


def learns(here: Here) -> Numbers:
    """A hundred steps on a GPU learn what they learn on a CPU."""
    exact = losses(here, "fp32", torch.device("cpu"))
    for precision in ("fp32", "bf16"):
        found = losses(here, precision, here.device)
        yield f"loss {precision} against CPU", max(abs(a - b) / b for a, b in zip(found, exact, strict=True))


def says_where(here: Here) -> Numbers:
    """What says "cuda" computes there."""
    from rankwise.on_rank import own_device

    group = alone(here)
    training = Training(SMALL, group, own_device(), Plan())
    yield "rank computes on a GPU", float(own_device().type == "cuda")
    yield "parameters on that GPU", float(all(p.device.type == "cuda" for p in training.model.parameters()))
    words = [sys.executable, "-m", "reference.train", "--model", "tiny", "--steps", "2"]
    words += ["--device", "cpu" if here.dry else "cuda"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    print(done.stdout, done.stderr, file=sys.stderr)
    yield "launch says cuda", float("1 ranks, cuda" in done.stdout)


def fails_on_one(here: Here) -> Numbers:
    """Of two ranks one fails in its second step: it must end, and show why."""
    from pair import run_pair

    _, said = run_pair("fails", here.dry, limit=40)
    ended = time.time()
    print(said, file=sys.stderr)
    yield "seconds after an error", ended - float(re.search(r"raises at ([\d.]+)", said)[1])
    yield "traceback shown", float("Traceback" in said and "rank 1 fails" in said)


def trained(here: Here, plan: Plan, task: TrainConfig) -> float:
    """Milliseconds of a step."""
    training, step = Training(task, alone(here), here.device, plan), iter(range(task.steps))

    def one() -> None:
        number = next(step)
        training.backward(number)
        training.update(number)

    return 1e3 * here.seconds(one, times=2 if here.dry else TIMED, warm=1 if here.dry else WARM)


def step(here: Here) -> Numbers:
    """The plain step, of 8 windows and of 1."""
    ms = trained(here, Plan(), here.task)
    yield "step", ms
    yield "tokens", here.task.batch * here.task.sequence / ms * 1e3
    yield "MFU", TFLOP / ms * 1e3 / PEAK * 100
    yield "memory", 0.0 if here.dry else torch.cuda.max_memory_allocated() / 1e9
    yield "step, B = 1", trained(here, Plan(), replace(here.task, batch=1))


def ratio(name: str, plan: Plan) -> Callable[[Here], Numbers]:
    """A step of another plan, over the plain step of the same process."""

    def measured(here: Here) -> Numbers:
        plain = trained(here, Plan(), here.task)
        yield f"{name} / flat", trained(here, plan, here.task) / plain

    measured.__doc__ = f"A step of {name} over the plain step."
    return measured


def drops(here: Here) -> Numbers:
    """A step with dropout, and one without."""
    plain = trained(here, Plan(), here.task)
    dropping = replace(here.task, model=replace(here.task.model, dropout=0.1))
    yield "dropout, more a step", trained(here, Plan(), dropping) - plain


def chains(here: Here) -> Numbers:
    """Elementwise chains by themselves, forward."""
    task, model = here.task, here.task.model
    x = torch.randn(task.batch, task.sequence, model.width, dtype=torch.bfloat16, device=here.device)
    places = torch.arange(task.batch * task.sequence, device=here.device).view(task.batch, task.sequence)
    seeds = token_seeds(0, 0, places)
    yield "dropout, one place", 1e3 * here.seconds(lambda: dropout(x, 0.1, seeds, 0))
    cos_sin = gpt.rotary_cos_sin(torch.arange(task.sequence, device=here.device), model.head_dim, 1e4)
    query = x.unflatten(-1, (-1, model.head_dim)).transpose(1, 2)
    yield "turning, one layer", 1e3 * here.seconds(lambda: gpt.rotate(query, cos_sin))
    gate = torch.randn(task.batch, task.sequence, model.hidden, dtype=torch.bfloat16, device=here.device)
    yield "SwiGLU's product", 1e3 * here.seconds(lambda: gpt.swish_gated(gate, gate))


def pairs_of_tokens(here: Here) -> Numbers:
    """Memory that attention in fp32 takes, forward and backward."""
    module = gpt.Attention(here.task.model).to(here.device)
    x = torch.randn(here.task.batch, here.task.sequence, here.task.model.width, device=here.device)
    cos_sin = gpt.rotary_cos_sin(torch.arange(here.task.sequence, device=here.device), module.head_dim, 1e4)
    before = 0 if here.dry else torch.cuda.memory_allocated()
    module(x, cos_sin).sum().backward()
    yield "attention fp32, memory", 0.0 if here.dry else (torch.cuda.max_memory_allocated() - before) / 1e9


KINDS = {"GEMM": ("gemm", "cutlass", "nvjet", "cublas"), "attention": ("flash", "attention", "fmha", "sdpa")}


def profile(here: Here) -> Numbers:
    """Where a step's time goes, by the names of kernels; the largest 25 go to stderr."""
    training = Training(here.task, alone(here), here.device, Plan())
    activity = torch.profiler.ProfilerActivity
    for number in range(WARM + 1):
        watching = torch.profiler.profile(activities=[activity.CPU if here.dry else activity.CUDA])
        with watching if number == WARM else nullcontext():
            training.backward(number)
            training.update(number)
            here.synchronize()
    kernels = {e.key: e.self_cpu_time_total if here.dry else e.self_device_time_total for e in watching.key_averages()}
    shares = dict.fromkeys((*KINDS, "elementwise and rest"), 0.0)
    for name, microseconds in kernels.items():
        kind = next((kind for kind, words in KINDS.items() if any(word in name.lower() for word in words)), None)
        shares[kind or "elementwise and rest"] += microseconds / 1e3
    for name, microseconds in sorted(kernels.items(), key=lambda item: -item[1])[:25]:
        print(f"{microseconds / 1e3:10.2f} ms  {name[:100]}", file=sys.stderr)
    yield from shares.items()


def pipeline(order: str, connections: int, lazy: bool = False) -> Callable[[Here], Numbers]:
    """Two ranks that share the GPU: does a pipeline of this order end?"""
    name = f"{order}, {connections} connection{'s' if connections > 1 else ''}{', lazy loading' if lazy else ''}"

    def ends(here: Here) -> Numbers:
        from pair import run_pair

        variables = {"CUDA_DEVICE_MAX_CONNECTIONS": str(connections)}
        variables["CUDA_MODULE_LOADING"] = "LAZY" if lazy else "EAGER"
        seconds, said = run_pair(order, here.dry, limit=43, variables=variables)
        print(f"{seconds:.1f} s\n{said}", file=sys.stderr)
        if "Error" in said:
            raise RuntimeError("the ranks have failed, and did not hang")
        yield name, float(said.count("has ended") == 2)

    ends.__doc__ = f"Does a pipeline of {order} end, of two ranks that share the GPU?"
    return ends


def alone(here: Here) -> dist.ProcessGroup:
    """The world of one rank, started as launch starts it."""
    if not dist.is_initialized():
        backend = "gloo" if here.dry else "cpu:gloo,cuda:nccl"
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    return dist.group.WORLD


STEPS: dict[str, Callable[[Here], Numbers]] = {
    "machine": machine,
    "ceilings": ceilings,
    "alone_eager": alone_eager,
    "alone_lazy": alone_lazy,
    "together_connect": together_connect,
    "together_eager": together_eager,
    "together_lazy": together_lazy,
    "learns": learns,
    "says_where": says_where,
    "fails_on_one": fails_on_one,
    "step": step,
    "chains": chains,
    "profile": profile,
    "drops": drops,
    "pairs_of_tokens": pairs_of_tokens,
    "fsdp": ratio("fsdp", Plan(DataParallelism.FSDP)),
    "zero1": ratio("zero1", Plan(DataParallelism.ZERO1)),
    "zero2": ratio("zero2", Plan(DataParallelism.ZERO2)),
    "selective": ratio("selective", Plan(recompute=Recompute.SELECTIVE)),
    "full": ratio("full", Plan(recompute=Recompute.FULL)),
    "offload": ratio("offload", Plan(offload=Offload.CPU)),
} | {
    f"{order}_{connections}{'_lazy' if lazy else ''}": pipeline(order, connections, lazy)
    for connections, lazy in ((32, False), (32, True), (1, False))
    for order in ("1f1b", "zb-v", "dualpipev")
}


def main(name: str, *options: str) -> None:
    """Run one, and print what it finds as it finds it."""
    for measure, value in STEPS[name](Here("--dry-run" in options)):
        print(json.dumps({"measure": measure, "value": value}), flush=True)


if __name__ == "__main__":
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    sys.path.insert(0, str(Path(__file__).parent))
    main(*sys.argv[1:])
