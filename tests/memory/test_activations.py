"""The formulas against what autograd really saves, and against the paper's table."""

import csv
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from torch.optim import SGD

from reference.errors import BadInput
from reference.memory import activations
from reference.memory.history import MemoryKind
from reference.memory.korthikanti import LayerShape, layers_in_flight
from reference.memory.lab.gauge import Gauge
from reference.memory.recompute import Recompute, recompute
from reference.memory.saved import saved_tensors, total
from reference.models import GPT, GPTConfig, create, preset, token_loss
from reference.models.dropout import token_seeds
from reference.models.gpt import Block, rotary_cos_sin

FORMS = list(csv.DictReader((Path(__file__).parent / "korthikanti_table2.csv").open()))
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
SHAPES = {  # batch, sequence, width, heads, key-value heads, hidden
    "grouped queries": (2, 16, 32, 4, 2, 96),
    "one key for all": (1, 7, 48, 3, 1, 50),
    "as many keys": (3, 9, 32, 4, 4, 96),
    "one head": (2, 5, 16, 1, 1, 8),
    "one token": (3, 1, 32, 4, 4, 96),
    "longer than a tile": (1, 600, 16, 2, 1, 24),
}
shapes = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)


OTHERS = {
    "small heads": {"head_size": 4},
    "large heads": {"head_size": 32},
    "biases": {"biases": ("query", "key", "value", "output", "gate", "up", "down")},
    "gelu": {"activation": "gelu"},
    "no gate": {"gated": False},
    "no gate, biases, large heads": {"gated": False, "biases": ("query", "up", "down"), "head_size": 16},
}
others = pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)


def config_of(shape: tuple[int, ...], layers: int = 1) -> GPTConfig:
    width, heads, kv_heads, hidden = shape[2:]
    return GPTConfig(layers, width, heads, kv_heads, hidden, vocabulary=50)


@dtypes
@shapes
def test_a_block_keeps_what_the_formula_says_tensor_by_tensor(shape, dtype):
    config, (batch, sequence) = config_of(shape), shape[:2]
    block = Block(config).to(dtype)
    x = torch.randn(batch, sequence, config.width, dtype=dtype, requires_grad=True)
    cos_sin = rotary_cos_sin(torch.arange(sequence), config.head_dim, config.rotary_base)
    saved = saved_tensors(lambda: block(x, cos_sin), but=[*block.parameters(), cos_sin])
    formula = activations.block(config, batch, sequence, dtype)
    assert sorted(one.bytes for one in saved) == sorted(one.bytes for one in formula)


@pytest.mark.parametrize("how", Recompute)
@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
@others
def test_other_models_keep_what_the_formula_says(other, dtype, how):
    """Of heads with a size of their own, with biases, with another activation or without a gate."""
    config, (batch, sequence) = GPTConfig(3, 32, 4, 2, 24, vocabulary=50, **other), (2, 7)
    model = create(GPT, config, dtype=dtype)
    recompute(model, how)
    tokens = torch.randint(50, (batch, sequence))
    saved = saved_tensors(lambda: token_loss(model(tokens), tokens, tokens.numel()), but=[*model.parameters(), tokens])
    formula = total(activations.model(config, batch, sequence, dtype, how))
    assert sum(one.bytes for one in saved) - formula in (0, 4, 2), "but for the loss itself"


@pytest.mark.parametrize("how", Recompute)
@dtypes
@shapes
def test_a_model_keeps_what_the_formula_says(shape, dtype, how):
    """Beside it there is the loss itself, a scalar."""
    config, (batch, sequence) = config_of(shape, layers=3), shape[:2]
    model = create(GPT, config, dtype=dtype)
    recompute(model, how)
    tokens = torch.zeros(batch, sequence, dtype=torch.int64)
    with (gauge := Gauge.of(model, SGD(model.parameters()))):
        loss = token_loss(model(tokens), tokens, tokens.numel())
        gauge.mark("backward")
    kept = gauge.history.at("backward")
    formula = activations.model(config, batch, sequence, dtype, how)
    assert kept[MemoryKind.ACTIVATIONS] == total(formula) + loss.untyped_storage().nbytes()
    assert kept[MemoryKind.BUFFERS] == 0


@pytest.mark.parametrize("how", Recompute)
def test_dropout_keeps_two_masks_of_a_byte_an_element_and_none_where_all_is_recomputed(how):
    plain, tokens = config_of(SHAPES["grouped queries"], layers=3), torch.arange(32).view(2, 16)
    dropping, seeds = replace(plain, dropout=0.1), token_seeds(0, 0, tokens)
    without, formula = (total(activations.model(c, 2, 16, torch.float32, how)) for c in (plain, dropping))
    assert formula - without == (0 if how is Recompute.FULL else 3 * 2 * tokens.numel() * plain.width)
    model = create(GPT, dropping)
    recompute(model, how)
    with (gauge := Gauge.of(model, SGD(model.parameters()))):
        loss = token_loss(model(tokens, dropout_seeds=seeds), tokens, tokens.numel())
        gauge.mark("backward")
    assert gauge.history.at("backward")[MemoryKind.ACTIVATIONS] == formula + loss.untyped_storage().nbytes()


def test_activations_grow_with_tokens_and_not_with_their_pairs():
    config = preset("llama3-8b")
    once, twice = (total(activations.block(config, 1, sequence, torch.bfloat16)) for sequence in (8192, 16384))
    assert twice == 2 * once


def test_grouped_queries_save_keys_and_values():
    """Three of four heads of keys and of values, 2 bytes a number."""
    many, few = (GPTConfig(1, 64, 4, kv_heads, 96) for kv_heads in (4, 1))
    saved = total(activations.block(many, 1, 10, torch.bfloat16)) - total(activations.block(few, 1, 10, torch.bfloat16))
    assert saved == 2 * 2 * 10 * 64 * 3 // 4


def test_selective_and_full_recomputation_keep_less():
    config = preset("llama3-8b")
    none, selective, full = (total(kept(config, 1, 8192, torch.bfloat16)) for kept in activations.KEPT.values())
    assert full < selective / 5 and selective < none / 2


@pytest.mark.parametrize("row", FORMS, ids=lambda row: row["form"])
@pytest.mark.parametrize("t", [1, 2, 8])
def test_table_2_of_korthikanti(row, t):
    s, b, h, a = 2048, 4, 12288, 96
    exact = {name: Fraction(value) for name, value in {"s": s, "b": b, "h": h, "a": a, "t": t}.items()}
    formula = eval(row["bytes_per_layer"], {"__builtins__": {}}, exact)
    assert getattr(LayerShape(s, b, h, a, t), row["form"])() == formula


@pytest.mark.parametrize(("heads", "width", "percent"), [(96, 12288, 70), (128, 20480, 65)])
def test_selective_recomputation_saves_what_the_paper_reports(heads, width, percent):
    """Of GPT-3 and of MT-NLG, section 5."""
    layer = LayerShape(2048, 1, width, heads)
    assert round(100 * (1 - layer.tensor_sequence_selective() / layer.everything())) == percent


def test_interleaving_holds_more_in_flight():
    assert layers_in_flight(32, stages=8) == 32
    assert layers_in_flight(32, stages=8, chunks=2) == 32 * Fraction(23, 16)


def test_a_storage_saved_twice_counts_once():
    x = torch.ones(10, requires_grad=True)
    saved = saved_tensors(lambda: (x * x) * x.view(2, 5).view(10))
    assert [one.bytes for one in saved] == [40, 40]  # x, and its square
    assert [one.tensor for one in saved] == ["[10] float32", "[10] float32"]


@pytest.mark.parametrize("ranks", [0, -1])
def test_a_layer_is_split_among_one_rank_at_least(ranks: int):
    with pytest.raises(BadInput, match="are at least 1"):
        LayerShape(8, 1, 4, 2, ranks)
