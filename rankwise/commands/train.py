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
    seed: Annotated[int, Option(help="Of weights and of the order of the text.")] = 0,
    device: Annotated[str, Option(help="auto, cpu (gloo) or cuda (NCCL).")] = "auto",
    log: Annotated[Path | None, Option(help="Keep every step in this file, one JSON object a line.")] = None,
) -> None:
    """Train a GPT by data parallelism on ranks of this machine."""
    from rankwise.training import train_on_cluster
    from reference.models import preset
    from reference.train import TrainConfig

    config = TrainConfig(
        preset(model), data, steps, batch=batch, sequence=sequence, learning_rate=learning_rate, seed=seed
    )
    train_on_cluster(config, ranks, device, log)


COMMANDS = (train,)
