"""Branches of two kinds of text: `python -m reference.decentralized.lab.branching` merges them in three ways.

A small GPT learns a little of both, Python's documentation and the sources of its library. Then each of two ranks
trains its branch on one of them, without a message. Beside what they come to stands a model that has seen as many
tokens, of both, in one training.
"""

import inspect
from collections.abc import Callable, Sequence

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from reference.cluster import Cluster
from reference.collectives.communicator import Communicator
from reference.collectives.default import over
from reference.models import GPT, GPTConfig, create
from reference.models.data import Batches, python_text
from reference.models.files import Text
from reference.models.moe import MoE
from reference.models.moe_config import mixed_config

from ..branches import average, ensemble, into_experts

PRELOAD = ("reference.decentralized.lab.branching",)
SMALL = GPTConfig(layers=2, width=32, heads=2, kv_heads=2, hidden=64)
SEED, BRANCH, AFTER = 60, 120, 40  # steps: before, apart, and after a merge into experts
MODULES = (np.ma.core, inspect, torch.nn.functional, torch.nn.modules.module)


def texts() -> dict[str, Text]:
    """Two kinds of text, by name."""
    sources = "".join(inspect.getsource(module) for module in MODULES)
    return {"documentation": python_text(), "sources": np.frombuffer(sources.encode(), dtype=np.uint8)}


def batches(text: Text) -> Batches:
    """Sixteen windows of 32 bytes a step."""
    return Batches.of(text, sequence=32, batch=16)


def learn(model: nn.Module, read: Sequence[Batches], steps: range) -> None:
    """Steps of AdamW on one text after another, in turns."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95))
    for step in steps:
        tokens, targets = read[step % len(read)].of_step(step // len(read))
        loss = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@torch.no_grad()
def log_probabilities(model: nn.Module, read: Batches) -> Tensor:
    """Of held-out tokens that came: [B, S]."""
    tokens, targets = (torch.cat(each)[:256] for each in zip(*read.validation(), strict=True))
    return model(tokens).log_softmax(2).gather(2, targets[..., None])[..., 0]


def on_a_rank() -> dict[str, list[float]]:
    """Train a branch, and merge it with the other one's. Returns losses in nats per byte, of each text, by way."""
    communicator: Communicator = over(dist.group.WORLD)
    read = [batches(text) for text in texts().values()]

    def losses(of: Callable[[Batches], Tensor]) -> list[float]:
        return [float(-of(each).mean()) for each in read]

    def model_losses(model: nn.Module) -> list[float]:
        return losses(lambda each: log_probabilities(model, each))

    found, branch, together = {}, create(GPT, SMALL), create(GPT, SMALL)
    learn(branch, read, range(SEED))
    together.load_state_dict(branch.state_dict())
    found["before"] = model_losses(branch)
    learn(together, read, range(SEED, SEED + 2 * BRANCH))
    found["one training of both"] = model_losses(together)
    learn(branch, [read[communicator.rank()]], range(SEED, SEED + BRANCH))
    found["a branch alone"] = model_losses(branch)

    found["ensemble"] = losses(lambda each: ensemble(log_probabilities(branch, each), communicator))
    mixed = create(MoE, mixed_config(SMALL, communicator.size()))
    mixed.load_state_dict(into_experts(branch.state_dict(), SMALL, communicator))
    found["experts, at once"] = model_losses(mixed)
    learn(mixed, read, range(SEED, SEED + AFTER))
    found[f"experts, and {AFTER} steps"] = model_losses(mixed)
    average(branch, communicator)
    found["average"] = model_losses(branch)
    return found


def main() -> None:
    """Print losses on both texts."""
    with Cluster(2, preload=PRELOAD) as cluster:
        first, second = cluster.run(on_a_rank)
    print(f"{'loss, nats per byte':26}" + "".join(f"{name:>16}" for name in texts()))
    for name, row in first.items():
        if name == "a branch alone":
            for text, branch in zip(texts(), (row, second[name]), strict=True):
                print(f"{f'branch of {text}':26}" + "".join(f"{loss:16.3f}" for loss in branch))
        else:
            print(f"{name:26}" + "".join(f"{loss:16.3f}" for loss in row))


if __name__ == "__main__":
    main()
