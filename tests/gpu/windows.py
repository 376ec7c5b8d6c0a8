"""The checks of context parallelism on every rank: each returns what it found wrong, as those in `family.py`."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import torch
from family import CLOSE, EXACT, config_for, difference_of
from torch import Tensor
from torch.distributed import ProcessGroup

from reference.choices import ContextLayout, ContextMethod
from reference.context_parallel import kernels, plain
from reference.memory.precision import PRECISIONS
from reference.models import GPTConfig
from reference.oracle import on_ranks, one_process, relative_difference
from reference.parallelize import DataParallelism, Plan

MODEL = GPTConfig(layers=2, width=48, heads=12, kv_heads=4, hidden=40, dropout=0.1)  # 12 heads: of 2, 3, 4 and 6 ranks
BATCH, HEADS, KV, TOKENS = 2, 8, 2, 96
HEAD_DIMS = 64, 3  # the kernel of GPUs takes multiples of 16 bytes
BOUNDS = {torch.float64: 1e-10, torch.float32: 2e-3, torch.bfloat16: 3e-2, torch.float16: 1e-2}  # TF32 may be on


def attention_kernels(group: ProcessGroup, device: str) -> list[str]:
    """This device's kernel of a block gives what attention by hand gives in float64, forward and backward."""
    found = []
    seen = torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril().triu(-20)
    for dtype, size, (causal, mask) in product(BOUNDS, HEAD_DIMS, ((False, None), (True, None), (False, seen))):
        exact = [torch.randn(BATCH, heads, TOKENS, size).double() for heads in (HEADS, KV, KV, HEADS)]
        allowed = torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril() if causal else mask
        query, key, value, gradient = exact = [x.to(dtype).double() for x in exact]
        out, lse = plain.attend(query, key, value, allowed)
        expected = (out, lse, *plain.attend_backward(gradient, query, key, value, out, lse, allowed))
        query, key, value, gradient = (x.to(device, dtype) for x in exact)
        computed: list[Tensor] = [*kernels.forward(query, key, value, causal, mask)]
        computed += kernels.backward(gradient, query, key, value, *computed, causal, mask)
        far = max(relative_difference(x.cpu(), right) for x, right in zip(computed, expected, strict=True))
        found += [f"{dtype}, heads of {size}, causal {causal}: {far:.2g}"] if far > BOUNDS[dtype] else []
    return found


def plans(n: int) -> Iterator[Plan]:
    """Every method, with layouts in turn; beside FSDP, and beside tensor parallelism where ranks are left for it."""
    for number, method in enumerate(ContextMethod):
        layout = list(ContextLayout)[number % len(ContextLayout)]
        neighbours = min(u for u in range(2, n + 1) if n % u == 0) if method is ContextMethod.USP else None
        way = {"context_method": method, "context_layout": layout, "context_neighbours": neighbours}
        yield Plan(DataParallelism.FSDP, context_parallel=n, **way)
        if n % 2 == 0 and n > 2 and neighbours is None:
            yield Plan(tensor_parallel=2, sequence_parallel=True, context_parallel=n // 2, **way)


def windows(group: ProcessGroup, device: str) -> list[str]:
    """Ranks that share windows equal one process in float64; the windows do not divide."""
    config = replace(config_for(group, "fp64"), model=MODEL, sequence=29, batch=2, steps=3)
    expected = one_process(config)
    return [
        f"{plan}: {difference}"
        for plan in plans(group.size())
        if max((difference := difference_of(config, group, device, plan, expected)).values()) > EXACT
    ]


def windows_mixed(group: ProcessGroup, device: str) -> list[str]:
    """In bf16 and fp16 they learn what one process learns in float64, by the kernels that have 16 bits."""
    found = []
    for name, bound in CLOSE.items():
        config = replace(config_for(group, name), model=MODEL, sequence=29, batch=2)
        expected = one_process(replace(config, precision=PRECISIONS["fp64"])).losses
        for plan in plans(group.size()):
            far = relative_difference(on_ranks(config, group, device, plan).losses, expected)
            found += [f"{plan} in {name}: losses differ by {far:.2g}"] if far > bound else []
    return found
