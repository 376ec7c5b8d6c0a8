"""Make one model of the branches in a checkpoint, and tell what it has lost or gained.

    rankwise train --ranks 2 --islands 2 --outer branches --save out/branches
    python -m reference.decentralized.merge out/branches --into average --save out/merged
    rankwise train --ranks 2 --save out/merged --resume --steps 400

Each branch is loaded by a rank of its own, whatever plan its island had, and `branches` says how they are merged. Told
is the loss of held-out text, of each branch and of all. With `--save` the merged model becomes a checkpoint of a run
of one island, after the same step, whose optimizer begins anew. An average is of the model that branches have, and the
experts of two branches of `demo` are the model `2xdemo`. An ensemble is no model, and is not saved.
"""

import argparse
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from reference.choices import Outer
from reference.cluster import Cluster
from reference.collectives.communicator import Communicator
from reference.collectives.default import over
from reference.config import TrainConfig
from reference.data_parallel import gather_full
from reference.engine import Batch
from reference.errors import BadInput
from reference.islands import ONE_ISLAND
from reference.models import require_gpt
from reference.models.moe_config import mixed_config
from reference.options import configure
from reference.saves import Saves
from reference.train import Training, validation_loss
from reference.zero import checkpoint_folder

from .branches import average, ensemble, into_experts

PRELOAD = ("torch._dynamo", "torch.distributed.checkpoint", "reference.train")


class Merge(StrEnum):
    """What becomes of branches. See `reference.decentralized.branches`."""

    AVERAGE = "average"
    EXPERTS = "experts"
    ENSEMBLE = "ensemble"


@dataclass(frozen=True)
class MergedLosses:
    """Nats per token of held-out text."""

    branches: list[float]
    merged: float


def on_ranks(
    config: TrainConfig, folder: Path, into: Merge, save: Path | None, options: Mapping[str, Any]
) -> MergedLosses | BadInput:
    """Merge, on a rank for each branch.

    Args:
        config: of the branches' run.
        folder: of its checkpoints.
        into: what they become.
        save: where to, if anywhere.
        options: of that run, for those who resume what is saved.

    Returns:
        The losses; or what cannot work.
    """
    try:
        training = Training(config, dist.group.WORLD, torch.device("cpu"))
        step = Saves(folder, resume=True).load(training)
        alone: list[float] = [0.0] * config.islands
        dist.all_gather_object(alone, validation_loss(training))
        if into is Merge.ENSEMBLE:
            return MergedLosses(alone, ensemble_loss(training))
        merged = merged_training(training, into)
        if save:
            saves = Saves(save, options=saved_options(options, into, config.islands))
            saves.begin(merged)
            saves.save(merged, step)
        return MergedLosses(alone, validation_loss(merged))
    except BadInput as error:
        return error


def continued(config: TrainConfig, into: Merge) -> TrainConfig:
    """The configuration of a run that trains the merged model: all ranks are one island.

    Raises:
        BadInput: for a model whose feed-forwards are no experts.
    """
    model = mixed_config(config.model, config.islands) if into is Merge.EXPERTS else config.model
    return replace(config, model=model, **ONE_ISLAND)


def merged_training(training: Training, into: Merge) -> Training:
    """One model of all branches, on all ranks, which all call this."""
    config, communicator = training.config, over(dist.group.WORLD)
    state = gather_full(training.form)
    if into is Merge.EXPERTS:
        state = into_experts(state, config.model, communicator, config.seed)
    else:
        state = mean_of(state, communicator)
    merged = Training(continued(config, into), dist.group.WORLD, training.device)
    with torch.no_grad():
        for part in merged.form.parts:
            part.master.copy_(state[part.name].view_as(part.master))
    merged.form.end_step()
    return merged


def mean_of(state: Mapping[str, Tensor], communicator: Communicator) -> dict[str, Tensor]:
    """`average`, of parameters by name."""
    parameters = nn.ParameterList(state.values())
    average(parameters, communicator)
    return dict(zip(state, parameters, strict=True))


@torch.no_grad()
def ensemble_loss(training: Training) -> float:
    """Nats per token of held-out text, by `ensemble` of all ranks' branches.

    Raises:
        BadInput: for models that do not predict the next token.
    """
    require_gpt(training.config.model)
    communicator, total = over(dist.group.WORLD), 0.0
    for tokens, targets in training.batches.validation():
        total -= float(ensemble(log_probabilities(training, tokens, targets), communicator).sum())
    return total / training.batches.held_out_tokens


def log_probabilities(training: Training, tokens: Tensor, targets: Tensor) -> Tensor:
    """Of the tokens that came, by this rank's branch: [B, S] of float64."""

    def of_targets(logits: Tensor, k: int) -> Tensor:
        return logits.double().log_softmax(-1).gather(-1, targets[..., None])[..., 0]

    batch = Batch.of(tokens, targets)
    return training.inference(tokens.shape).step(lambda k: batch.inputs, of_targets)


def saved_options(options: Mapping[str, Any], into: Merge, branches: int) -> dict[str, Any]:
    """Those of a run that resumes what is saved."""
    mixed = {"model": f"{branches}x{options['model']}"} if options and into is Merge.EXPERTS else {}
    return {name: ONE_ISLAND.get(name, word) for name, word in {**options, **mixed}.items()}


def options_in(folder: Path) -> dict[str, Any]:
    """The options of the run that has saved there.

    Raises:
        BadInput: if there is no checkpoint of branches.
    """
    extra = checkpoint_folder.contents(checkpoint_folder.find(folder))["extra"]
    if extra["learned"].get("outer") != Outer.BRANCHES:
        raise BadInput(f"{folder} has no branches: train with --islands 2 --outer branches, and --save {folder}")
    if not extra["options"]:
        raise BadInput(f"{folder} does not tell the options of its run: train with `rankwise train`")
    return extra["options"]


def main() -> int:
    """Merge as the command line says, and print losses. Returns the exit code: 0, or 2 for bad input."""
    parser = argparse.ArgumentParser(description="Make one model of the branches in a checkpoint.")
    parser.add_argument("folder", type=Path, help="that --save of the branches' run has named")
    parser.add_argument("--into", type=Merge, choices=[*Merge], default=Merge.AVERAGE, help="what they become")
    parser.add_argument("--save", type=Path, help="a folder for a checkpoint of what they become")
    said = parser.parse_args()
    try:
        if said.save and said.into is Merge.ENSEMBLE:
            raise BadInput("an ensemble is all branches, which are saved: leave out --save, or say --into average")
        options = options_in(said.folder)
        config, _ = configure(**options)
        save = said.save and said.save.resolve()
        with Cluster(config.islands, timeout=None, preload=PRELOAD) as cluster:
            found = cluster.run(on_ranks, config, said.folder.resolve(), said.into, save, options)[0]
        if isinstance(found, BadInput):
            raise found
    except BadInput as error:
        print(f"reference.decentralized.merge: {error}", file=sys.stderr)
        return 2
    print("loss of held-out text, nats per byte")
    for name, loss in (*((f"branch {k}", loss) for k, loss in enumerate(found.branches)), (said.into, found.merged)):
        print(f"{name:12}{loss:7.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
