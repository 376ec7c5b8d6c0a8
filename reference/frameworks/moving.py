"""Checkpoints on the move: ours to what torch's FSDP2 and DTensor load, and to Hugging Face's names of Llama; and back.

DeepSpeed's and Megatron's have a file each beside this one.

    ours                                torch (DCP)                            Hugging Face, `LlamaForCausalLM`
    master.blocks.0.attention.query.…   model.blocks.0.attention.query.…       model.layers.0.self_attn.q_proj.…
    state.exp_avg.blocks.0.…            optimizer.state.blocks.0.….exp_avg     -

All three hold whole matrices, whatever cuts there were when they were saved: DCP puts them together. Our checkpoints
are folders of DCP with a manifest, so torch reads them without us. Values move, and none is changed: there and back is
exact. No matrix is permuted on the way to Hugging Face: both turn the two halves of a head against each other, where
Meta's own files of Llama turn neighbours (`answers/into_theirs.py`).
"""

from collections.abc import Mapping
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

from reference.errors import BadInput
from reference.models import GPTConfig, require_gpt
from reference.zero import checkpoint_folder
from reference.zero.checkpoint_state import SavedParameter

MASTER, STATE = "master.", "state."  # how names begin in our checkpoints
MODEL = "model."  # and in one that holds `{"model": ..., "optimizer": ...}`, as torch's tutorials have it

Contents = tuple[Mapping[str, Tensor], Mapping[str, Mapping[str, Tensor]], int]
"""What a checkpoint holds: parameters by name; what the optimizer remembers, by its word and the parameter's name; and
how many steps were taken."""

LLAMA = {
    "embedding": "model.embed_tokens",
    "norm": "model.norm",
    "head": "lm_head",
    "attention_norm": "input_layernorm",
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.output": "self_attn.o_proj",
    "feed_forward_norm": "post_attention_layernorm",
    "feed_forward.gate": "mlp.gate_proj",
    "feed_forward.up": "mlp.up_proj",
    "feed_forward.down": "mlp.down_proj",
}
"""What Hugging Face calls our layers."""


def tensors_in(folder: Path | str) -> dict[str, Tensor]:
    """All tensors of a folder of DCP, whole, by the names that they have there. No process group is needed.

    Raises:
        BadInput: if it is no such folder.
    """
    if not (Path(folder) / ".metadata").exists():
        raise BadInput(f"{folder} holds no checkpoint of torch.distributed.checkpoint: it has no .metadata")
    metadata = dcp.FileSystemReader(folder).read_metadata().state_dict_metadata
    found = {
        name: torch.empty(each.size, dtype=each.properties.dtype)
        for name, each in metadata.items()
        if hasattr(each, "properties")
    }
    dcp.load(found, checkpoint_id=folder, no_dist=True)
    return found


def ours(place: Path | str) -> Contents:
    """What one of our checkpoints, or the newest in a folder of them, holds.

    Returns:
        The parameters by name; what the optimizer remembers, by its word and the parameter's name; the steps taken.

    Raises:
        BadInput: if there is none, or it is damaged.
    """
    checkpoint = checkpoint_folder.find(Path(place))
    contents = checkpoint_folder.contents(checkpoint)
    checkpoint_folder.verify(checkpoint, checkpoint_folder.files(checkpoint))
    state: dict[str, dict[str, Tensor]] = {}
    parameters = {}
    for name, tensor in tensors_in(checkpoint).items():
        if name.startswith(MASTER):
            parameters[name.removeprefix(MASTER)] = tensor
        elif name.startswith(STATE):
            word, _, parameter = name.removeprefix(STATE).partition(".")
            state.setdefault(word, {})[parameter] = tensor
    return parameters, state, contents["step"]


def to_ours(
    parameters: Mapping[str, Tensor], state: Mapping[str, Mapping[str, Tensor]], step: int, folder: Path | str
) -> Path:
    """The other way: write a checkpoint of ours, which any plan loads that learns by AdamW.

    Returns:
        The checkpoint.
    """
    partial = checkpoint_folder.begin(Path(folder))
    tensors = {f"{MASTER}{name}": tensor for name, tensor in parameters.items()}
    tensors |= {f"{STATE}{word}.{name}": tensor for word, held in state.items() for name, tensor in held.items()}
    dcp.save(tensors, checkpoint_id=partial, no_dist=True)
    files = {path.name: checkpoint_folder.Fingerprint.of(path) for path in partial.iterdir()}
    saved = {name: vars(_saved(name, tensor, state, step)) for name, tensor in parameters.items()}
    contents = {"step": step, "extra": {}, "optimizer": "AdamW", "parameters": saved, "remembered": {}}
    return checkpoint_folder.finish(partial, step, contents, files)


def _saved(name: str, tensor: Tensor, state: Mapping[str, Mapping[str, Tensor]], step: int) -> SavedParameter:
    elements = {word: str(held[name].dtype).removeprefix("torch.") for word, held in state.items()}
    dtype = str(tensor.dtype).removeprefix("torch.")
    return SavedParameter(tuple(tensor.shape), dtype, elements, {"step": (float(step), "float32")})


def unlike(some: Contents, others: Contents) -> list[str]:
    """In what two checkpoints differ: names of tensors with another bit, dtype or shape, and the step."""
    named = [
        {**parameters, **{f"{word}.{name}": x for word, held in state.items() for name, x in held.items()}}
        for parameters, state, _ in (some, others)
    ]
    kept, found = named
    differing = [name for name in kept.keys() & found.keys() if not _same_bits(kept[name], found[name])]
    return [*sorted({*differing, *(kept.keys() ^ found.keys())}), *(["the step"] if some[2] != others[2] else [])]


def _same_bits(some: Tensor, other: Tensor) -> bool:
    one, two = (x.contiguous().flatten().view(torch.uint8) for x in (some, other))
    return (some.dtype, some.shape) == (other.dtype, other.shape) and torch.equal(one, two)


def to_torch(place: Path | str, model: nn.Module, optimizer: torch.optim.Optimizer, folder: Path | str) -> None:
    """Write one of our checkpoints as one that torch's parallel models load, under "model" and "optimizer".

    Args:
        place: of ours.
        model: whole, of the same configuration; it gets the values.
        optimizer: AdamW over it; it gets the moments, and how many steps were taken.
        folder: to write into.
    """
    parameters, state, step = ours(place)
    shaped = {name: parameters[name].view(p.shape) for name, p in model.named_parameters()}
    model.load_state_dict(shaped)
    for name, parameter in model.named_parameters():
        moments = {word: found[name].view(parameter.shape) for word, found in state.items()}
        optimizer.state[parameter] = {"step": torch.tensor(float(step)), **moments}
    of_optimizer = get_optimizer_state_dict(model, optimizer)
    dcp.save({"model": model.state_dict(), "optimizer": of_optimizer}, checkpoint_id=folder, no_dist=True)


def from_torch(folder: Path | str) -> dict[str, Tensor]:
    """The parameters in a checkpoint that has them under "model", as FSDP2 leaves it: whole, by our names."""
    found = tensors_in(folder)
    return {name.removeprefix(MODEL): tensor for name, tensor in found.items() if name.startswith(MODEL)}


def to_llama(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Our parameters by Hugging Face's names of Llama.

    Raises:
        BadInput: for a parameter that Llama does not have.
    """
    return {_translated(name, LLAMA, ("blocks.", "model.layers.")): tensor for name, tensor in parameters.items()}


def from_llama(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The other way.

    Raises:
        BadInput: for a parameter that our GPT does not have.
    """
    back = {theirs: our for our, theirs in LLAMA.items()}
    return {_translated(name, back, ("model.layers.", "blocks.")): tensor for name, tensor in parameters.items()}


def _translated(name: str, words: Mapping[str, str], blocks: tuple[str, str]) -> str:
    before, after = blocks
    layer, path = "", name
    if name.startswith(before):
        number, _, path = name.removeprefix(before).partition(".")
        layer = f"{after}{number}."
    module, _, kind = path.rpartition(".")
    if module not in words:
        raise BadInput(f"{name} has no other name: a Llama has {', '.join(words)}")
    return f"{layer}{words[module]}.{kind}"


def llama_config(config: GPTConfig) -> dict[str, object]:
    """What Hugging Face's config.json says of a model of ours.

    Raises:
        BadInput: for a model that is no Llama: with experts, biases, another activation or no gate.
    """
    require_gpt(config)
    if config.biases or config.activation != "silu" or not config.gated:
        raise BadInput("a Llama has gated feed-forwards with silu, and no biases")
    return {
        "vocab_size": config.vocabulary,
        "hidden_size": config.width,
        "intermediate_size": config.hidden,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "rms_norm_eps": config.norm_epsilon,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rotary_base},
        "tie_word_embeddings": config.tied,
        "attention_bias": False,
        "mlp_bias": False,
        "hidden_act": "silu",
    }
