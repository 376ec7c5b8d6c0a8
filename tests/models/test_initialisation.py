"""Initial weights depend on names alone."""

from functools import partial

import torch
from torch import nn

from reference.models import GPT, PRESETS, create, initial_value, materialise

TINY = PRESETS["tiny"]


def test_a_lone_block_gets_the_weights_that_it_has_in_the_whole_model():
    whole = create(GPT, TINY, seed=3)
    stage = nn.Module()
    stage.blocks = nn.ModuleDict({"1": GPT(TINY).blocks[1]})
    materialise(stage, partial(initial_value, layers=TINY.layers, seed=3), "cpu")
    for name, parameter in stage.named_parameters():
        assert torch.equal(parameter, whole.get_parameter(name)), name


def test_a_shard_is_a_slice_of_the_initial_value():
    whole = create(GPT, TINY, seed=3)
    name = "blocks.0.attention.query.weight"
    value = initial_value(name, torch.Size([32, 32]), TINY.layers, seed=3)
    assert torch.equal(value[:16], whole.get_parameter(name)[:16])


def test_dtype_only_rounds():
    single, double = create(GPT, TINY), create(GPT, TINY, dtype=torch.float64)
    half = create(GPT, TINY, dtype=torch.bfloat16)
    for name, parameter in single.named_parameters():
        assert torch.equal(parameter.double(), double.get_parameter(name)), name
        assert torch.equal(parameter.bfloat16(), half.get_parameter(name)), name


def test_nothing_is_drawn_from_the_global_stream_and_nothing_depends_on_it():
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = create(GPT, TINY)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    second = create(GPT, TINY)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def test_seeds_and_names_give_different_numbers():
    shape = torch.Size([64, 64])
    values = [initial_value(name, shape, 2, seed) for name in ("a.weight", "b.weight") for seed in (0, 1)]
    assert len({tuple(v.flatten().tolist()) for v in values}) == 4


def test_what_writes_into_the_residual_stream_shrinks_with_depth():
    shape = torch.Size([400, 400])
    plain = initial_value("blocks.0.attention.query.weight", shape, 8, 0).std().item()
    for name in ("blocks.0.attention.output.weight", "blocks.0.feed_forward.down.weight"):
        assert abs(initial_value(name, shape, 8, 0).std().item() * 4 / plain - 1) < 0.02


def test_every_parameter_is_given_a_value():
    model = create(GPT, TINY)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, initial_value(name, parameter.shape, TINY.layers, seed=0)), name
    assert all((m.weight == 1).all() for name, m in model.named_modules() if name.endswith("norm"))
