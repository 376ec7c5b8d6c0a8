"""Checkpoints on the move: ours to what DeepSpeed loads as a universal checkpoint, and back, with the moments.

What DeepSpeed saves is cut as its ranks are: `zero_pp_rank_1_mp_rank_00_optim_states.pt` is one rank's flat piece, and
holds classes of DeepSpeed's. Its program `deepspeed.checkpoint.ds_to_universal` makes whole tensors of the pieces, a
folder for each parameter, and those any number of ranks of any stage loads, when its configuration says
`{"checkpoint": {"load_universal": true}}`. They are plain tensors, which torch reads and writes without DeepSpeed:

    ours                                   DeepSpeed, in the folder that `latest_universal` names
    master.blocks.0.attention.query.…      zero/blocks.0.attention.query.weight/fp32.pt
    state.exp_avg.blocks.0.…               zero/blocks.0.attention.query.weight/exp_avg.pt
    the step                               global_steps of *_model_states.pt, and step.pt of each parameter

Names are those of the model, so they stay. DeepSpeed holds masters in float32 whatever the model has: a checkpoint of
ours in float32 comes back as it was, and one in float64 is refused, since it would not.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from reference.errors import BadInput
from reference.frameworks.moving import Contents

VERSION = "0.19.8"  # whose layout this is; `load_checkpoint` asks
LATEST = "latest_universal"
MASTER = "fp32"  # what a file with a parameter's master is called; others have the optimizer's words
MODEL = ("mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_model_states.pt")  # of stages below 3, and of 3


def to_deepspeed(
    parameters: Mapping[str, Tensor], state: Mapping[str, Mapping[str, Tensor]], step: int, folder: Path | str
) -> None:
    """Write what one of our checkpoints holds (`moving.ours`) as a universal one, which ZeRO of any stage loads.

    Hyperparameters are not in it: they are the business of the run that loads.

    Args:
        parameters: by name, in float32.
        state: what the optimizer remembers, by its word and the parameter's name.
        step: how many steps were taken.
        folder: for `load_checkpoint`.

    Raises:
        BadInput: if a tensor is not in float32, or the folder has this step already.
    """
    for held in (parameters, *state.values()):
        for name, tensor in held.items():
            if tensor.dtype is not torch.float32:
                raise BadInput(f"DeepSpeed holds masters in float32, and {name} is in {tensor.dtype}: train in float32")
    tag = f"global_step{step}"
    home = Path(folder, tag, "zero")
    if home.parent.exists():
        raise BadInput(f"{home.parent} is there already: take another folder, or delete it")
    for name, parameter in parameters.items():
        home.joinpath(name).mkdir(parents=True)
        for word, tensor in {MASTER: parameter, **{word: held[name] for word, held in state.items()}}.items():
            torch.save({"cat_dim": 0, "param": tensor}, home / name / f"{word}.pt")
        torch.save(torch.tensor(float(step)), home / name / "step.pt")
    torch.save(_of_optimizer(step), home / "optimizer_state.pt")
    shapes = {name: parameter.shape for name, parameter in parameters.items()}
    for name in MODEL:
        torch.save(_of_model(step, shapes), home.parent / name)
    Path(folder, LATEST).write_text(tag, encoding="utf-8")


def from_deepspeed(folder: Path | str) -> Contents:
    """What a universal checkpoint of DeepSpeed's holds, as `moving.ours` has it.

    Raises:
        BadInput: if the folder has none, or lacks a part of it.
    """
    latest = Path(folder, LATEST)
    if not latest.exists():
        advice = "`python -m deepspeed.checkpoint.ds_to_universal` makes one of what DeepSpeed has saved"
        raise BadInput(f"{folder} holds no universal checkpoint: {advice}")
    tag = latest.parent / latest.read_text(encoding="utf-8").strip()
    described = [tag / name for name in MODEL if (tag / name).exists()]
    if not described:
        raise BadInput(f"{tag} lacks {' and '.join(MODEL)}, one of which each checkpoint has")
    model = torch.load(described[0], weights_only=True)
    parameters: dict[str, Tensor] = {}
    state: dict[str, dict[str, Tensor]] = {}
    shapes = {name: shape for group in model["param_shapes"] for name, shape in group.items()}
    for name, shape in shapes.items():
        for path in (tag / "zero" / name).glob("*.pt"):
            if path.stem != "step":
                into = parameters if path.stem == MASTER else state.setdefault(path.stem, {})
                into[name] = _tensor(path).view(shape)
    for word, held in {MASTER: parameters, **state}.items():
        if missing := sorted(shapes.keys() - held.keys()):
            raise BadInput(f"{tag / 'zero'} lacks {word}.pt of {', '.join(missing)}")
    return parameters, state, model["global_steps"]


def _tensor(path: Path) -> Tensor:
    """Stage 3 writes a flat tensor, the other stages one with its shape and how it was put together."""
    found = torch.load(path, weights_only=True)
    return found["param"] if isinstance(found, dict) else found


def _of_optimizer(step: int) -> dict[str, Any]:
    """For stages below 3, which go through groups of parameters; and for 3, which looks for the step here."""
    of_stage_3 = {"state": {0: {"step": torch.tensor(float(step))}}, "param_groups": [{}]}
    return {"ds_version": VERSION, "param_groups": [{}], "optimizer_state_dict": of_stage_3}


def _of_model(step: int, shapes: Mapping[str, torch.Size]) -> dict[str, Any]:
    """What is asked of a model's file where weights come from `zero/`."""
    counts = {"global_steps": step, "skipped_steps": 0, "dp_world_size": 1, "mp_world_size": 1}
    return {"ds_version": VERSION, "module": {}, "param_shapes": [dict(shapes)], "lr_scheduler": None, **counts}
