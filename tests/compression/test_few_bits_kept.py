"""Optimizers that keep few bits: moments of 8, and weights of 16 that chance rounds. Under every plan as alone."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from rankwise import on_rank
from reference.choices import Offload, Optimizer, Outer
from reference.cluster import Cluster
from reference.compression.by_chance import ByChanceAdamW, noise_of
from reference.compression.eight_bit_adam import EightBitAdamW
from reference.compression.plain_low_bits import ROOTS, codes, decoded, eight_bit_adamw
from reference.compression.shared_blocks import SharedBlocks, places_of
from reference.config import TrainConfig
from reference.data_parallel.gradient_sync import ParameterShard
from reference.errors import BadInput
from reference.memory.precision import PRECISIONS, Precision
from reference.models import PRESETS, preset
from reference.oracle import largest_difference, one_process
from reference.parallelize import DataParallelism, PipelineSchedule, Plan
from reference.report import read_log
from reference.saves import Saves
from reference.sharding import Slices
from reference.train import Training

from ..data_parallel.traffic import cut

Clusters = Callable[..., Cluster]
FORMS = DataParallelism
BY_CHANCE = Precision(torch.float64, torch.float64, torch.bfloat16)
CONFIG = TrainConfig(PRESETS["tiny"], steps=4, batch=8, sequence=16, warmup=2, precision=PRECISIONS["fp64"])
KINDS = {
    "8 bits": replace(CONFIG, optimizer=Optimizer.ADAMW_8_BIT),
    "by chance": replace(CONFIG, precision=BY_CHANCE),
    "both": replace(CONFIG, optimizer=Optimizer.ADAMW_8_BIT, precision=BY_CHANCE),
}
PLANS = {
    "flat": Plan(),
    "zero1": Plan(FORMS.ZERO1),
    "zero2": Plan(FORMS.ZERO2, micro_batches=2),
    "hsdp": Plan(FORMS.HSDP),
    "fsdp, sp": Plan(FORMS.FSDP, tensor_parallel=2, sequence_parallel=True),
    "tp": Plan(tensor_parallel=4),
    "zero bubble": Plan(FORMS.FSDP, pipeline_parallel=2, micro_batches=2, schedule=PipelineSchedule.ZB_H1),
}
EXACT = 1e-9


@pytest.mark.turns(4)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_any_plan_learns_what_one_process_learns(clusters: Clusters, plan: Plan, kind: str) -> None:
    """What is rounded comes out alike, or far from it: a scale of another block would be seen, and so would chance."""
    difference = largest_difference(clusters(4).run(on_rank.record, KINDS[kind], plan)[0], one_process(KINDS[kind]))
    assert max(difference.values()) < EXACT, difference


@pytest.mark.parametrize("kind", KINDS)
def test_experts_are_cut_too(clusters: Clusters, kind: str) -> None:
    config = replace(KINDS[kind], model=preset("moe-tiny"))
    plan = Plan(FORMS.FSDP, expert_parallel=2, expert_tensor_parallel=2)
    difference = largest_difference(clusters(4).run(on_rank.record, config, plan)[0], one_process(config, 4, 1))
    assert max(difference.values()) < EXACT, difference


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_goes_from_any_layout_to_any_other(clusters: Clusters, tmp_path: Path, kind: str) -> None:
    config = replace(KINDS[kind], steps=6, batch=24)
    legs = [(4, Plan(FORMS.FSDP, tensor_parallel=2)), (3, Plan(FORMS.ZERO1)), (2, Plan(FORMS.DDP))]
    found = []
    for number, (ranks, plan) in enumerate(legs):
        saves = Saves(tmp_path / "run", 2, resume=number > 0, in_background=number == 1)
        log, part = tmp_path / str(number), replace(config, stop_after=2 * number + 2)
        clusters(ranks).run(on_rank.train, part, log, plan, saves)
        found += [step.loss for step in read_log(log)[0]]
    assert found == pytest.approx(one_process(config).losses, rel=EXACT)


def updated(config: TrainConfig, plan: Plan) -> tuple[int, int]:
    """Of a step of the optimizer alone: bytes that this rank asks others about, and that it keeps of moments."""
    training = Training(config, dist.group.WORLD, torch.device("cpu"), plan)
    training.backward(0)
    dist.barrier()
    training.optimizer.step()
    dist.barrier()
    blocks, rank = training.optimizer.blocks, dist.get_rank()
    told = sum(len(asked[rank]) for other, asked in enumerate(blocks.asks) if other != rank)
    kept = sum(each.codes.nbytes + each.scales.nbytes for each in training.optimizer.kept.values())
    return 2 * 4 * told, kept


@pytest.mark.parametrize(
    ("plan", "cuts"),
    [(Plan(FORMS.DDP), 0), (Plan(FORMS.FSDP), 6), (Plan(FORMS.HSDP), 2)],
    ids=["replicas", "shards", "replicas of shards"],
)
def test_only_ranks_with_parts_of_a_block_agree(clusters: Clusters, plan: Plan, cuts: int) -> None:
    """Replicas say nothing. A unit has n - 1 cuts, each between two ranks, which tell each other."""
    config = replace(KINDS["8 bits"], precision=PRECISIONS["fp32"])
    found, trace = clusters(4).trace(updated, config, plan)
    sent = cut(trace)[-1].bytes_sent
    assert list(sent) == [told for told, _ in found]
    units = config.model.layers + 1  # blocks, and what is around them
    assert sum(sent) <= 2 * 4 * 2 * cuts * units
    assert bool(cuts) == bool(sum(sent))


def test_moments_take_a_quarter_of_the_memory(clusters: Clusters) -> None:
    config = replace(KINDS["8 bits"], model=PRESETS["demo"], precision=PRECISIONS["fp32"])
    (_, kept), *_ = clusters(4).run(updated, config, Plan(FORMS.DDP))
    training_numel = sum(x.numel() for x in one_process(replace(config, steps=1)).parameters.values())
    assert 2 * training_numel < kept < 2.1 * training_numel


def test_places_are_those_of_the_whole() -> None:
    """Of a block with padding, from the middle of a row on."""
    whole = torch.arange(7 * 5).view(7, 5)
    part = ParameterShard("x", whole.shape, 1, 8, nn.Parameter(torch.empty(7)), Slices((5, 1), (3, 4)))
    assert places_of(part).tolist() == [*whole[5, 2:5].tolist(), *whole[6, 1:5].tolist()]
    part = ParameterShard("x", whole.shape, 7, 12, nn.Parameter(torch.empty(5)), Slices((5, 1), (3, 4)))
    assert places_of(part).tolist() == [34, -1, -1, -1, -1]


def test_blocks_of_one_process_are_neighbours() -> None:
    x = torch.arange(600.0)
    blocks = SharedBlocks([ParameterShard("x", x.shape, 0, 600, nn.Parameter(x))])
    assert blocks.largest(0, x, -2 * x).tolist() == [[255, 510], [511, 1022], [599, 1198]] and not blocks.are_cut


def alone(weight: Tensor) -> EightBitAdamW:
    part = ParameterShard("x", weight.shape, 0, weight.numel(), nn.Parameter(weight.clone()))
    return EightBitAdamW([part], {"lr": 0.01, "weight_decay": 0.1, "betas": (0.9, 0.95)})


def test_it_is_the_plain_one_and_near_adamw() -> None:
    """With gradients of many sizes. One that is a thousandth of others would make v zero, and the update huge."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(4, 160, generator=generator, dtype=torch.float64)
    sizes = torch.logspace(0, -4, 160, dtype=torch.float64)
    optimizer, plain, state = alone(weight), weight.clone(), {}
    (mine,) = optimizer.kept or optimizer.of
    exact = nn.Parameter(weight.clone())
    adamw = torch.optim.AdamW([exact], lr=0.01, weight_decay=0.1, betas=(0.9, 0.95))
    for _ in range(20):
        mine.grad = exact.grad = torch.randn(4, 160, generator=generator, dtype=torch.float64) * sizes
        optimizer.step()
        adamw.step()
        eight_bit_adamw(plain, mine.grad, state, 0.01, 0.1)
    assert torch.allclose(mine, plain, rtol=1e-12, atol=1e-12)
    moved = (exact - weight).norm()
    assert (mine - exact).norm() < 0.05 * moved


def test_the_second_moment_falls_once_gradients_do() -> None:
    """By 5 % in a step, and its root by half of that: to the nearest of numbers of 3 bits it would stay for good."""
    optimizer = alone(torch.ones(4, 64))
    (mine,) = optimizer.of
    found = []
    for size in [1.0] * 10 + [0.0] * 20:
        mine.grad = torch.full_like(mine, size)
        optimizer.step()
        found.append(float(optimizer.recall(mine)[1][0, 0]))
    falls = [after / before for before, after in pairwise(found[9:])]
    assert falls == pytest.approx([2 ** (-1 / 16)] * 20)


def test_roots_are_the_same_numbers_with_another_scale_and_none_is_lost() -> None:
    x = torch.rand(1000, generator=torch.Generator().manual_seed(0)) ** 8
    scale = torch.ones(())
    once = decoded(codes(x, scale, ROOTS), scale, ROOTS)
    near = x > 2.0**-15
    assert once[near] == pytest.approx(x[near], rel=2 ** (1 / 32) - 1 + 1e-6) and (once > 0).all()
    wider = decoded(codes(once[near], 4 * scale, ROOTS), 4 * scale, ROOTS)
    assert torch.equal(wider[once[near] > 2.0**-13], once[near][once[near] > 2.0**-13])
    assert decoded(codes(torch.zeros(2), scale, ROOTS), scale, ROOTS).tolist() == [0.0, 0.0]


def test_roots_in_float32_are_the_numbers_next_to_them() -> None:
    """On any device: an exponential in float32 is not, and a GPU's is another one than a CPU's."""
    every = torch.arange(1, 256, dtype=torch.uint8)
    exact = torch.tensor([2.0 ** ((int(code) - 255) / 16) for code in every], dtype=torch.float64)
    assert torch.equal(decoded(every, torch.ones(1), ROOTS), exact.float())


def test_chance_is_even_and_knows_step_and_name() -> None:
    places = torch.arange(40_000)
    noise = noise_of(3, 7, "x", places)
    assert int(noise.min()) >= 0 and int(noise.max()) < 1 << 16
    assert float(noise.double().mean()) == pytest.approx((2**16 - 1) / 2, rel=0.01)
    assert torch.equal(noise[5:9], noise_of(3, 7, "x", places[5:9]))
    for other in (noise_of(4, 7, "x", places), noise_of(3, 8, "x", places), noise_of(3, 7, "y", places)):
        assert float((noise == other).double().mean()) < 0.001


def test_no_update_is_lost_on_average() -> None:
    """2000 of an eighth of what bfloat16 sees at 1: to the nearest, none would count."""
    master = nn.Parameter(torch.ones(512, dtype=torch.bfloat16))
    part = ParameterShard("x", master.shape, 0, 512, master)
    optimizer = ByChanceAdamW([part], {"lr": 2.0**-10, "weight_decay": 0.0})
    for _ in range(200):
        master.grad = torch.full_like(master, -1.0)
        optimizer.step()
    assert float(master.detach().float().mean()) == pytest.approx(1 + 200 * 2.0**-10, abs=0.01)
    nearest = torch.ones((), dtype=torch.bfloat16)
    assert nearest + torch.tensor(2.0**-10, dtype=torch.bfloat16) == nearest


def test_it_learns_nearly_what_more_bits_learn(clusters: Clusters) -> None:
    """The tiny model, 60 steps of real text: within 0.05 nats per byte; and to the nearest it would be far off."""

    def last(**options: object) -> float:
        config = replace(CONFIG, steps=60, warmup=5, precision=PRECISIONS["bf16"], **{})
        record = clusters(1).run(on_rank.record, replace(config, **options))[0]
        return sum(record.losses[-10:]) / 10

    full = last()
    chance = {"precision": PRECISIONS["bf16-stochastic"]}
    assert abs(last(optimizer=Optimizer.ADAMW_8_BIT) - full) < 0.05
    assert abs(last(**chance) - full) < 0.05
    assert abs(last(optimizer=Optimizer.ADAMW_8_BIT, **chance) - full) < 0.05


@pytest.mark.parametrize("kind", ["8 bits", "by chance"])
def test_what_does_not_go_together_is_refused(clusters: Clusters, kind: str) -> None:
    config = KINDS[kind]
    refused = clusters(2).run(on_rank.train_or_refuse, config, Path("unused"), Plan(offload=Offload.CPU), None)
    assert "--offload keeps the state of adamw, not of" in str(refused[0])
    islands = replace(config, outer=Outer.DILOCO, islands=2)
    refused = clusters(2).run(on_rank.train_or_refuse, islands, Path("unused"), Plan(), None)
    assert "islands meet with" in str(refused[0])
    with pytest.raises(BadInput, match="rounded by chance, as adamw or adamw-8bit do and muon does not"):
        replace(CONFIG, optimizer=Optimizer.MUON, precision=PRECISIONS["bf16-stochastic"])
