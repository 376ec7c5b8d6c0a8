"""Blocks become units however deep they lie, and a model in one piece is named."""

import warnings
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import nn

from reference.cluster import Cluster
from reference.zero import FullySharded, units_of
from reference.zero.choice import computes, warn_of_one_unit

from .models import MODELS


def names(model: nn.Module) -> list[list[str]]:
    called = {module: name for name, module in model.named_modules()}
    return [[called[module] for module in unit] for unit in units_of(model)]


def test_blocks_of_transformers_are_units() -> None:
    llama, gpt2 = MODELS["Llama"].model(), MODELS["GPT-2"].model()
    assert names(llama) == [
        ["model.embed_tokens"],
        *([f"model.layers.{i}"] for i in range(3)),
        ["model.norm", "model.rotary_emb", "lm_head"],
    ]
    assert names(gpt2)[-3:] == [["transformer.h.0"], ["transformer.h.1"], ["transformer.ln_f", "lm_head"]]


def test_layers_of_an_encoder_are_units() -> None:
    found = names(MODELS["nn.TransformerEncoder"].model())
    assert found == [["embedding"], ["encoder.layers.0"], ["encoder.layers.1"], ["encoder.norm", "head"]]
    both = names(nn.Transformer(8, 2, 2, 1, 12))
    assert both == [
        ["encoder.layers.0"],
        ["encoder.layers.1"],
        ["encoder.norm"],
        ["decoder.layers.0"],
        ["decoder.norm"],
    ]


def test_blocks_in_containers_are_units() -> None:
    """nanoGPT's tree: a ModuleDict with an embedding, a list of blocks and a norm."""
    model = nn.Module()
    blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
    model.transformer = nn.ModuleDict({"wte": nn.Embedding(7, 4), "h": blocks, "ln": nn.LayerNorm(4)})
    model.nested = nn.ModuleList([nn.ModuleList([nn.Linear(4, 4)]), nn.Linear(4, 4)])
    model.head = nn.Linear(4, 7)
    assert names(model) == [
        ["transformer.wte"],
        ["transformer.h.0"],
        ["transformer.h.1"],
        ["transformer.ln"],
        ["nested.0.0"],
        ["nested.1"],
        ["head"],
    ]


@pytest.mark.parametrize("name", MODELS)
def test_each_module_of_a_unit_computes_and_no_unit_has_all(name: str) -> None:
    model = MODELS[name].model()
    units = units_of(model)
    assert all(computes(module) for unit in units for module in unit)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_one_unit(model, units)


def in_one_piece() -> nn.Module:
    model = nn.Module()
    model.net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    return model


def sharded(make: Callable[[], nn.Module], **options: object) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        FullySharded(make(), dist.group.WORLD, **options)
    return [str(one.message) for one in caught]


def test_a_model_in_one_unit_is_named(two: Cluster) -> None:
    assert two.run(sharded, in_one_piece)[0] == [
        "all of this Module is in one unit, so every rank gathers all of it at once: name its blocks, "
        "units=[[block] for block in ...]"
    ]
    assert two.run(sharded, in_one_piece, units=[])[0] == []  # it was asked for
    assert two.run(sharded, lambda: nn.Linear(2, 2))[0] == []  # it has no parts


def cut_by_generators() -> tuple[list[list[str]], bool]:
    """The names of each unit, and whether what is ignored stayed what it was."""
    model = MODELS["nn.TransformerEncoder"].model()
    bias, layers = model.head.bias, model.encoder.layers
    units = ((module for module in unit) for unit in ([layers[0]], [layers[1], model.encoder.norm]))
    form = FullySharded(model, dist.group.WORLD, units=units, ignored=model.head.parameters())
    return [sorted({name.rsplit(".", 1)[0] for name in unit.names}) for unit in form.units], model.head.bias is bias


def test_units_and_what_is_ignored_may_come_from_generators(two: Cluster) -> None:
    (left, first, second), ignored = two.run(cut_by_generators)[0]
    assert left == ["embedding"]
    assert {name.split(".")[2] for name in first} == {"0"}
    assert "encoder.norm" in second
    assert ignored


def alive(block: int) -> list[int]:
    """Elements of units that are whole while block after block of a Llama computes."""
    model = MODELS["Llama"].model()
    form = FullySharded(model, dist.group.WORLD, prefetch=False)
    found: list[int] = []
    for layer in model.model.layers:
        layer.register_forward_hook(
            lambda *_: found.append(sum(unit.layout.starts[-1] for unit in form.units if unit.whole))
        )
    with torch.no_grad():
        model(torch.zeros(1, 4, dtype=torch.int64))
    return found


def test_a_llama_is_never_whole(two: Cluster) -> None:
    """At most a block, and what no unit has."""
    model = MODELS["Llama"].model()
    largest = sum(parameter.numel() for parameter in model.model.layers[0].parameters())
    assert two.run(alive, 0)[0] == [largest] * 3
