"""What is dropped follows from the token: the same on whichever rank holds it, and otherwise as good as chance.

Chance goes further than five standard deviations once in two million tries. The numbers here never change, so what has
passed once always passes.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor

from reference.errors import BadInput
from reference.memory.recompute import Recompute, recompute
from reference.memory.saved import saved_tensors
from reference.models import GPT, PRESETS, create, token_loss
from reference.models.dropout import dropout, dropped, number, token_seeds
from reference.models.gpt import Dropout

SIGMAS = 5
TOKENS, FEATURES = 512, 256


def mask(p: float = 0.5, seed: int = 0, step: int = 0, site: int = 0, token: int = 0, feature: int = 0) -> Tensor:
    """What is dropped of TOKENS tokens and FEATURES features from `token` and `feature` on."""
    seeds = token_seeds(seed, step, torch.arange(token, token + TOKENS))
    return dropped(p, seeds, site, feature, FEATURES)


def splitmix64(stream: int, index: int) -> int:
    """As in the paper, in whole numbers."""
    z = (stream + (index + 1) * 0x9E3779B97F4A7C15) % 2**64
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
    return z ^ z >> 31


def test_numbers_are_those_that_splitmix64_is_known_for():
    known = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821]
    assert [n % 2**64 for n in number(torch.tensor(1234567), torch.arange(5)).tolist()] == known


@pytest.mark.parametrize("stream", [-(2**63), -1, 0, 1, 2**62 + 12345, 2**63 - 1])
@pytest.mark.parametrize("index", [0, 1, 1_000_003, 2**63 - 2])
def test_64_bits_wrap_and_shift_as_if_they_had_no_sign(stream: int, index: int):
    for given in (index, torch.tensor(index)):
        assert number(torch.tensor(stream), given).item() % 2**64 == splitmix64(stream, index)


@pytest.mark.parametrize("p", [0.001, 0.1, 0.5, 0.9])
def test_as_many_are_dropped_as_are_meant_to_be(p: float):
    elements = TOKENS * FEATURES
    assert abs(mask(p).sum().item() - elements * p) < SIGMAS * math.sqrt(elements * p * (1 - p))


@pytest.mark.parametrize("p", [0.1, 0.5])
@pytest.mark.parametrize("dim", [0, 1], ids=["of features", "of tokens"])
def test_counts_vary_as_those_of_independent_draws(p: float, dim: int):
    """The sum of squared distances from the mean, in variances of a binomial, is chi-square distributed."""
    counts, draws = mask(p).sum(dim), mask(p).shape[dim]
    chi_square = ((counts - draws * p) ** 2 / (draws * p * (1 - p))).sum().item()
    assert abs(chi_square - len(counts)) < SIGMAS * math.sqrt(2 * len(counts))


OTHERS = [dict.fromkeys([name], by) for name in ("seed", "step", "site", "token", "feature") for by in (1, 2, 64, 1000)]


@pytest.mark.parametrize("other", OTHERS, ids=str)
def test_another_seed_step_site_token_or_feature_agrees_by_chance_alone(other: dict[str, int]):
    """Of two independent fair coins half agree."""
    agree = (mask() == mask(**other)).sum().item()
    assert abs(agree - TOKENS * FEATURES / 2) < SIGMAS * math.sqrt(TOKENS * FEATURES) / 2


def test_step_and_place_are_not_interchangeable():
    steps = torch.stack([token_seeds(0, step, torch.arange(50)) for step in range(50)])
    assert steps.unique().numel() == 2500


@pytest.mark.parametrize("name", ["seed", "step", "site", "token", "feature"])
def test_eight_neighbours_fall_in_all_ways_equally_often(name: str):
    """256 ways for eight neighbours to fall: chi-square with 255 degrees of freedom sees any pattern among them."""
    eight = torch.stack([mask(**{name: k}) for k in range(8)])
    if name == "token":
        eight = eight[:, ::8]  # a window of eight begins at each element: of those that share some, take one
    if name == "feature":
        eight = eight[:, :, ::8]
    ways = (eight.int() << torch.arange(8)[:, None, None]).sum(0)
    counts, expected = torch.bincount(ways.flatten(), minlength=256), ways.numel() / 256
    assert ((counts - expected) ** 2 / expected).sum().item() < 255 + SIGMAS * math.sqrt(2 * 255)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_what_is_kept_is_scaled_and_so_is_its_gradient(dtype: torch.dtype):
    generator = torch.Generator().manual_seed(0)
    x, gradient = (torch.randn(TOKENS, FEATURES, generator=generator).to(dtype) for _ in range(2))
    x.requires_grad_()
    y = dropout(x, 0.2, token_seeds(0, 0, torch.arange(TOKENS)), site=0)
    y.backward(gradient)
    zero = torch.zeros((), dtype=dtype)
    assert y.equal(torch.where(mask(0.2), zero, x * 1.25))  # 1 / (1 - 0.2) is 1.25 in double precision, too
    assert x.grad.equal(torch.where(mask(0.2), zero, gradient * 1.25))


def test_dropping_leaves_the_expectation_as_it_is():
    x = torch.linspace(-2, 3, FEATURES, dtype=torch.float64)
    mean = dropout(x.expand(TOKENS, -1), 0.3, token_seeds(0, 0, torch.arange(TOKENS)), site=0).mean(0)
    deviation = x.abs() * math.sqrt(0.3 / 0.7 / TOKENS)
    assert ((mean - x).abs() <= SIGMAS * deviation).all()


def test_an_infinity_that_is_dropped_is_gone():
    x = torch.full((TOKENS, FEATURES), math.inf)
    assert (dropout(x, 0.5, token_seeds(0, 0, torch.arange(TOKENS)), site=0)[mask()] == 0).all()


def test_with_probability_0_every_bit_stays():
    x = torch.randn(TOKENS, FEATURES, generator=torch.Generator().manual_seed(0))
    assert dropout(x, 0.0, token_seeds(0, 0, torch.arange(TOKENS)), site=0).equal(x)


def test_autograd_keeps_a_byte_for_each_element_and_nothing_else():
    x, seeds = torch.randn(TOKENS, FEATURES, requires_grad=True), token_seeds(0, 0, torch.arange(TOKENS))
    saved = saved_tensors(lambda: dropout(x, 0.5, seeds, site=0))
    assert [(one.tensor, one.bytes) for one in saved] == [(f"[{TOKENS}, {FEATURES}] bool", TOKENS * FEATURES)]


@pytest.mark.parametrize("parts", [2, 3, 7])
def test_whoever_holds_some_tokens_and_some_features_drops_what_one_process_drops(parts: int):
    x = torch.randn(2, 30, 20, generator=torch.Generator().manual_seed(0))
    seeds = token_seeds(0, 0, torch.arange(60).view(2, 30))
    rows = []
    for tokens, of_tokens in zip(x.tensor_split(parts, 1), seeds.tensor_split(parts, 1), strict=True):
        held = torch.arange(20).tensor_split(parts)
        rows.append(torch.cat([dropout(tokens[..., f], 0.4, of_tokens, 5, first=int(f[0])) for f in held], 2))
    assert torch.cat(rows, 1).equal(dropout(x, 0.4, seeds, 5))


def test_any_whole_number_is_a_seed():
    found = [token_seeds(seed, 0, torch.arange(3)).tolist() for seed in (0, 1, 2**63, 2**64 - 1, 3**70)]
    assert len({tuple(each) for each in found}) == 5


def test_shapes_alone_are_enough():
    places = torch.zeros(2, 3, dtype=torch.int64, device="meta")
    y = dropout(torch.zeros(2, 3, 4, device="meta", requires_grad=True), 0.5, token_seeds(0, 0, places), site=0)
    assert y.shape == (2, 3, 4) and y.is_meta


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_drops_what_the_cpu_drops():
    places = torch.arange(TOKENS)
    on_gpu = dropped(0.3, token_seeds(5, 7, places.cuda()), 2, 9, FEATURES).cpu()
    assert on_gpu.equal(dropped(0.3, token_seeds(5, 7, places), 2, 9, FEATURES))


CONFIG = replace(PRESETS["tiny"], dropout=0.3)
X = torch.arange(2 * 6).view(2, 6)
SEEDS = token_seeds(0, 0, X)


def model_of(p: float) -> GPT:
    return create(GPT, replace(CONFIG, dropout=p), dtype=torch.float64)


def test_a_model_drops_only_where_it_is_given_noise():
    without = model_of(0.0)(X)
    assert model_of(0.3)(X).equal(without)
    assert model_of(0.0)(X, dropout_seeds=SEEDS).equal(without)
    assert not model_of(0.3)(X, dropout_seeds=SEEDS).allclose(without)


def test_without_dropout_nothing_more_is_kept():
    model = model_of(0.0)
    assert saved_tensors(lambda: model(X, dropout_seeds=SEEDS)) == saved_tensors(lambda: model(X))


def test_what_blocks_add_is_dropped_and_the_residual_stream_is_not():
    """If nearly everything is dropped, blocks add nothing: 1536 elements are kept with a probability of 1e-11."""
    model = model_of(1 - 2**-47)
    assert model(X, dropout_seeds=SEEDS).equal(model.head(model.norm(model.embedding(X))))


def test_every_dropout_of_a_model_drops_something_else():
    sites = [module.site for module in model_of(0.3).modules() if isinstance(module, Dropout)]
    assert sites == list(range(2 * CONFIG.layers))


def test_a_window_drops_the_same_alone_and_among_others():
    model = model_of(0.3)
    alone = torch.cat([model(X[i : i + 1], dropout_seeds=SEEDS[i : i + 1]) for i in range(2)])
    torch.testing.assert_close(alone, model(X, dropout_seeds=SEEDS), rtol=1e-10, atol=1e-13)


def gradients(change: Callable[[GPT], None]) -> dict[str, Tensor]:
    model = model_of(0.3)
    change(model)
    token_loss(model(X, dropout_seeds=SEEDS), X, X.numel()).backward()
    return {name: p.grad for name, p in model.named_parameters()}


@pytest.mark.parametrize("how", [Recompute.SELECTIVE, Recompute.FULL])
def test_what_is_recomputed_drops_the_same_again(how: Recompute):
    expected = gradients(lambda model: None)
    for name, gradient in gradients(partial(recompute, how=how)).items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-10, atol=1e-13)  # SELECTIVE adds in another order


@pytest.mark.parametrize("p", [-0.1, 1.0, 2.0, math.nan])
def test_a_share_that_leaves_nothing_or_makes_no_sense_is_refused(p: float):
    with pytest.raises(BadInput, match="from 0 to below 1"):
        replace(CONFIG, dropout=p)
