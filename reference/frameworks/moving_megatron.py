"""Checkpoints on the move: ours to what Megatron Core's `dist_checkpointing` loads, and back, with the moments.

Both are folders of DCP with whole matrices. In Megatron's all layers lie in one tensor, one under the other, below
"decoder.layers."; what a norm has is named after the linear layer behind it, since Transformer Engine computes both in
one kernel; and matrices that read the same input are one (`STACKED`). Its rows of queries, keys and values go by groups
of heads: the queries that a head of keys serves, that head, its values, and then the next group. So a tensor-parallel
rank's part is one piece. Gate and up lie one below the other, and its part is two.

    ours                                  Megatron Core
    master.blocks.3.attention.query.…     decoder.layers.self_attention.linear_qkv.weight[3], some of its rows
    state.exp_avg.blocks.3.…              optimizer.state.exp_avg.decoder.layers.…[3]
    the step                              common_step in common.pt

Values move, and none is changed: there and back is exact.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor

from reference.errors import BadInput
from reference.frameworks.moving import Contents, tensors_in
from reference.models import GPTConfig, require_gpt

LAYERS = "decoder.layers."
WHOLE = {
    "embedding.word_embeddings": "embedding",
    "decoder.final_layernorm": "norm",
    "output_layer": "head",
}
"""What Megatron calls our layers outside of blocks."""
STACKED = {
    "self_attention.linear_qkv.layer_norm_weight": ("attention_norm",),
    "self_attention.linear_qkv.weight": ("attention.query", "attention.key", "attention.value"),
    "self_attention.linear_proj.weight": ("attention.output",),
    "mlp.linear_fc1.layer_norm_weight": ("feed_forward_norm",),
    "mlp.linear_fc1.weight": ("feed_forward.gate", "feed_forward.up"),
    "mlp.linear_fc2.weight": ("feed_forward.down",),
}
"""What it calls those in a block, and which of ours lie in each."""
STATE = "optimizer.state."
MASTERS = ("param", "fp32_param")  # words of a distributed optimizer; others step the parameters themselves
FORMAT = {"sharded_backend": "torch_dist", "sharded_backend_version": 1} | {
    "common_backend": "torch",
    "common_backend_version": 1,
}


def to_names(parameters: Mapping[str, Tensor], config: GPTConfig) -> dict[str, Tensor]:
    """Our parameters, or as many moments, by Megatron's names: [...] outside of blocks, [L, ...] of all blocks.

    Raises:
        BadInput: for a model that Megatron's plain layers are not: with experts, biases or without a gate; or if the
            parameters are those of another model.
    """
    require_llama(config)
    rows = {name: len(parameter) for name, parameter in parameters.items()}
    if differing := sorted({name for name, _ in rows.items() ^ _rows_of_all(config).items()}):
        raise BadInput(f"this is another model: it differs in {len(differing)} parameters, such as {differing[0]}")
    found = {f"{theirs}.weight": parameters[f"{our}.weight"] for theirs, our in _outside(config).items()}
    for theirs, parts in STACKED.items():
        layers = [[parameters[f"blocks.{i}.{part}.weight"] for part in parts] for i in range(config.layers)]
        found[f"{LAYERS}{theirs}"] = torch.stack([joined(pieces, _groups(theirs, config)) for pieces in layers])
    return found


def from_names(tensors: Mapping[str, Tensor], config: GPTConfig) -> dict[str, Tensor]:
    """The other way.

    Raises:
        BadInput: likewise; or if a tensor is missing.
    """
    require_llama(config)
    needed = {*(f"{theirs}.weight" for theirs in _outside(config)), *(f"{LAYERS}{theirs}" for theirs in STACKED)}
    if missing := sorted(needed - tensors.keys()):
        raise BadInput(f"this is no checkpoint of Megatron's with such a model: it lacks {', '.join(missing)}")
    found = {f"{our}.weight": tensors[f"{theirs}.weight"] for theirs, our in _outside(config).items()}
    for theirs, parts in STACKED.items():
        layers, rows = tensors[f"{LAYERS}{theirs}"], [_rows(part, config) for part in parts]
        if layers.shape[:2] != (config.layers, sum(rows)):
            wanted = f"{config.layers} layers of {sum(rows)} rows"
            raise BadInput(f"{LAYERS}{theirs} is of another model: {list(layers.shape)} instead of {wanted}")
        for i, layer in enumerate(layers):
            pieces = parted(layer, rows, _groups(theirs, config))
            found |= {f"blocks.{i}.{part}.weight": piece for part, piece in zip(parts, pieces, strict=True)}
    return found


def joined(pieces: Sequence[Tensor], groups: int) -> Tensor:
    """Matrices [groups · rows, ...] as one: of each group the rows of all, one piece below the other."""
    return torch.cat([piece.unflatten(0, (groups, -1)) for piece in pieces], 1).flatten(0, 1)


def parted(matrix: Tensor, rows: Sequence[int], groups: int) -> list[Tensor]:
    """The other way, where pieces have so many rows."""
    pieces = matrix.unflatten(0, (groups, -1)).split([each // groups for each in rows], 1)
    return [piece.flatten(0, 1) for piece in pieces]


def to_megatron(
    parameters: Mapping[str, Tensor],
    state: Mapping[str, Mapping[str, Tensor]],
    step: int,
    config: GPTConfig,
    groups: Sequence[Mapping[str, Any]],
    folder: Path | str,
) -> None:
    """Write what one of our checkpoints holds (`moving.ours`) as one of Megatron's, in any layout of which it loads.

    Args:
        parameters: by name.
        state: what the optimizer remembers, by its word and the parameter's name.
        step: how many steps were taken.
        config: of the model.
        groups: of parameters, as the optimizer that is to load has them in its `state_dict()`, with its
            hyperparameters, which are the business of the run that loads.
        folder: to write into.

    Raises:
        BadInput: for a model that Megatron's plain layers are not.
    """
    tensors = to_names(parameters, config)
    for word, held in state.items():
        tensors |= {f"{STATE}{word}.{name}": tensor for name, tensor in to_names(held, config).items()}
    dcp.save(tensors, checkpoint_id=folder, no_dist=True)
    Path(folder, "metadata.json").write_text(json.dumps(FORMAT), encoding="utf-8")
    known = [{name: value for name, value in group.items() if name != "params"} for group in groups]
    optimizer = {"param_groups": known, "state": {"common_step": torch.tensor(float(step))}}
    torch.save({"optimizer": optimizer}, Path(folder, "common.pt"))


def from_megatron(folder: Path | str, config: GPTConfig) -> Contents:
    """What a checkpoint of Megatron's holds, as `moving.ours` has it. Load what you trust: it is a pickle.

    Raises:
        BadInput: if it is none; or holds no optimizer in a format that any layout loads; or for another model.
    """
    require_llama(config)
    tensors, by_word = tensors_in(folder), {}
    for name in [name for name in tensors if name.startswith(STATE)]:
        word, _, parameter = name.removeprefix(STATE).partition(".")
        by_word.setdefault(word, {})[parameter] = tensors[name]
    common = torch.load(Path(folder, "common.pt"), weights_only=False) if by_word else {}
    if "optimizer" not in common:
        raise BadInput(f"{folder} holds no optimizer by names: save a distributed one as fully_reshardable")
    held = {word: from_names(each, config) for word, each in by_word.items()}
    masters = next((held.pop(word) for word in MASTERS if word in held), None) or from_names(tensors, config)
    return masters, held, _step_in(common["optimizer"])


def _step_in(optimizer: Mapping[str, Any]) -> int:
    """A distributed optimizer has it in its groups."""
    if "optimizer" in optimizer:
        return int(optimizer["optimizer"]["param_groups"][0]["step"])
    return int(optimizer["state"]["common_step"])


def require_llama(config: GPTConfig) -> None:
    """Refuse what has other layers.

    Raises:
        BadInput: for a model with experts, biases or without a gate.
    """
    require_gpt(config)
    if config.biases or not config.gated:
        raise BadInput("Megatron's names are known here for gated feed-forwards without biases")


def _outside(config: GPTConfig) -> dict[str, str]:
    return {theirs: our for theirs, our in WHOLE.items() if not (config.tied and our == "head")}


def _rows_of_all(config: GPTConfig) -> dict[str, int]:
    parts = [part for parts in STACKED.values() for part in parts]
    in_blocks = {f"blocks.{i}.{part}.weight": _rows(part, config) for i in range(config.layers) for part in parts}
    outside = {our: config.width if our == "norm" else config.vocabulary for our in _outside(config).values()}
    return in_blocks | {f"{our}.weight": rows for our, rows in outside.items()}


def _groups(name: str, config: GPTConfig) -> int:
    return config.kv_heads if name == "self_attention.linear_qkv.weight" else 1


def _rows(part: str, config: GPTConfig) -> int:
    heads = {"query": config.heads, "key": config.kv_heads, "value": config.kv_heads}
    kind = part.rpartition(".")[2]
    return heads[kind] * config.head_dim if kind in heads else config.hidden if kind in ("gate", "up") else config.width
