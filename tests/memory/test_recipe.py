"""Bytes of a training state: against the ZeRO paper's table, against real optimizers, and against themselves."""

import csv
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim import SGD, Adafactor, AdamW, Optimizer

from reference.errors import BadInput
from reference.memory.gpus import GB, GPUS
from reference.memory.history import MemoryKind
from reference.memory.lab.gauge import Gauge
from reference.memory.recipe import (
    RECIPES,
    Breakdown,
    Recipe,
    Stage,
    fewest_ranks,
    fits,
    largest_model,
    shard,
    state_bytes,
)
from reference.models import GPT, GPTConfig, create, token_loss

STAGES = {"1": Stage.ZERO1, "2": Stage.ZERO2, "3": Stage.ZERO3}
TABLE = list(csv.DictReader((Path(__file__).parent / "zero_table1.csv").open()))


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row['parameters']}-zero{row['stage']}-{row['ranks']}")
def test_table_1_of_the_zero_paper(row):
    """The paper rounds what it prints with a decimal point, and cuts off what it prints without one."""
    got = state_bytes(int(row["parameters"]), RECIPES["mixed Adam"], STAGES[row["stage"]], int(row["ranks"])).total / GB
    printed, decimals = row["gb_per_device"], len(row["gb_per_device"].partition(".")[2])
    if decimals:
        assert abs(got - float(printed)) <= 0.5001 * 10**-decimals
    else:
        assert int(got) == int(printed)


@pytest.mark.parametrize(
    ("name", "total"),
    [("fp32 Adam", 16), ("mixed Adam", 16), ("mixed Adam, fp32 gradients", 18), ("mixed Adam, both gradients", 20),
     ("fp32 Adam, bf16 compute", 16), ("pure bf16 Adam", 8), ("fp8 Adam", 13), ("fp32 SGD", 8),
     ("fp32 SGD with momentum", 12), ("mixed Lion", 12), ("frozen bf16", 2)],
)  # fmt: skip
def test_bytes_of_a_recipe(name, total):
    assert RECIPES[name].total == total


def test_scales_of_8_bit_and_4_bit_numbers_are_counted():
    assert RECIPES["mixed Adam, 8-bit moments"].moments == pytest.approx(2.004, abs=1e-4)
    assert RECIPES["frozen 4-bit"].total * 8 == pytest.approx(4.127, abs=1e-3)  # bits, as the paper says


def test_the_distributed_optimizer_of_megatron_is_zero_1():
    """6 + 12/d bytes, says its documentation."""
    for ranks in (1, 2, 8):
        got = state_bytes(8000, RECIPES["mixed Adam, fp32 gradients"], Stage.ZERO1, ranks)
        assert got.total == 8000 * 6 + 8000 * 12 // ranks


@given(st.integers(0, 10**6), st.sampled_from(list(RECIPES.values())), st.integers(1, 9))
def test_each_stage_shares_out_one_thing_more(parameters: int, recipe: Recipe, ranks: int):
    ddp, zero1, zero2, zero3 = (state_bytes(parameters, recipe, stage, ranks) for stage in Stage)
    mine = state_bytes(shard(parameters, ranks), recipe, Stage.DDP, 1)
    assert ddp == state_bytes(parameters, recipe, Stage.ZERO3, 1)
    assert zero1 == Breakdown(ddp.parameters, ddp.gradients, mine.optimizer)
    assert zero2 == Breakdown(ddp.parameters, mine.gradients, mine.optimizer)
    assert zero3 == mine


@given(st.integers(0, 10**6), st.integers(1, 9))
def test_padding_is_less_than_one_number_a_rank(parameters: int, ranks: int):
    assert 0 <= ranks * shard(parameters, ranks) - parameters < ranks


def test_a_frozen_base_and_its_adapters_add_up():
    base = state_bytes(8_000_000, RECIPES["frozen bf16"], Stage.ZERO3, 4)
    adapters = state_bytes(40_000, RECIPES["mixed Adam"], Stage.ZERO3, 4)
    assert (base + adapters).total == 2 * 2_000_000 + 16 * 10_000


@pytest.mark.parametrize("stage", Stage)
@pytest.mark.parametrize("ranks", [1, 3, 8])
def test_the_largest_model_fits_and_one_parameter_more_does_not(stage, ranks):
    recipe, memory, besides = RECIPES["mixed Adam"], 10**6 + 3, 1000
    most = largest_model(memory, recipe, stage, ranks, besides)
    assert fits(memory, most, recipe, stage, ranks, besides)
    assert not fits(memory, most + 1, recipe, stage, ranks, besides)


def test_two_billion_parameters_are_the_limit_of_32_gb_without_zero():
    assert largest_model(GPUS["V100 SXM2"], RECIPES["mixed Adam"], Stage.DDP, ranks=1024) == 2 * 10**9


def test_fewest_ranks():
    recipe, memory = RECIPES["mixed Adam"], GPUS["H100 SXM"]
    assert fewest_ranks(memory, 70 * 10**9, recipe, Stage.ZERO3) == 14  # 16 x 70 / 80
    assert fewest_ranks(memory, 70 * 10**9, recipe, Stage.ZERO2) is None  # 140 GB of parameters alone
    assert fewest_ranks(memory, 4 * 10**9, recipe, Stage.DDP) == 1
    ranks = fewest_ranks(memory, 18 * 10**9, recipe, Stage.ZERO1)
    assert fits(memory, 18 * 10**9, recipe, Stage.ZERO1, ranks)
    assert not fits(memory, 18 * 10**9, recipe, Stage.ZERO1, ranks - 1)


def test_what_does_not_exist_is_said():
    with pytest.raises(BadInput, match="no stage is called 'zero4'; there are ddp, zero1, zero2, zero3"):
        state_bytes(10, RECIPES["fp32 Adam"], "zero4", 1)
    with pytest.raises(BadInput, match="at least 1 rank"):
        state_bytes(10, RECIPES["fp32 Adam"], Stage.DDP, 0)


@pytest.mark.parametrize(
    ("name", "optimizer", "dtype"),
    [
        ("fp32 Adam", AdamW, torch.float32),
        ("pure bf16 Adam", AdamW, torch.bfloat16),
        ("fp32 SGD", SGD, torch.float32),
        ("fp32 SGD with momentum", lambda parameters: SGD(parameters, momentum=0.9), torch.float32),
        ("fp32 Adafactor", Adafactor, torch.float32),
    ],
)
def test_real_optimizers_keep_what_the_recipe_says(name: str, optimizer: Callable[..., Optimizer], dtype: torch.dtype):
    """2 %: a count of steps for each tensor, and Adafactor's sums of rows and columns."""
    config = GPTConfig(layers=2, width=64, heads=4, kv_heads=2, hidden=176)
    model = create(GPT, config, dtype=dtype)
    tokens, update = torch.zeros(1, 8, dtype=torch.int64), optimizer(model.parameters())
    with (gauge := Gauge.of(model, update)):
        token_loss(model(tokens), tokens, tokens.numel()).backward()
        update.step()
        gauge.mark("next")
    got, expected = gauge.history.at("next"), state_bytes(config.parameters, RECIPES[name], Stage.DDP, 1)
    allowed = 0.02 * expected.total
    assert got[MemoryKind.PARAMETERS] == expected.parameters and got[MemoryKind.GRADIENTS] == expected.gradients
    assert expected.optimizer <= got[MemoryKind.OPTIMIZER] <= expected.optimizer + allowed


def test_a_model_of_fewer_than_no_parameters_is_refused():
    with pytest.raises(BadInput, match="at least 0 parameters, not -5"):
        state_bytes(-5, RECIPES["fp32 Adam"], Stage.DDP, 1)
