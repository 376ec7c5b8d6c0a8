"""Linear layers of 8-bit numbers: under every plan what one process learns, and near what more bits learn."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from rankwise import on_rank
from reference.choices import LinearNumbers
from reference.cluster import Cluster
from reference.collectives.communicator import Native
from reference.compression.gathered import EightBits
from reference.compression.low_bits import ByKernel
from reference.compression.plain_low_bits import (
    FP8,
    INT8,
    DelayedScale,
    EightBitNumbers,
    linear,
    pack,
    rows,
    scale_of,
    stochastic_bf16,
    unpack,
)
from reference.config import TrainConfig
from reference.memory.precision import PRECISIONS
from reference.models import GPT, PRESETS, create
from reference.oracle import largest_difference, one_process
from reference.parallelize import DataParallelism, PipelineSchedule, Plan
from reference.train import Training

from ..data_parallel.traffic import cut

Clusters = Callable[..., Cluster]
FORMS = DataParallelism
CONFIG = TrainConfig(
    PRESETS["tiny"], steps=3, batch=8, sequence=16, warmup=2, precision=PRECISIONS["fp64"], linear=LinearNumbers.FP8
)
EXACT = 1e-9
LAYERS = EightBits(FP8, None)
PLANS = {
    "ddp": Plan(FORMS.DDP),
    "fsdp": Plan(FORMS.FSDP),
    "ddp, tp": Plan(FORMS.DDP, tensor_parallel=2),
    "fsdp, sp": Plan(FORMS.FSDP, tensor_parallel=2, sequence_parallel=True),
    "async": Plan(tensor_parallel=2, sequence_parallel=True, async_tensor_parallel=True),
    "zero bubble": Plan(FORMS.ZERO1, pipeline_parallel=2, micro_batches=2, schedule=PipelineSchedule.ZB_H1),
    "pipeline, tp": Plan(pipeline_parallel=2, micro_batches=2, tensor_parallel=2),
}


@pytest.mark.turns(3)
@pytest.mark.parametrize("kind", [LinearNumbers.FP8, LinearNumbers.INT8])
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_any_plan_learns_what_one_process_learns(clusters: Clusters, plan: Plan, kind: LinearNumbers) -> None:
    config = replace(CONFIG, linear=kind)
    difference = largest_difference(clusters(4).run(on_rank.record, config, plan)[0], one_process(config))
    assert max(difference.values()) < EXACT, difference


@pytest.mark.parametrize("kind", [LinearNumbers.FP8, LinearNumbers.INT8])
def test_shards_are_rounded_as_the_layer_rounds_in_16_bits(clusters: Clusters, kind: LinearNumbers) -> None:
    """Of 30 numbers in bf16 one is between two of fp8, and goes another way than it did in float32."""
    config = replace(CONFIG, linear=kind, precision=PRECISIONS["bf16"])
    replicas, shards = (clusters(2).run(on_rank.record, config, Plan(form))[0] for form in (FORMS.DDP, FORMS.FSDP))
    assert max(largest_difference(shards, replicas).values()) < 1e-5


def test_parts_of_a_gradient_are_not_rounded(clusters: Clusters) -> None:
    """With more ranks than heads of keys: a sum of rounded parts is not the rounded sum."""
    refused = clusters(4).run(on_rank.train_or_refuse, CONFIG, Path("unused"), Plan(tensor_parallel=4), None)
    assert "parts cannot be rounded before they are added up: take up to 2 tensor-parallel ranks" in str(refused[0])


def gathered(clusters: Clusters, config: TrainConfig, plan: Plan) -> dict[str, int]:
    """Bytes that rank 0 brings to torch's own all-gathers and all-reduces of a step, by operation and dtype."""

    def step() -> None:
        training = Training(config, dist.group.WORLD, torch.device("cpu"), plan, communicate=Native)
        for number in range(2):
            if number:
                dist.barrier()
            training.backward(number)
            training.update(number)
        dist.barrier()

    _, trace = clusters(4).trace(step)
    found: dict[str, int] = {}
    for event in cut(trace)[-1].events[0]:
        key = f"{event.op} {event.dtype}"
        found[key] = found.get(key, 0) + event.bytes
    return found


def test_weights_travel_in_a_quarter_of_the_bytes(clusters: Clusters) -> None:
    """ao, PR 590: gathered in bf16 without a word, and largest numbers agreed one by one. So bytes are counted."""
    config = replace(CONFIG, precision=PRECISIONS["fp32"])
    few, many = (
        gathered(clusters, replace(config, linear=LinearNumbers(n)), Plan(FORMS.FSDP)) for n in ("fp8", "same")
    )
    matrices = sum(p.numel() for name, p in create(GPT, config.model).named_parameters() if LAYERS.takes(name, p.shape))
    passes = 2  # before forward, and before backward
    assert few["all_gather uint8"] == passes * matrices // 4
    assert many["all_gather float32"] - few["all_gather float32"] == 4 * passes * matrices // 4
    assert "all_gather uint8" not in many
    scales = 4 * 7 * config.model.layers  # once in a step, all in one message
    said = {key: size for key, size in few.items() if key not in many and key != "all_gather uint8"}
    assert 0 < max(said.values()) <= 2 * scales, said  # there and back, by whatever messages


def test_replicas_say_nothing_about_scales(clusters: Clusters) -> None:
    """float8_experimental, PR 272: the largest numbers of weights that are equal were compared all the same."""
    few, many = (gathered(clusters, replace(CONFIG, linear=LinearNumbers(n)), Plan(FORMS.DDP)) for n in ("fp8", "same"))
    assert few == many


@pytest.mark.parametrize("numbers", [FP8, INT8], ids=["fp8", "int8"])
def test_a_number_is_off_by_what_its_format_says(numbers: EightBitNumbers) -> None:
    x = torch.randn(64, 48, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    off, amax = (rows(x, numbers) - x).abs(), x.abs().amax(-1, keepdim=True)
    scale = scale_of(amax, numbers)
    assert bool((amax <= numbers.largest * scale).all()) and bool((amax > numbers.largest * scale / 2).all())
    bound = scale / 2 if numbers is INT8 else torch.maximum(x.abs() / 16, scale * 2.0**-10)
    assert bool((off <= bound).all())
    assert torch.equal(rows(rows(x, numbers), numbers), rows(x, numbers))  # nothing is rounded twice
    assert torch.equal(rows(x.bfloat16(), numbers).double(), rows(x.bfloat16().double(), numbers))  # exact in 16 bits


@pytest.mark.parametrize("numbers", [FP8, INT8], ids=["fp8", "int8"])
def test_nothing_finite_comes_from_what_is_not(numbers: EightBitNumbers) -> None:
    x = torch.tensor([[0.0, 0.0], [1.0, torch.nan], [2.0, torch.inf], [1e-45, 0.0], [3e38, 1.0]])
    zeros, nan, inf, tiny, huge = rows(x, numbers)
    assert not zeros.any() and tiny.isfinite().all() and huge.isfinite().all()
    assert nan.isnan().all() and inf.isnan().all()


@pytest.mark.parametrize("amax", [1e-1, 3.5e-5, 1e-5, 1e-7])
def test_a_scale_in_float16_has_room_too(amax: float) -> None:
    """Where amax / 448 is so small that float16 has few bits for it, or none."""
    x = torch.tensor([amax, amax / 3, -amax / 2]).half()
    assert torch.equal(rows(x, FP8), rows(x.float(), FP8).half()) and x.any() and rows(x, FP8).any()


@pytest.mark.parametrize("size", [1.0, 1e-3])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_a_kernel_has_room_for_all_sums_of_codes(dtype: torch.dtype, size: float) -> None:
    """32 times 64 · 64 is more than float16 has."""
    x, weight = torch.full((3, 32), size, dtype=dtype), torch.full((48, 32), size, dtype=dtype)
    assert torch.allclose(ByKernel.apply(x, weight, INT8), linear(x, weight, INT8), rtol=2**-7, atol=0)


def test_kernels_of_int8_give_the_same() -> None:
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(*s, generator=generator, requires_grad=True) for s in ((3, 5, 32), (48, 32)))
    found = []
    for multiply in (linear, ByKernel.apply):
        x.grad = weight.grad = None
        made = multiply(x, weight, INT8)
        made.square().sum().backward()
        found.append((made.detach(), x.grad, weight.grad))
    for plain, by_kernel in zip(*found, strict=True):
        assert torch.allclose(plain, by_kernel, rtol=1e-5, atol=1e-4)


def test_it_learns_nearly_what_16_bits_learn() -> None:
    """The tiny model, 60 steps of real text: within 0.05 nats per byte."""

    def last(kind: LinearNumbers) -> float:
        config = replace(CONFIG, steps=60, warmup=5, precision=PRECISIONS["fp32"], linear=kind)
        return sum(one_process(config).losses[-10:]) / 10

    full = last(LinearNumbers.SAME)
    assert abs(last(LinearNumbers.FP8) - full) < 0.05
    assert abs(last(LinearNumbers.INT8) - full) < 0.05


def test_a_delayed_scale_overflows_when_numbers_grow() -> None:
    """By a factor of 16 in a step: what is larger than the past knows is cut off, and the next step knows."""
    late, margin = DelayedScale(FP8, steps=4), DelayedScale(FP8, steps=4, margin=4)
    for scale in (late, margin):
        scale.round(torch.ones(8))
        scale.end_step()
    grown = torch.full((8,), 16.0)
    assert float(late.round(grown).max()) <= 2.0 and float(margin.round(grown).max()) == 16.0
    late.end_step()
    assert float(late.round(grown).max()) == 16.0
    other = DelayedScale(FP8, steps=4)
    other.load_state_dict(late.state_dict())
    assert other.history == late.history and list(late.history) == [1.0, 16.0]


@pytest.mark.parametrize("noted", [[torch.nan, 1.0], [1.0, torch.nan], [torch.inf], [0.0]])
def test_what_no_scale_comes_of_is_not_remembered(noted: list[float]) -> None:
    scale = DelayedScale(FP8)
    for number in noted:
        scale.round(torch.tensor([0.0, number]))
    scale.end_step()
    assert not scale.history
    small = torch.full((3,), 1e-6)
    assert torch.equal(scale.round(small), small)


def test_rounding_by_chance_is_right_on_average() -> None:
    x = torch.full((20_000,), 1.0 + 2.0**-10)  # an eighth of the way from 1 to the next bfloat16
    made = stochastic_bf16(x, torch.Generator().manual_seed(0)).double()
    assert set(made.tolist()) == {1.0, 1.0 + 2.0**-7}
    assert float((made - 1).mean()) == pytest.approx(2.0**-10, rel=0.06)  # 3 standard deviations
    special = torch.tensor([torch.inf, -torch.inf, torch.nan, 0.0])
    assert torch.equal(stochastic_bf16(special).isfinite(), special.isfinite())


def test_a_state_in_8_bits_is_near() -> None:
    x = torch.randn(3, 301, generator=torch.Generator().manual_seed(0)) ** 3
    packed, scales = pack(x, FP8)
    assert packed.element_size() == 1 and scales.numel() == 4
    off = (unpack(packed, scales, FP8, x) - x).abs()
    by_block = torch.nn.functional.pad(x.flatten(), (0, 1024 - 903)).view(4, 256).abs().amax(1)
    bound = torch.maximum(x.abs().flatten() / 15, by_block.repeat_interleave(256)[:903] / 448 * 2.0**-9)
    assert bool((off.flatten() <= bound).all())
