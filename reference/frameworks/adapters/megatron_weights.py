"""Our weights in Megatron Core's GPTModel: its names, its order of rows, and a rank's part.

A matrix of queries, keys and values holds, for each head of keys, the heads of queries that it serves, that head, and
its values. Gate and input of a feed-forward are one matrix, of which a tensor-parallel rank has a part of both.
"""

import re
from collections.abc import Mapping

import torch
from megatron.core import parallel_state as here
from torch import Tensor, nn

from reference.frameworks.plain import Course
from reference.models import ModelConfig

NAMES = {
    "embedding.word_embeddings": "embedding",
    "decoder.final_layernorm": "norm",
    "output_layer": "head",
    "input_layernorm": "attention_norm",
    "self_attention.linear_proj": "attention.output",
    "pre_mlp_layernorm": "feed_forward_norm",
    "mlp.linear_fc2": "feed_forward.down",
    "mlp.router": "feed_forward.router",
}


def load(chunk: nn.Module, course: Course) -> None:
    """Give the layers of a GPTModel the course's initial weights."""
    weights = {name: value.detach() for name, value in course.model().named_parameters()}
    rank, ranks = here.get_tensor_model_parallel_rank(), here.get_tensor_model_parallel_world_size()
    for name, parameter in chunk.named_parameters():
        pieces = pieces_of(name, chunk, weights, course.config)
        if ranks > 1 and getattr(parameter, "tensor_model_parallel", False):
            pieces = [piece.chunk(ranks, parameter.partition_dim)[rank] for piece in pieces]
        parameter.data.copy_(torch.cat(pieces))


def pieces_of(name: str, chunk: nn.Module, weights: Mapping[str, Tensor], ours: ModelConfig) -> list[Tensor]:
    """What lies one below the other in a parameter of Megatron's; a rank has its part of each piece."""
    place, name = "", name.removesuffix(".weight")
    if layer := re.match(r"decoder\.layers\.(\d+)\.", name):
        place, name = f"blocks.{chunk.decoder.layers[int(layer[1])].layer_number - 1}.", name[layer.end() :]
    if name == "self_attention.linear_qkv":
        heads = (weights[f"{place}attention.{each}.weight"] for each in ("query", "key", "value"))
        return [torch.cat([x.view(ours.kv_heads, -1, ours.width) for x in heads], 1).flatten(0, 1)]
    if "linear_fc1" in name or "local_experts" in name:
        kinds = ("gate", "up") if "linear_fc1" in name else ("down",)
        if expert := re.search(r"local_experts\.(\d+)", name):
            first = here.get_expert_model_parallel_rank() * (
                ours.experts // here.get_expert_model_parallel_world_size()
            )
            return [weights[f"{place}feed_forward.experts.{kind}.weight"][first + int(expert[1])] for kind in kinds]
        return [weights[f"{place}feed_forward.{kind}.weight"] for kind in kinds]
    return [weights[f"{place}{NAMES[name]}.weight"]]
