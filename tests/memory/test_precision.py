"""What few bits lose, masters and fp32 sums keep; what fp16 cannot reach, a scale brings within reach."""

import gc
import math
import weakref
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn

from reference.cluster import Cluster
from reference.errors import BadInput
from reference.memory.lab.sums import kahan_sum, running_sum, stochastic_round, stochastic_sum
from reference.memory.loss_scaling import LossScaler, NoScaler, scaler_of
from reference.memory.precision import PRECISIONS, MasterWeights
from reference.models import GPT, PRESETS, create, token_loss
from reference.oracle import relative_difference

TOKENS = torch.randint(256, (4, 16), generator=torch.Generator().manual_seed(0))
LOW = ["bf16", "fp16"]


def test_ones_in_bf16_add_up_to_256_and_no_further():
    sums = running_sum(torch.ones(1000), torch.bfloat16)
    assert sums[:256].tolist() == list(range(1, 257))
    assert (sums[256:] == 256).all()
    assert running_sum(torch.ones(1000), torch.float32)[-1] == 1000


def test_a_compensated_sum_does_not_stall():
    values = torch.full((1000,), 0.01).bfloat16()
    exact = values.double().cumsum(0)
    assert relative_difference(kahan_sum(values, torch.bfloat16), exact) < 2**-8  # half a step of the last sum
    assert relative_difference(running_sum(values, torch.bfloat16), exact) > 0.5


def test_a_compensated_sum_of_equal_terms_stalls_at_the_square_of_where_a_plain_one_does():
    sums = kahan_sum(torch.ones(70_000), torch.bfloat16)
    assert sums[2**16 - 1] == sums[-1] == 2**16


def test_random_rounding_is_right_on_average():
    x = torch.full((100_000,), 1 + 0.3 * 2**-7)  # 0.3 of the way from 1 to the next bf16
    rounded = stochastic_round(x, torch.Generator().manual_seed(0))
    assert set(rounded.tolist()) == {1.0, 1 + 2**-7}
    up = (rounded > 1).double().mean().item()
    assert up == pytest.approx(0.3, abs=5 * math.sqrt(0.3 * 0.7 / len(x)))  # five standard deviations


def test_random_rounding_keeps_what_bf16_can_hold():
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0)).bfloat16()
    assert torch.equal(stochastic_round(x.float()), x)


def test_a_randomly_rounded_sum_does_not_stall():
    sums = stochastic_sum(torch.ones(1000, 64), torch.Generator().manual_seed(0))
    assert sums[-1].double().mean().item() == pytest.approx(1000, rel=0.02)


def exact_model() -> GPT:
    return create(GPT, PRESETS["tiny"])


@pytest.mark.parametrize("name", LOW)
def test_gradients_of_many_micro_batches_are_added_up_in_fp32(name: str):
    precision = PRECISIONS[name]
    parameter = nn.Parameter(torch.ones(4))
    weights = MasterWeights([parameter], precision)
    for _ in range(5000):
        parameter.sum().backward()
    assert parameter.grad is None  # none keeps two
    weights.collect()
    assert weights.masters[0].grad.dtype == torch.float32
    assert (weights.masters[0].grad == 5000).all()  # 256 in bf16, 2048 in fp16


@pytest.mark.parametrize("name", LOW)
def test_small_updates_reach_the_model_in_the_end(name: str):
    parameter = nn.Parameter(torch.ones(4))
    weights = MasterWeights([parameter], PRECISIONS[name])
    optimizer = torch.optim.SGD(weights.masters, lr=1e-4)
    for _ in range(100):
        parameter.sum().backward()
        weights.collect()
        optimizer.step()
        weights.publish()
    assert parameter.dtype == PRECISIONS[name].compute
    assert parameter[0].item() == pytest.approx(0.99, rel=2**-8)  # 1 - 1e-4 is 1 in both
    assert weights.masters[0][0].item() == pytest.approx(0.99, rel=1e-5)


def test_masters_are_as_exact_as_the_weights_that_were_given():
    model = exact_model()
    before = [p.detach().clone() for p in model.parameters()]
    weights = MasterWeights(model.parameters(), PRECISIONS["bf16"])
    assert all(map(torch.equal, weights.masters, before))
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}


def test_who_is_used_by_nobody_gets_no_gradient():
    used, unused = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
    weights = MasterWeights([used, unused], PRECISIONS["bf16"])
    used.sum().backward()
    weights.collect()
    assert [master.grad is None for master in weights.masters] == [False, True]


def test_who_is_frozen_is_rounded_and_has_no_master():
    trained, frozen = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1), requires_grad=False)
    weights = MasterWeights([frozen, trained], PRECISIONS["bf16"])
    assert len(weights.masters) == 1
    (trained * frozen).sum().backward()
    weights.collect()
    assert weights.masters[0].grad.item() == 1
    assert frozen.dtype == trained.dtype == torch.bfloat16


def test_frozen_integers_stay_as_they_are():
    codes = nn.Parameter(torch.tensor([257, -3]), requires_grad=False)
    MasterWeights([codes], PRECISIONS["bf16"])
    assert codes.dtype == torch.int64
    assert codes.tolist() == [257, -3]


def train(name: str, steps: int = 8) -> tuple[list[float], list[float]]:
    """Losses and loss scales of a tiny model that learns four windows by heart."""
    model, precision = exact_model(), PRECISIONS[name]
    weights, scaler = MasterWeights(model.parameters(), precision), scaler_of(precision)
    optimizer = torch.optim.Adam(weights.masters, lr=3e-3)
    losses, scales = [], []
    for _ in range(steps):
        loss = token_loss(model(TOKENS), TOKENS, TOKENS.numel())
        scaler.scale(loss).backward()
        weights.collect()
        finite = scaler.unscale(master.grad for master in weights.masters)
        if finite:
            optimizer.step()
            weights.publish()
        scaler.update(finite)
        losses.append(loss.item())
        scales.append(scaler.state_dict().get("factor"))
    return losses, scales


@pytest.mark.parametrize("name", LOW)
def test_mixed_precision_learns_as_fp32_does(name: str):
    # bf16 rounds each activation by up to 2^-9, fp16 by 2^-12; the loss is a mean over 64 tokens.
    assert relative_difference(train(name)[0], train("fp32")[0]) < (1e-2 if name == "bf16" else 2e-3)


def test_a_gradient_too_small_for_fp16_survives_when_the_loss_is_scaled():
    def gradient(scaler: LossScaler | NoScaler) -> float:
        parameter = nn.Parameter(torch.ones(1))
        weights = MasterWeights([parameter], PRECISIONS["fp16"])
        scaler.scale((parameter * 1e-4).sum().float() * 1e-5).backward()
        weights.collect()
        assert scaler.unscale([weights.masters[0].grad])
        return weights.masters[0].grad.item()

    assert gradient(NoScaler()) == 0  # 1e-9, where fp16 ends at 6e-8
    assert gradient(LossScaler()) == pytest.approx(1e-9, rel=1e-2)


def test_scaling_rounds_nothing():
    scaler, parameter = LossScaler(), nn.Parameter(torch.randn(100, generator=torch.Generator().manual_seed(0)))
    right = (parameter.detach() * 2).clone()
    scaler.scale(parameter.square().sum()).backward()
    assert scaler.unscale([parameter.grad])
    assert torch.equal(parameter.grad, right)


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_one_bad_number_among_many_is_found(bad: float):
    gradients = [torch.ones(3), None, torch.ones(0), torch.ones(5, 7)]
    assert LossScaler().unscale(gradients)
    gradients[3][4, 2] = bad
    assert not LossScaler().unscale(gradients)


def test_no_gradients_at_all_are_all_finite():
    assert LossScaler().unscale([])


def test_the_scale_is_halved_when_it_is_too_much_and_doubled_after_enough_good_steps():
    scaler, seen = LossScaler(factor=8, interval=3), []
    for finite in (True, True, False, True, True, True, True, False, False, True):
        scaler.update(finite)
        seen.append(scaler.factor)
    assert seen == [8, 8, 4, 4, 4, 8, 8, 4, 2, 2]


def test_a_loss_that_overflows_at_any_scale_is_an_error_and_no_endless_skipping():
    scaler = LossScaler(factor=4)
    with pytest.raises(FloatingPointError, match="however little the loss is scaled"):
        for _ in range(100):
            scaler.update(finite=False)
    assert scaler.factor > 0


def test_the_scale_stays_a_number_of_fp32():
    scaler = LossScaler(interval=1)
    for _ in range(200):
        scaler.update(finite=True)
    assert scaler.factor == 2.0**127
    assert scaler.scale(torch.ones(())).isfinite()


def test_what_scales_nothing_is_refused():
    for option in ({"factor": 0.0}, {"interval": 0}):
        with pytest.raises(BadInput, match="a scale is above 0, and is doubled after at least 1 good step"):
            LossScaler(**option)
    with pytest.raises(BadInput, match="gradients in fp16 vanish"):
        LossScaler().unscale([torch.ones(1, dtype=torch.float16)])


def test_a_scaler_goes_on_where_it_was():
    first, second = LossScaler(factor=8, interval=3), LossScaler(interval=3)
    first.update(True), first.update(True)
    second.load_state_dict(first.state_dict())
    first.update(True), second.update(True)
    assert first.state_dict() == second.state_dict() == {"factor": 16, "good_steps": 0}


def test_only_fp16_is_scaled():
    assert [name for name in PRECISIONS if isinstance(scaler_of(PRECISIONS[name]), LossScaler)] == ["fp16"]


def unscale_on_rank(bad_rank: int | None, group: dist.ProcessGroup) -> tuple[bool, float]:
    """One rank has an infinite gradient; one of them has none at all."""
    rank, scaler = dist.get_rank(group), LossScaler(factor=4)
    gradient = torch.full((2,), 12.0) if rank else None
    if rank == bad_rank:
        gradient[1] = math.inf
    finite = scaler.unscale([gradient], [group])
    scaler.update(finite)
    return finite, scaler.factor


@pytest.fixture(scope="module")
def three(clusters) -> Cluster:
    return clusters(3)


@pytest.mark.parametrize(("bad_rank", "outcome"), [(None, (True, 4)), (1, (False, 2)), (2, (False, 2))])
def test_all_ranks_skip_a_step_or_none_does(three: Cluster, bad_rank: int | None, outcome: tuple[bool, float]):
    assert three.run(partial(on_world, unscale_on_rank, bad_rank)) == [outcome] * 3


def on_world(function, *arguments):
    return function(*arguments, dist.group.WORLD)


def test_the_loss_of_bf16_logits_is_summed_in_fp32():
    logits = torch.randn(4, 16, 256, generator=torch.Generator().manual_seed(0)).bfloat16()
    mine, right = (token_loss(x, TOKENS, TOKENS.numel()) for x in (logits, logits.double()))
    assert mine.dtype == torch.float32
    assert relative_difference(mine, right) < 1e-6


def test_masters_that_nobody_holds_are_freed():
    """Autograd holds the hooks, and must not hold what they serve."""
    parameter = nn.Parameter(torch.ones(3))
    weights = weakref.ref(MasterWeights([parameter], PRECISIONS["bf16"]))
    gc.collect()
    assert weights() is None
    parameter.sum().backward()  # and without them, backward is backward
    assert parameter.grad.tolist() == [1.0] * 3
