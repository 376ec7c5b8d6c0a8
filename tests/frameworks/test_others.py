"""Why Megatron, TorchTitan and FairScale's experts come out as they do: each cause by itself, without them."""

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
import torch
import torch.distributed as dist
from fairscale.nn.moe import top2gate
from torch import Tensor, nn

from reference.cluster import Cluster
from reference.errors import BadInput
from reference.frameworks import rows
from reference.frameworks.adapters import as_gpu
from reference.frameworks.adapters.with_fairscale_moe import losses
from reference.frameworks.catalogue import EXACT, FAIRSCALE, OWN_LAYERS, SINGLE, find
from reference.frameworks.environments import python_of
from reference.frameworks.lab import runs
from reference.frameworks.plain import Course, one_process, with_experts
from reference.models import moe
from reference.models.grouped import grouped
from reference.oracle import alone, relative_difference
from reference.trace import Op

STORED = {(row.framework, row.feature): row for row in rows.load()}
as_stored = pytest.mark.skipif(
    sys.version_info[:2] != (3, 11), reason="stored rows have learned from the documentation of Python 3.11"
)


def of_experts(course: Course, feature: str) -> list[float]:
    return list(losses(course, feature))


def test_fairscales_layer_with_our_gate_is_our_layer(clusters: Callable[..., Cluster]) -> None:
    course = with_experts(steps=3, dtype=torch.float32)
    found, trace = clusters(2).trace(of_experts, course, "moe-our-gate")
    mean = [sum(each) / len(each) for each in zip(*found, strict=True)]
    assert relative_difference(mean, one_process(course)) <= FAIRSCALE.features["moe-our-gate"].bound
    sent = [event for event in trace.events[0] if event.op is Op.ALL_TO_ALL]
    assert len(sent) == course.steps * course.config.layers * 4  # there and back, and so in backward


def test_its_own_gate_draws_the_second_expert() -> None:
    torch.manual_seed(0)
    logits = torch.randn(64, 4)
    first, second = (top2gate.top2gating(logits)[2].any(2) for _ in range(2))
    best = logits.argmax(1, keepdim=True)
    kept = first.gather(1, best)
    assert torch.equal(kept, second.gather(1, best))  # first choices come first, so they do not depend on the others
    assert not torch.equal(first, second)


def test_its_own_gate_drops_what_comes_late() -> None:
    logits = torch.tensor([[9.0, 0.0, 0.0, 0.0]]).expand(64, 4)
    _, _, slots = top2gate.top2gating(logits)
    assert slots[:, 0].any(1).sum() == 2 * 64 // 4
    assert not slots[32:, 0].any()


def back_and_forth() -> list[float]:
    """On a rank: what comes from before and from behind, where both are the same rank, in Megatron's order."""
    rank, other = dist.get_rank(), 1 - dist.get_rank()
    before, behind = torch.empty(1), torch.empty(1)
    ops = [
        dist.P2POp(dist.isend, torch.tensor([10.0 + rank]), other),  # to the one before
        dist.P2POp(dist.irecv, before, other),
        dist.P2POp(dist.isend, torch.tensor([20.0 + rank]), other),  # to the one behind
        dist.P2POp(dist.irecv, behind, other),
    ]
    for request in dist.batch_isend_irecv(ops):
        request.wait()
    return [before.item(), behind.item()]


def test_two_ranks_that_are_each_others_neighbours_on_both_sides_mix_up_a_batch(
    clusters: Callable[..., Cluster],
) -> None:
    """What was sent to the one behind should come from the one before: 20 and more first."""
    assert clusters(2).run(back_and_forth) == [[11.0, 21.0], [10.0, 20.0]]


@cache
def without_decay_of_norms(course: Course) -> list[float]:
    model = course.model()
    kinds = [[p for p in model.parameters() if (p.dim() > 1) == decays] for decays in (True, False)]
    optimizer = course.optimizer([{"params": kinds[0]}, {"params": kinds[1], "weight_decay": 0.0}])
    losses = alone(model, optimizer, lambda step: loss_of(course, model, step), course.steps)
    return [step.loss.item() for step in losses]


def loss_of(course: Course, model: nn.Module, step: int) -> Tensor:
    tokens, targets = course.read(step)
    return course.loss(model(tokens), targets)


@as_stored
def test_megatrons_scheduler_is_as_far_off_as_a_run_that_does_not_let_norms_decay() -> None:
    course = Course(dtype=torch.float32)
    apart = relative_difference(without_decay_of_norms(course), one_process(course))
    assert STORED["megatron", "distributed-scheduled"].apart == pytest.approx(apart, rel=0.1)


def in_bfloat16(x: Tensor, weights: Tensor, counts: list[int]) -> Tensor:
    return grouped(x.bfloat16(), weights.bfloat16(), counts).float()


def test_torchtitans_experts_are_as_far_off_as_ours_in_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    course = with_experts(dtype=torch.float32)
    right = one_process(course)
    monkeypatch.setattr(moe, "grouped", in_bfloat16)
    apart = relative_difference(one_process(course), right)
    assert 0.1 < STORED["torchtitan", "experts"].apart / apart < 10


def test_a_cpu_that_is_taken_for_a_gpu() -> None:
    with as_gpu.OnCPU(types=True):
        made = torch.zeros(2, device="cuda")
        assert made.type() == "torch.cuda.FloatTensor"
    assert made.type() == "torch.FloatTensor"
    with as_gpu.OnCPU(types=False):
        assert made.type() == "torch.FloatTensor"


def test_megatrons_own_model_sends_more_by_the_logits_that_are_gathered() -> None:
    """Ours says three numbers of a token to make a loss of parts of the vocabulary."""
    course, row = Course(), STORED["megatron", "gpt-patched"]
    tokens = course.batch * course.sequence
    assert row.sent - row.formula == 8 * tokens * (course.config.vocabulary // 2 - 3)


def test_megatrons_distributed_optimizer_pads_and_sums_a_norm() -> None:
    numbers = sum(-(-parameter.numel() // 64) * 64 for parameter in Course().model().parameters())
    padded, norm = -(-numbers // 128) * 128, 1
    assert STORED["megatron", "distributed-patched"].sent == 4 * (padded + norm)  # of four bytes, on two ranks


@as_stored
def test_a_curve_in_float32_is_some_millionths_from_that_in_float64() -> None:
    apart = relative_difference(one_process(Course(dtype=torch.float32)), one_process(Course()))
    assert SINGLE < apart < OWN_LAYERS


def test_clients_count_by_their_examples_and_alike_ones_that_take_one_step_are_one_process() -> None:
    """FedAvg, to which Flower's is held."""
    alike = Course(steps=3, inner_steps=1, sgd=True, clients=(4, 4))
    assert relative_difference(one_process(alike), one_process(replace(alike, clients=()))) < EXACT
    uneven = Course(steps=6, inner_steps=3, clients=(6, 2))
    others = replace(uneven, clients=(2, 6)), replace(uneven, inner_steps=2)
    assert all(relative_difference(one_process(other), one_process(uneven)) > 1e-3 for other in others)
    cut = replace(uneven, steps=4)  # in its second round
    assert one_process(cut) == one_process(uneven)[:4]


@pytest.mark.long
def test_flowers_fedavg_of_uneven_clients_is_ours() -> None:
    flower, features = find("flower", "fedavg-uneven")
    try:
        python_of("flower", flower)
    except BadInput as reason:
        pytest.skip(str(reason))
    row = runs.run("flower", flower, "fedavg-uneven", features["fedavg-uneven"])
    assert not row.error and row.is_equal


@pytest.mark.parametrize("feature", ["fsdp-sums", "cp-ring"])
def test_torchtitan_gathers_the_last_norm_and_the_head_once(feature: str) -> None:
    config, row = Course().config, STORED["torchtitan", feature]
    unit = config.width + config.vocabulary * config.width
    assert row.formula - row.sent == 4 * unit // 2


def test_torchtitan_sums_gradients_of_norms_once_where_dtensors_alone_sum_them_three_times() -> None:
    course, titan, torchs = Course(), STORED["torchtitan", "sp"], STORED["torch", "sp"]
    norms = sum(parameter.numel() for name, parameter in course.model().named_parameters() if "norm" in name)
    assert torchs.sent // 2 - titan.sent == 2 * 4 * norms  # ours are of float64
