"""The GPT computes what its papers say."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from reference.errors import BadInput
from reference.models import GPT, PRESETS, GPTConfig, create, preset, token_loss
from reference.models.gpt import Attention, RMSNorm, SwiGLU, rotary_cos_sin, rotate

TINY = PRESETS["tiny"]


def tokens(batch: int, sequence: int, seed: int = 0) -> Tensor:
    return torch.randint(256, (batch, sequence), generator=torch.Generator().manual_seed(seed))


def double(config: GPTConfig = TINY, seed: int = 0) -> GPT:
    return create(GPT, config, seed, dtype=torch.float64)


def test_logits_have_one_row_for_each_token():
    assert double()(tokens(3, 7)).shape == (3, 7, 256)


@pytest.mark.parametrize("name", PRESETS)
def test_parameters_are_counted_without_building_them(name: str):
    model = create(GPT, preset(name), device="meta")
    assert sum(p.numel() for p in model.parameters()) == preset(name).parameters
    for block in model.blocks:
        assert sum(p.numel() for p in block.parameters()) == preset(name).block_parameters


def test_llama_3_has_the_size_in_its_name():
    assert [round(PRESETS[f"llama3-{size}b"].parameters / 1e9) for size in (8, 70, 405)] == [8, 71, 406]


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("llama3-8b", 8_030_261_248),
        ("llama3-70b", 70_553_706_496),
        ("gemma-2b", 2_506_172_416),
        ("gemma-7b", 8_537_680_896),
        ("mistral-nemo-12b", 12_247_782_400),
        ("qwen2-0.5b", 494_032_768),
        ("qwen2-7b", 7_615_616_512),
        ("qwen2-72b", 72_706_203_648),
    ],
)
def test_published_models_have_their_published_sizes(name: str, parameters: int):
    """To the last parameter: the numbers of elements in the weights that were published."""
    assert preset(name).parameters == parameters


ODD = GPTConfig(2, 32, 4, 2, 24, head_size=6, biases=("query", "key", "value"), activation="gelu")
PLAIN = GPTConfig(2, 32, 4, 2, 24, head_size=16, biases=("output", "up", "down"), gated=False)


@pytest.mark.parametrize("config", [ODD, PLAIN], ids=["Qwen's biases, small heads", "no gate, large heads"])
def test_other_shapes_are_what_they_say(config: GPTConfig):
    """Of a block: the shapes of its parameters, and its output from the formula."""
    block = double(config).blocks[1]
    shapes = {name: tuple(parameter.shape) for name, parameter in block.named_parameters()}
    assert sum(torch.Size(shape).numel() for shape in shapes.values()) == config.block_parameters
    assert shapes["attention.query.weight"] == (4 * config.head_dim, 32)
    assert shapes["attention.output.weight"] == (32, 4 * config.head_dim)
    assert shapes["attention.key.weight"] == (2 * config.head_dim, 32)
    assert {name.split(".")[-2] for name in shapes if name.endswith("bias")} == set(config.biases)
    assert ("feed_forward.gate.weight" in shapes) == config.gated
    x = torch.randn(2, 5, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for name in set(config.biases) & {"up", "down"}:
        torch.nn.init.normal_(getattr(block.feed_forward, name).bias)
    feed, weights = block.feed_forward, dict(block.feed_forward.named_parameters())
    up = x @ weights["up.weight"].T + weights.get("up.bias", 0)
    if config.gated:
        inside = torch.nn.functional.gelu(x @ weights["gate.weight"].T, approximate="tanh") * up
    else:
        inside = up * torch.sigmoid(up)
    torch.testing.assert_close(feed(x), inside @ weights["down.weight"].T + weights.get("down.bias", 0))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"head_size": 7}, "head_size 7 must be even"),
        ({"head_size": 0}, "head_size is a whole number, 2 or more, not 0"),
        ({"head_size": 8.0}, "head_size is a whole number"),
        ({"biases": ("keys",)}, "no linear layer of a block is called 'keys'; there are query, key"),
        ({"biases": ("gate",), "gated": False}, "no linear layer of a block is called 'gate'"),
        ({"biases": ("up", "up")}, "one bias"),
        ({"activation": "relu"}, "activation is one of silu, gelu, not relu"),
    ],
)
def test_other_shapes_that_do_not_fit_are_refused(options: dict, reason: str):
    with pytest.raises(BadInput, match=reason):
        GPTConfig(2, 32, 4, 2, 24, **options)


def test_a_head_size_of_its_own_lets_any_width_be():
    assert GPTConfig(1, 33, 4, 2, 24, head_size=8).attended == 32


def test_a_405_billion_parameter_model_runs_on_meta_tensors():
    model = create(GPT, PRESETS["llama3-405b"], device="meta")
    x = torch.zeros(1, 8, dtype=torch.int64, device="meta")
    token_loss(model(x), x, global_tokens=8).backward()
    assert all(p.grad.shape == p.shape for p in model.parameters())


def test_a_token_sees_those_before_it_and_none_after():
    model, x = double(), tokens(1, 12)
    changed = x.clone()
    changed[0, 7] = (changed[0, 7] + 1) % 256
    difference = (model(x) - model(changed)).abs().amax(dim=(0, 2))
    assert (difference[:7] == 0).all()
    assert (difference[7:] > 0).all()


def test_rotary_depends_on_distance_alone():
    generator = torch.Generator().manual_seed(0)
    query, key = torch.randn(2, 1, 1, 1, 16, dtype=torch.float64, generator=generator)

    def product(at_query: int, at_key: int) -> float:
        left = rotate(query, rotary_cos_sin(torch.tensor([at_query]), 16, 10_000.0))
        right = rotate(key, rotary_cos_sin(torch.tensor([at_key]), 16, 10_000.0))
        return (left * right).sum().item()

    assert product(9, 4) == pytest.approx(product(1009, 1004), rel=1e-9)
    assert product(9, 4) != pytest.approx(product(9, 5), rel=1e-3)
    assert product(0, 0) == pytest.approx((query * key).sum().item(), rel=1e-12)


def test_positions_may_start_anywhere_since_only_distance_counts():
    model, x = double(), tokens(2, 10)
    torch.testing.assert_close(model(x, torch.arange(500, 510)), model(x), rtol=1e-9, atol=1e-12)
    assert not torch.allclose(model(x, torch.arange(0, 20, 2)), model(x))


def attention_by_hand(module: Attention, x: Tensor, cos_sin: Tensor) -> Tensor:
    """Head by head, token by token: the equations of the papers."""
    heads = module.query.out_features // module.head_dim
    served = heads // (module.key.out_features // module.head_dim)

    def split(y: Tensor) -> tuple[Tensor, ...]:
        return y[0].split(module.head_dim, dim=-1)

    queries = [rotate(h, cos_sin) for h in split(module.query(x))]
    keys = [rotate(h, cos_sin) for h in split(module.key(x))]
    values = split(module.value(x))
    rows = []
    for t in range(x.shape[1]):
        seen = []
        for h in range(heads):
            scores = keys[h // served][: t + 1] @ queries[h][t] / math.sqrt(module.head_dim)
            seen.append(scores.softmax(0) @ values[h // served][: t + 1])
        rows.append(torch.cat(seen))
    return module.output(torch.stack(rows))[None]


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_attention_is_that_of_the_papers(kv_heads: int):
    config = GPTConfig(layers=1, width=32, heads=4, kv_heads=kv_heads, hidden=8)
    module = double(config).blocks[0].attention
    torch.nn.init.normal_(module.query.weight, generator=torch.Generator().manual_seed(1))  # far from uniform
    x = torch.randn(1, 6, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    cos_sin = rotary_cos_sin(torch.arange(6), config.head_dim, config.rotary_base)
    torch.testing.assert_close(module(x, cos_sin), attention_by_hand(module, x, cos_sin), rtol=1e-10, atol=1e-12)


def test_grouped_queries_equal_full_attention_with_repeated_keys_and_values():
    grouped = double(GPTConfig(layers=2, width=32, heads=4, kv_heads=2, hidden=24))
    full = double(GPTConfig(layers=2, width=32, heads=4, kv_heads=4, hidden=24))
    weights = grouped.state_dict()
    for name in weights:
        if ".key." in name or ".value." in name:
            weights[name] = weights[name].unflatten(0, (2, 8)).repeat_interleave(2, dim=0).flatten(0, 1)
    full.load_state_dict(weights)
    torch.testing.assert_close(full(tokens(2, 9)), grouped(tokens(2, 9)), rtol=1e-10, atol=1e-13)


def test_rms_norm_divides_by_the_root_mean_square():
    norm = RMSNorm(8, epsilon=1e-5).double()
    norm.weight.data = torch.arange(8, dtype=torch.float64)
    x = torch.randn(3, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = x / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * torch.arange(8)
    torch.testing.assert_close(norm(x), expected, rtol=1e-12, atol=0)


def test_swiglu_gates_by_silu():
    module = SwiGLU(TINY).double()
    x = torch.randn(2, 5, TINY.width, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    gate = x @ module.gate.weight.T
    expected = (gate * gate.sigmoid() * (x @ module.up.weight.T)) @ module.down.weight.T
    torch.testing.assert_close(module(x), expected, rtol=1e-12, atol=1e-15)


def test_a_tied_model_has_one_table_that_learns_from_both_ends():
    model, x = double(), tokens(1, 5)
    assert not any("head" in name for name, _ in model.named_parameters())
    token_loss(model(x), x, global_tokens=5).backward()
    absent = torch.tensor(sorted(set(range(256)) - set(x.flatten().tolist())))
    assert (model.embedding.weight.grad[absent].abs().amax(1) > 0).all()  # as outputs: they were never inputs
    model.zero_grad()
    untied = double(GPTConfig(layers=1, width=32, heads=4, kv_heads=4, hidden=8))
    token_loss(untied(x), x, global_tokens=5).backward()
    assert (untied.embedding.weight.grad[absent] == 0).all()


def test_losses_of_parts_add_up_to_the_loss_of_the_whole():
    model, x, y = double(), tokens(4, 8, 1), tokens(4, 8, 2)
    parts = [token_loss(model(a), b, global_tokens=32) for a, b in zip(x.split([1, 3]), y.split([1, 3]), strict=True)]
    mean = torch.nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
    torch.testing.assert_close(sum(parts), mean, rtol=1e-12, atol=0)


@pytest.mark.parametrize("sizes", [(0, 32, 4, 2, 8), (1, 30, 4, 2, 8), (1, 36, 4, 2, 8), (1, 32, 4, 3, 8)])
def test_sizes_that_do_not_fit_are_refused(sizes: tuple[int, ...]):
    with pytest.raises(BadInput):
        GPTConfig(*sizes)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("layers", 2.5),
        ("layers", "2"),
        ("width", 64.0),
        ("rotary_base", 0.0),
        ("rotary_base", -1.0),
        ("rotary_base", math.nan),
        ("norm_epsilon", -1e-5),
        ("norm_epsilon", math.nan),
    ],
)
def test_numbers_that_no_model_has_are_refused(field: str, value: object):
    with pytest.raises(BadInput, match=field if "_" in field else "every size of a model is a whole number"):
        replace(TINY, **{field: value})


def test_an_unknown_preset_is_answered_with_the_known_ones():
    with pytest.raises(BadInput, match="there are tiny, demo"):
        preset("huge")
