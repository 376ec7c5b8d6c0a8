"""Where training ends with each way to send less of gradients, to keep or multiply fewer bits, and to look at whole
matrices, beside AdamW in fp32.

What sends less of gradients stands beside torch's own hooks, too.

A GPT reads Python's documentation for some hundred steps on 2 ranks, each time from the same first weights and with the
same batches; what counts is the loss of held-out text, in nats per byte. Each row is a distance: how much more than
fp32, or than torch's hook, and the limit that it must not exceed, which is about one and a half times what was measured
first. What gives signs (`demo`, `majority-vote`) takes SGD, and a rate of its own.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

import rows
import torch
import torch.distributed as dist
from rows import Row
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from reference.choices import Compress, LinearNumbers, Optimizer
from reference.cluster import Cluster
from reference.config import TrainConfig, learning_rate
from reference.memory.precision import PRECISIONS
from reference.models import PRESETS, architecture, create, token_loss
from reference.plan import DEFAULT_PLAN
from reference.train import Training, validation_loss

RANKS, RANK, SHARE = 2, 4, 0.05
CONFIG = TrainConfig(PRESETS["tiny"], steps=200, sequence=64, compress_rank=RANK, compress_share=SHARE)
SIGNS = {"optimizer": Optimizer.SGD, "clip": float("inf"), "learning_rate": 4e-3}
WAYS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "bf16": {"compress": Compress.BF16},
        "fp16": {"compress": Compress.FP16},
        "powersgd, rank 4": {"compress": Compress.POWER_SGD},
        "top-k, 5 %": {"compress": Compress.TOP_K},
        "random-k, 5 %": {"compress": Compress.RANDOM_K},
        "one-bit": {"compress": Compress.ONE_BIT},
        "one-bit-adam": {"optimizer": Optimizer.ONE_BIT_ADAM},
        "zero-one-adam": {"optimizer": Optimizer.ZERO_ONE_ADAM},
        "one-bit-lamb": {"optimizer": Optimizer.ONE_BIT_LAMB, "learning_rate": 1e-2},
        "demo": {"compress": Compress.DEMO, **SIGNS},
        "majority-vote": {"compress": Compress.MAJORITY_VOTE, **SIGNS},
        "muon": {"optimizer": Optimizer.MUON},
        "shampoo": {"optimizer": Optimizer.SHAMPOO},
        "soap": {"optimizer": Optimizer.SOAP},
        "moments in 8 bits": {"optimizer": Optimizer.ADAMW_8_BIT},
        "products in fp8": {"linear": LinearNumbers.FP8},
        "products in fp8, delayed scales": {"linear": LinearNumbers.FP8_DELAYED},
        "products in int8": {"linear": LinearNumbers.INT8},
        "computed in bf16": {"precision": PRECISIONS["bf16"]},
        "weights in bf16, rounded by chance": {"precision": PRECISIONS["bf16-stochastic"]},
    }
)
LIMITS: Mapping[str, float] = MappingProxyType(
    {
        "bf16": 0.02,
        "fp16": 0.02,
        "powersgd, rank 4": 0.1,  # measured: 0.049
        "top-k, 5 %": 0.6,  # 0.368
        "random-k, 5 %": 1.6,  # 1.254: each element waits for 20 steps
        "one-bit": 0.8,  # 0.514
        "one-bit-adam": 0.5,  # 0.306
        "zero-one-adam": 0.45,  # 0.260
        "one-bit-lamb": 0.4,  # 0.235
        "demo": 0.1,  # 0 and below
        "majority-vote": 0.8,  # 0.503
        "muon": 0.16,  # 0.105
        "shampoo": 0.24,  # 0.156
        "soap": 0.02,  # below: 2.444 where AdamW ends with 2.482
        "moments in 8 bits": 0.02,  # below
        "products in fp8": 0.02,  # below
        "products in fp8, delayed scales": 0.03,  # 0.015
        "products in int8": 0.03,  # 0.014
        "computed in bf16": 0.02,  # below
        "weights in bf16, rounded by chance": 0.03,  # 0.012
    }
)
"""Nats that a way may lose in 200 steps of a tiny model: few steps for what is sent late."""
IMPORTS = ("torch._dynamo", "torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook", "reference.train")


def measure(report: Callable[[Row], None], config: TrainConfig = CONFIG) -> None:
    """The loss of fp32, and each distance from it; then what torch's hooks give with the same bits."""
    with Cluster(RANKS, preload=IMPORTS) as cluster:
        exact = cluster.run(ours, config)[0]
        report(rows.plain("held-out loss, fp32", exact, "nats"))
        found = {name: cluster.run(ours, replace(config, **options))[0] for name, options in WAYS.items()}
        for name, loss in found.items():
            report(rows.below(f"{name}, more than fp32", max(loss - exact, 0.0), LIMITS[name], "nats"))
        for hook, name in (("fp16", "fp16"), ("powersgd", "powersgd, rank 4")):
            theirs = cluster.run(of_torch, config, hook)[0]
            report(rows.below(f"{name}, more than torch's hook", max(found[name] - theirs, 0.0), 0.02, "nats"))


def ours(config: TrainConfig) -> float:
    """The loss of held-out text after training, as `rankwise train` does it."""
    training = Training(config, dist.group.WORLD, torch.device("cpu"), DEFAULT_PLAN)
    for step in range(config.steps):
        training.backward(step)
        training.update(step)
    return validation_loss(training)


def of_torch(config: TrainConfig, hook: str) -> float:
    """The same with torch's DDP and one of its hooks: same weights, same batches, same AdamW."""
    training = Training(replace(config, compress=Compress.NONE), dist.group.WORLD, torch.device("cpu"))
    model, group = create(architecture, config.model, config.seed), rows.plain_gloo()
    wrapped = hooked(model, group, hook)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=config.learning_rate, betas=(0.9, 0.95), weight_decay=config.weight_decay
    )
    for step in range(config.steps):
        tokens, targets = training.batches.of_step(step, group.rank(), group.size())
        part: Tensor = token_loss(wrapped(tokens), targets, training.batches.tokens)
        (part * group.size()).backward()  # DDP takes the mean
        nn.utils.clip_grad_norm_(model.parameters(), config.clip)
        optimizer.param_groups[0]["lr"] = learning_rate(config, step)
        optimizer.step()
        optimizer.zero_grad()
    learned = dict(model.named_parameters())
    with torch.no_grad():
        for shard in training.form.parts:
            shard.master.copy_(learned[shard.name])
    training.form.end_step()
    return validation_loss(training)


def hooked(model: nn.Module, group: dist.ProcessGroup, hook: str) -> DistributedDataParallel:
    """torch's DDP with a hook of its own: fp16, or powersgd of rank 4. That of bf16 takes a GPU.

    All gradients are in one bucket: with several, the hook's second sums on gloo come in an order of each rank's own,
    and ranks abort.
    """
    wrapped = DistributedDataParallel(model, process_group=group, bucket_cap_mb=1000)
    state = powerSGD_hook.PowerSGDState(
        group, matrix_approximation_rank=RANK, start_powerSGD_iter=2, min_compression_rate=1
    )
    hooks = {
        "fp16": partial(wrapped.register_comm_hook, group, default_hooks.fp16_compress_hook),
        "powersgd": partial(wrapped.register_comm_hook, state, powerSGD_hook.powerSGD_hook),
    }
    hooks[hook]()
    return wrapped


if __name__ == "__main__":
    rows.main("convergence", measure)
