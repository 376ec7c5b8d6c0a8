"""Fewer bits: how fast a core writes and reads them, and what they make of a step between two nodes.

Formats are measured on one core, on 16 MB of float32; GB/s are of these. `peer` is the bar of 1 GB/s, for what ZeRO++
sends and for NVFP4; the others are listed. int8 stands beside torchao's own quantisation in the same blocks, where that
has an environment: `rankwise frameworks setup torchao` makes it.

A step is one of 4 ranks on two nodes of this machine, at the rate that is named, of a model whose tokens are few: so
what travels dominates. Parameters and gradients are in bf16. All programs live on the same ranks and take turns; a
step takes as long as on its slowest rank; medians. `ours` is ZeRO++ (8 bits for parameters, a second copy in each node,
4 bits for gradients between nodes), `peer` the same without it.
"""

import importlib.util
import sys
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

import rows
import torch
import torch.distributed as dist
from rows import Row
from torch import Tensor

from reference.choices import WireFormat
from reference.cluster import Cluster
from reference.compression.fast.tiles import TILED
from reference.config import TrainConfig
from reference.frameworks.environments import folder
from reference.memory.precision import Precision
from reference.models import GPTConfig
from reference.networks.lab.on_nodes import FREE, Program, settle
from reference.plan import DataParallelism, Plan
from reference.train import Training

NUMBERS, REPEATS = 1 << 22, 9
HELD = ("int8", "int4", "nvfp4")  # to the bar
RANKS, NODES, ROUNDS = 4, 2, 5
RATES = ("100 Mb/s", "1 Gb/s", FREE)
MODEL = GPTConfig(layers=4, width=192, heads=8, kv_heads=8, hidden=512)
CONFIG = TrainConfig(
    MODEL, batch=4, sequence=8, steps=1000, precision=Precision(torch.bfloat16, torch.bfloat16, torch.float32)
)
PLANS: Mapping[str, Plan] = MappingProxyType(
    {
        "DDP": Plan(DataParallelism.DDP),
        "ZeRO-3": Plan(DataParallelism.FSDP),
        "ZeRO++": Plan(
            DataParallelism.FSDP,
            quantize_weights=WireFormat.INT8,
            secondary_shards=RANKS // NODES,
            quantize_gradients=WireFormat.INT4,
            ranks_per_node=RANKS // NODES,
        ),
    }
)
"""Steps that are measured together. What else a plan can say of gradients belongs here, beside DDP."""


def measure(report: Callable[[Row], None]) -> None:
    """Formats, then steps at each rate."""
    formats(report)
    sys.path += map(str, folder("torchao").glob("lib/python*/site-packages"))  # behind the project's own packages
    if importlib.util.find_spec("torchao"):
        against_torchao(report)
    with Cluster(RANKS, nodes=NODES, link=FREE, timeout=3600, preload=("torch._dynamo",)) as cluster:
        for rate in RATES:
            for node in range(NODES):
                cluster.slow(node, rate)
            found = rows.medians(rows.of_ranks(list(cluster.run(in_turns, ROUNDS))))
            bar = 2.0 if rate == "100 Mb/s" else None
            report(rows.faster(f"{rate}, ZeRO++ against ZeRO-3", found["ZeRO++"], found["ZeRO-3"], "s", bar))
            report(rows.faster(f"{rate}, ZeRO++ against DDP", found["ZeRO++"], found["DDP"], "s"))


def formats(report: Callable[[Row], None]) -> None:
    """GB/s of float32 that one core writes in each format, and reads."""
    torch.set_num_threads(1)
    x = torch.randn(NUMBERS, generator=torch.Generator().manual_seed(0))
    written = {name: form.encode(x) for name, form in TILED.items()}
    calls = {f"write {name}": partial(form.encode, x) for name, form in TILED.items()}
    calls |= {f"read {name}": partial(form.decode, written[name], NUMBERS) for name, form in TILED.items()}
    for name, seconds in rows.medians(rows.interleaved(calls, REPEATS)).items():
        speed = x.nbytes / seconds / 1e9
        is_held = name.split()[1] in HELD
        report(rows.more(name, speed, 1.0, "GB/s", bar=1.0) if is_held else rows.plain(name, speed, "GB/s"))


def against_torchao(report: Callable[[Row], None]) -> None:
    """GB/s of float32 in blocks of int8, written and read, beside torchao's."""
    torch.set_num_threads(1)
    x, form = torch.randn(NUMBERS, generator=torch.Generator().manual_seed(0)), TILED["int8"]
    written, theirs = form.encode(x), torchao_written(x)
    for name, calls in {
        "write": {"ours": partial(form.encode, x), "torchao": partial(torchao_written, x)},
        "read": {"ours": partial(form.decode, written, NUMBERS), "torchao": partial(torchao_read, *theirs)},
    }.items():
        found = rows.medians(rows.interleaved(calls, REPEATS))
        ours, peer = (x.nbytes / found[each] / 1e9 for each in ("ours", "torchao"))
        report(rows.more(f"{name} int8 against torchao", ours, peer, "GB/s"))


def torchao_written(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Integers, scales and zeros of torchao's blocks."""
    from torchao.quantization.quant_primitives import MappingType, choose_qparams_affine, quantize_affine

    block = (TILED["int8"].block,)
    scales, zeros = choose_qparams_affine(
        x, MappingType.SYMMETRIC, block, torch.int8, -127, 127, scale_dtype=torch.float32
    )
    return quantize_affine(x, block, scales, zeros, torch.int8, -127, 127), scales, zeros


def torchao_read(codes: Tensor, scales: Tensor, zeros: Tensor) -> Tensor:
    """The numbers again."""
    from torchao.quantization.quant_primitives import dequantize_affine

    return dequantize_affine(codes, (TILED["int8"].block,), scales, zeros, torch.int8, -127, 127)


def in_turns(rounds: int) -> dict[str, list[float]]:
    """On a rank: the seconds of each step of each plan."""
    return rows.interleaved({name: step_of(plan) for name, plan in PLANS.items()}, rounds, settle)


def step_of(plan: Plan) -> Program:
    """A step, made ready; called by each rank."""
    training = Training(CONFIG, dist.group.WORLD, torch.device("cpu"), plan)

    def step() -> None:
        training.backward(0)
        training.update(0)

    return step


if __name__ == "__main__":
    rows.main("compression", measure)
