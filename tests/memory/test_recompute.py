"""Recomputed blocks give the gradients of blocks that kept everything, and keep what the table in the module says."""

import weakref
from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reference.errors import BadInput
from reference.memory.history import MemoryKind
from reference.memory.lab.gauge import Gauge
from reference.memory.recompute import FullyRecomputed, Recompute, forgetting, recompute, recomputed
from reference.models import GPT, PRESETS, GPTConfig, create, token_loss
from reference.models.gpt import rotary_cos_sin
from reference.oracle import relative_difference

TINY = PRESETS["tiny"]
TOKENS = torch.randint(256, (2, 12), generator=torch.Generator().manual_seed(0))
FORMS = [Recompute.SELECTIVE, Recompute.FULL]


def model_with(how: Recompute, config: GPTConfig = TINY, dtype: torch.dtype = torch.float64, device="cpu") -> GPT:
    model = create(GPT, config, dtype=dtype, device=device)
    recompute(model, how)
    return model


def backward(model: GPT, tokens: Tensor = TOKENS) -> Tensor:
    loss = token_loss(model(tokens), tokens, tokens.numel())
    loss.backward()
    return loss.detach()


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def worst(mine: nn.Module, oracle: nn.Module) -> float:
    right = gradients(oracle)
    return max(relative_difference(gradient, right[name]) for name, gradient in gradients(mine).items())


@pytest.mark.parametrize("how", FORMS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_loss_is_bitwise_the_same(how: Recompute, dtype: torch.dtype):
    assert torch.equal(backward(model_with(how, dtype=dtype)), backward(model_with(Recompute.NONE, dtype=dtype)))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_full_recomputation_gives_bitwise_the_same_gradients(dtype: torch.dtype):
    kept, made_again = model_with(Recompute.NONE, dtype=dtype), model_with(Recompute.FULL, dtype=dtype)
    backward(kept), backward(made_again)
    assert worst(made_again, kept) == 0


def test_selective_recomputation_adds_gradients_in_another_order_and_no_more():
    kept, made_again = model_with(Recompute.NONE), model_with(Recompute.SELECTIVE)
    backward(kept), backward(made_again)
    assert worst(made_again, kept) < 1e-13  # float64 rounds at 1e-16; a lost contribution would show at 1e-2


@pytest.mark.parametrize("how", FORMS)
def test_a_second_micro_batch_adds_to_the_first(how: Recompute):
    kept, made_again = model_with(Recompute.NONE), model_with(how)
    for model in (kept, made_again):
        backward(model), backward(model, TOKENS.flip(1))
    assert worst(made_again, kept) < 1e-13


BATCH, SEQUENCE = 4, 16
WIDE = GPTConfig(layers=1, width=64, heads=4, kv_heads=2, hidden=160)
D, D_KV, HIDDEN = WIDE.width, WIDE.width // 2, WIDE.hidden
KEPT = {  # elements for each token
    Recompute.SELECTIVE: 3 * D + 2 * D_KV + 2 * HIDDEN,
    Recompute.FULL: D,
}


def bytes_kept(how: Recompute, dtype: torch.dtype, device: str) -> int:
    """Activations that one block keeps from forward to backward, its input included."""
    model = model_with(how, WIDE, dtype, device)
    cos_sin = rotary_cos_sin(torch.arange(SEQUENCE, device=device), WIDE.head_dim, WIDE.rotary_base)
    outside = torch.ones(BATCH, SEQUENCE, D, dtype=dtype, device=device, requires_grad=True)
    with Gauge({MemoryKind.PARAMETERS: model.parameters}) as gauge:
        x = outside * 1
        loss = model.blocks[0](x, cos_sin).sum()
        del x
        gauge.mark("backward")
        held = gauge.history.at("backward")[MemoryKind.ACTIVATIONS]
        loss.backward()
    return held - loss.nbytes


@pytest.mark.parametrize("how", FORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_block_keeps_what_the_table_says_to_the_byte(how: Recompute, dtype: torch.dtype, device: str):
    assert bytes_kept(how, dtype, device) == BATCH * SEQUENCE * KEPT[how] * dtype.itemsize


def test_without_recomputation_a_block_keeps_more_than_twice_as_much_as_selectively():
    selective = bytes_kept(Recompute.SELECTIVE, torch.float32, "cpu")
    assert bytes_kept(Recompute.NONE, torch.float32, "cpu") > 2 * selective


@pytest.mark.parametrize("how", FORMS)
def test_nothing_is_left_behind_when_backward_is_over(how: Recompute):
    model = model_with(how)
    seen: list[weakref.ref] = []
    model.blocks[1].register_forward_hook(lambda block, inputs, output: seen.extend(map(weakref.ref, inputs)))
    backward(model)
    assert [x() for x in seen] == [None, None]


def counted(module: nn.Module, name: str) -> list[int]:
    """Counts the calls of a method, from inside of whatever recomputes it."""
    calls, method = [0], getattr(module, name)

    def counting(*inputs: Tensor) -> Tensor:
        calls[0] += 1
        return method(*inputs)

    setattr(module, name, counting)
    return calls


@pytest.mark.parametrize(
    ("how", "products", "cores"), [(Recompute.NONE, 1, 1), (Recompute.SELECTIVE, 1, 2), (Recompute.FULL, 2, 2)]
)
def test_selective_recomputation_repeats_no_matrix_product(how: Recompute, products: int, cores: int):
    model = create(GPT, TINY, dtype=torch.float64)
    block = model.blocks[0]
    product_calls = [counted(m, "forward") for m in block.modules() if isinstance(m, nn.Linear)]
    core_calls = [counted(block.attention, "core"), counted(block.feed_forward, "gated")]
    recompute(model, how)
    backward(model)
    assert product_calls == [[products]] * 7
    assert core_calls == [[cores]] * 2


@pytest.mark.parametrize("how", FORMS)
def test_hooks_run_once(how: Recompute):
    model, calls = model_with(how), []
    for block in model.blocks:
        block.register_forward_hook(lambda *_: calls.append("forward"))
        block.register_full_backward_hook(lambda *_: calls.append("backward"))
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(calls.append)
    backward(model)
    assert calls.count("forward") == calls.count("backward") == TINY.layers
    for parameter in model.parameters():
        assert sum(call is parameter for call in calls) == 1


@pytest.mark.parametrize("how", FORMS)
def test_a_frozen_embedding_does_not_cost_the_blocks_their_gradients(how: Recompute):
    kept, made_again = model_with(Recompute.NONE), model_with(how)
    for model in (kept, made_again):
        model.embedding.weight.requires_grad_(False)
        x = model.blocks[0](model.embedding(TOKENS), rotary_cos_sin(torch.arange(12), TINY.head_dim, 1e4))
        x.square().sum().backward()
    for mine, right in zip(made_again.blocks[0].parameters(), kept.blocks[0].parameters(), strict=True):
        assert relative_difference(mine.grad, right.grad) < 1e-13
    assert made_again.embedding.weight.grad is None


@pytest.mark.parametrize("how", FORMS)
def test_a_model_that_learns_nothing_may_go_backward_to_its_input(how: Recompute):
    model = model_with(how).requires_grad_(False)
    x = torch.randn(2, 12, TINY.width, dtype=torch.float64, requires_grad=True)
    cos_sin = rotary_cos_sin(torch.arange(12), TINY.head_dim, 1e4)
    model.blocks[0](x, cos_sin).sum().backward()
    assert x.grad.abs().sum() > 0
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("how", FORMS)
def test_without_gradients_nothing_is_kept(how: Recompute):
    with torch.no_grad():
        assert model_with(how)(TOKENS).grad_fn is None


@pytest.mark.parametrize("how", FORMS)
def test_meta_tensors_go_through(how: Recompute):
    model = model_with(how, device="meta")
    backward(model, TOKENS.to("meta"))
    assert all(gradient.is_meta for gradient in gradients(model).values())


def drop(x: Tensor) -> Tensor:
    return F.dropout(x, 0.5)


def twice(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Recomputed, inside of something recomputed."""
    return partial(recomputed, lambda x: recomputed(function, function(x)))


@pytest.mark.parametrize("recomputing", [partial(recomputed, drop), twice(drop)], ids=["once", "nested"])
def test_dropout_drops_the_same_elements_both_times(recomputing: Callable[[Tensor], Tensor]):
    x = torch.ones(1000, requires_grad=True)
    y = recomputing(x)
    y.sum().backward()
    assert torch.equal(x.grad, y)  # y = mask · x with x = 1, so its gradient is the mask
    assert 0 < y.count_nonzero() < 1000


def test_the_random_state_outside_does_not_notice():
    def numbers(call: Callable[[Tensor], Tensor]) -> Tensor:
        torch.manual_seed(3)
        x = torch.ones(8, requires_grad=True)
        y = call(x)
        between = torch.rand(4)
        y.sum().backward()
        return torch.cat([between, torch.rand(4)])

    assert torch.equal(numbers(partial(recomputed, drop)), numbers(drop))


def test_of_several_outputs_some_may_be_unused_and_some_need_no_gradient():
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return x * y, x.argsort(), y.detach() * 2, x.exp(), x

    def run(call: Callable[..., tuple[Tensor, ...]]) -> Tensor:
        x = torch.linspace(1, 2, 5, dtype=torch.float64, requires_grad=True)
        y = torch.linspace(3, 4, 5, dtype=torch.float64)  # needs no gradient
        product, order, doubled, _, same = call(x, y)
        (product * doubled + order + same).sum().backward()
        assert y.grad is None
        return x.grad

    assert torch.equal(run(partial(recomputed, function)), run(function))


def test_an_error_in_the_second_run_leaves_the_random_state_alone():
    def fails_the_second_time(x: Tensor) -> Tensor:
        torch.rand(3)
        if torch.is_grad_enabled():
            raise ArithmeticError("second run")
        return x * 2

    y = recomputed(fails_the_second_time, torch.ones(1, requires_grad=True))
    before = torch.get_rng_state()
    with pytest.raises(ArithmeticError):
        y.backward()
    assert torch.equal(torch.get_rng_state(), before)


def test_autograd_grad_is_refused_since_gradients_would_go_to_the_wrong_place():
    x = torch.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError, match=r"call backward\(\)"):
        torch.autograd.grad(recomputed(torch.exp, x).sum(), x)


@pytest.mark.parametrize("how", FORMS)
@pytest.mark.parametrize("backward_inside", [False, True])
def test_the_second_run_computes_in_the_dtypes_of_the_first(how: Recompute, backward_inside: bool):
    kept, made_again = (model_with(each, dtype=torch.float32) for each in (Recompute.NONE, how))
    for model in (kept, made_again):
        with torch.autocast("cpu", torch.bfloat16):
            loss = token_loss(model(TOKENS), TOKENS, TOKENS.numel())
            if backward_inside:
                loss.backward()
        if not backward_inside:
            loss.backward()
    assert worst(made_again, kept) == 0


def test_what_is_saved_the_other_way_around_is_not_forgotten():
    weight = torch.randn(4, 4, dtype=torch.float64, requires_grad=True)

    def gradients_with(x: Tensor, call: Callable[..., Tensor], keep: Callable[..., Tensor]) -> tuple[Tensor, Tensor]:
        loss = keep(lambda y: weight @ y.t(), call(torch.tanh, x)).square().sum()
        loss.backward()
        found = x.grad, weight.grad
        x.grad = weight.grad = None
        return found

    x = torch.randn(4, 4, dtype=torch.float64, requires_grad=True)
    right = gradients_with(x, lambda function, x: function(x), lambda function, y: function(y))
    mine = gradients_with(x, recomputed, forgetting)
    assert all(map(torch.equal, mine, right))


def test_what_cannot_be_is_said():
    with pytest.raises(BadInput, match="a way called 'nonsense'; there are none, selective, full"):
        recompute(model_with(Recompute.NONE), "nonsense")
    with pytest.raises(BadInput, match=r"given tensors, not int; bind others with functools\.partial"):
        recomputed(torch.mul, torch.ones(1), 3)


@pytest.mark.parametrize(
    ("returned", "kind"),
    [(lambda y: [y], "list"), (lambda y: {"y": y}, "dict"), (lambda y: (y, None), "NoneType in a tuple")],
)
def test_outputs_that_autograd_would_not_see_are_refused(returned: Callable[[Tensor], object], kind: str):
    """The function's parameters would get no gradients, and nothing would say so."""
    layer = nn.Linear(2, 2)
    with pytest.raises(BadInput, match=f"a tensor or a tuple of tensors, not a {kind}"):
        recomputed(lambda x: returned(layer(x)), torch.ones(1, 2))


def test_a_way_may_be_given_by_its_name():
    model = model_with(Recompute.NONE)
    recompute(model, "full")
    assert all(type(block.ops) is FullyRecomputed for block in model.blocks)
