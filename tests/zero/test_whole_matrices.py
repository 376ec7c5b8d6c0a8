"""Muon and its like under every plan: what one process learns, from matrices that no rank has whole."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from rankwise import on_rank
from reference.choices import Offload, Optimizer
from reference.cluster import Cluster
from reference.collectives.default import over
from reference.config import TrainConfig
from reference.data_parallel.gradient_sync import ParameterShard
from reference.memory.precision import PRECISIONS
from reference.models import PRESETS, preset
from reference.oracle import largest_difference, one_process
from reference.parallelize import DataParallelism, PipelineSchedule, Plan
from reference.report import read_log
from reference.saves import Saves
from reference.train import Training
from reference.zero import cost, plain_matrices
from reference.zero.matrix_routes import WholeMatrix, is_matrix
from reference.zero.plain_matrices import deal, newton_schulz
from reference.zero.whole_matrices import Muon, WholeMatrices

from ..data_parallel.traffic import cut

Clusters = Callable[..., Cluster]
CONFIG = TrainConfig(
    PRESETS["tiny"],
    steps=3,
    batch=8,
    sequence=16,
    warmup=2,
    precision=PRECISIONS["fp64"],
    optimizer=Optimizer.MUON,
)
EXACT = 1e-9
FORMS = DataParallelism
PLANS = [
    (3, Plan(FORMS.FLAT)),
    (4, Plan(FORMS.DDP)),
    (4, Plan(FORMS.ZERO1)),
    (4, Plan(FORMS.ZERO2, micro_batches=2)),
    (4, Plan(FORMS.FSDP)),
    (4, Plan(FORMS.HSDP)),
    (4, Plan(tensor_parallel=4)),
    (4, Plan(FORMS.FSDP, tensor_parallel=2, sequence_parallel=True)),
    (4, Plan(FORMS.ZERO1, pipeline_parallel=2, micro_batches=2)),
    (4, Plan(FORMS.FSDP, pipeline_parallel=2, micro_batches=2, schedule=PipelineSchedule.ZB_H1)),
    (4, Plan(FORMS.FSDP, context_parallel=2)),
]


@pytest.mark.parametrize(("ranks", "plan"), PLANS, ids=lambda x: "" if isinstance(x, int) else x.data_parallel)
def test_any_plan_learns_what_one_process_learns(clusters: Clusters, ranks: int, plan: Plan) -> None:
    batch = 12 if ranks == 3 else 8
    config = replace(CONFIG, batch=batch)
    difference = largest_difference(clusters(ranks).run(on_rank.record, config, plan)[0], one_process(config))
    assert max(difference.values()) < EXACT, difference


OF_EXPERTS = [
    (4, Plan(FORMS.ZERO1, expert_parallel=2)),
    (4, Plan(FORMS.FSDP, expert_parallel=2, expert_tensor_parallel=2)),
]


@pytest.mark.parametrize(("ranks", "plan"), OF_EXPERTS, ids=["ep", "ep and etp"])
def test_each_expert_is_a_matrix(clusters: Clusters, ranks: int, plan: Plan) -> None:
    """A rank that has some experts whole holds no replica of the others: what is whole is not everywhere."""
    config = replace(CONFIG, model=preset("moe-tiny"))
    oracle = one_process(config, ranks, 1)
    difference = largest_difference(clusters(ranks).run(on_rank.record, config, plan)[0], oracle)
    assert max(difference.values()) < EXACT, difference


SOAP_PLANS = {
    "ddp": Plan(FORMS.DDP),
    "zero1": Plan(FORMS.ZERO1),
    "zero2": Plan(FORMS.ZERO2, micro_batches=2),
    "fsdp": Plan(FORMS.FSDP),
    "tp": Plan(tensor_parallel=4),
    "fsdp and tp": Plan(FORMS.FSDP, tensor_parallel=2, sequence_parallel=True),
}


@pytest.mark.parametrize("plan", SOAP_PLANS.values(), ids=SOAP_PLANS)
def test_soap_learns_what_it_does_in_one_process(clusters: Clusters, plan: Plan) -> None:
    """Matrices that are not square have eigenvalues of zero, whose eigenvectors must not be what rounding says."""
    config = replace(CONFIG, optimizer=Optimizer.SOAP, steps=4)
    difference = largest_difference(clusters(4).run(on_rank.record, config, plan)[0], one_process(config))
    assert max(difference.values()) < EXACT, difference


@pytest.mark.parametrize("plan", [Plan(FORMS.DDP), Plan(FORMS.FSDP, tensor_parallel=2)], ids=["ddp", "fsdp and tp"])
def test_shampoo_learns_what_it_does_in_one_process(clusters: Clusters, plan: Plan) -> None:
    config = replace(CONFIG, optimizer=Optimizer.SHAMPOO)
    difference = largest_difference(clusters(4).run(on_rank.record, config, plan)[0], one_process(config))
    assert max(difference.values()) < EXACT, difference


def losses(clusters: Clusters, ranks: int, config: TrainConfig, plan: Plan, saves: Saves, log: Path) -> list[float]:
    clusters(ranks).run(on_rank.train, config, log, plan, saves)
    return [step.loss for step in read_log(log)[0]]


@pytest.mark.parametrize("optimizer", [Optimizer.MUON, Optimizer.SHAMPOO, Optimizer.SOAP])
def test_a_checkpoint_goes_from_any_layout_to_any_other(
    clusters: Clusters, tmp_path: Path, optimizer: Optimizer
) -> None:
    """Of Shampoo's squares and SOAP's axes, too, whose owners are others then."""
    config, folder = replace(CONFIG, optimizer=optimizer, steps=6, batch=24), tmp_path / "checkpoints"
    legs = [
        (4, Plan(FORMS.FSDP, tensor_parallel=2)),
        (3, Plan(FORMS.ZERO1)),
        (4, Plan(FORMS.HSDP, pipeline_parallel=2, micro_batches=2)),
    ]
    found = []
    for number, (ranks, plan) in enumerate(legs):
        part = replace(config, stop_after=2 * number + 2)
        found += losses(clusters, ranks, part, plan, Saves(folder, 2, resume=number > 0), tmp_path / str(number))
    assert found == pytest.approx(one_process(config).losses, rel=EXACT)


def test_a_checkpoint_of_another_optimizer_is_refused(clusters: Clusters, tmp_path: Path) -> None:
    config = replace(CONFIG, stop_after=1)
    losses(clusters, 2, config, Plan(), Saves(tmp_path / "of muon"), tmp_path / "log")
    other = replace(CONFIG, optimizer=Optimizer.SHAMPOO)
    refused = clusters(2).run(
        on_rank.train_or_refuse, other, tmp_path / "no", Plan(), Saves(tmp_path / "of muon", resume=True)
    )
    assert "was saved with Muon, and this is Shampoo" in str(refused[0])


def test_offloaded_state_has_no_whole_matrices(clusters: Clusters) -> None:
    refused = clusters(2).run(on_rank.train_or_refuse, CONFIG, Path("unused"), Plan(offload=Offload.CPU), None)
    assert "looks at whole matrices: take --optimizer adamw, or --offload none" in str(refused[0])


def one_step(group: dist.ProcessGroup, weight: Tensor, gradients: list[Tensor], places: list[int], name: str) -> Tensor:
    """What this rank's piece of a matrix becomes: it has the elements from places[rank] to places[rank + 1]."""
    begin, end = places[group.rank()], places[group.rank() + 1]
    master = nn.Parameter(weight.flatten()[begin:end].clone())
    part = ParameterShard(name, weight.shape, begin, end, master)
    optimizer = WholeMatrices([part], over(group), Muon(), {"lr": 0.1, "weight_decay": 0.1})
    for gradient in gradients:
        master.grad = gradient.flatten()[begin:end].clone()
        optimizer.step()
    return master.detach()


def by_pieces(clusters: Clusters, weight: Tensor, gradients: list[Tensor], places: list[int], name: str) -> Tensor:
    """The whole matrix after these steps on four ranks."""

    def on_pieces() -> Tensor:
        return one_step(dist.group.WORLD, weight, gradients, places, name)

    return torch.cat(clusters(4).run(on_pieces)).view(weight.shape)


def in_one_process(weight: Tensor, gradients: list[Tensor]) -> Tensor:
    weight, momentum = weight.clone(), torch.zeros_like(weight)
    for gradient in gradients:
        plain_matrices.muon(weight, gradient, momentum, 0.1, 0.1)
    return weight


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


CUTS = {"even": [0, 6, 12, 18, 24], "through rows": [0, 5, 7, 20, 24], "ranks with nothing": [0, 0, 24, 24, 24]}


@pytest.mark.parametrize("places", CUTS.values(), ids=CUTS)
def test_a_matrix_that_crosses_ranks_is_made_orthogonal_whole(clusters: Clusters, places: list[int]) -> None:
    """DeepSpeed's report: a matrix on the border of two partitions. A rank may hold nothing of it, and have no part."""
    weight, gradients = normal(6, 4), [normal(6, 4, seed=seed) for seed in (1, 2)]
    mine = by_pieces(clusters, weight, gradients, places, "blocks.0.weight")
    assert torch.allclose(mine, in_one_process(weight, gradients), rtol=1e-12, atol=1e-12)


def test_newton_schulz_on_a_shard_is_something_else() -> None:
    """The mistake: what each rank would make of its rows is not what it has of the whole."""
    matrix = normal(6, 4)
    by_rows = torch.cat([newton_schulz(half) for half in matrix.chunk(2)])
    assert (by_rows - newton_schulz(matrix)).norm() > 0.3 * newton_schulz(matrix).norm()


def test_shards_of_zeros_are_finite(clusters: Clusters) -> None:
    """Moonlight, issue 27: -inf under FSDP, from a gradient that is zero, or a shard without elements."""
    weight, zero = normal(6, 4), torch.zeros(6, 4, dtype=torch.float64)
    mine = by_pieces(clusters, weight, [zero, zero], CUTS["ranks with nothing"], "blocks.0.weight")
    assert torch.allclose(mine, weight * (1 - 0.01) ** 2, rtol=1e-14)
    assert not newton_schulz(zero).any()


@pytest.mark.parametrize("shape", [(1, 8), (8, 1), (3, 1, 8)])
def test_a_single_row_is_no_matrix(shape: tuple[int, ...]) -> None:
    """speculators, PR 821: a parameter of 1 x N has one singular value, and Muon would only normalise it."""
    assert not is_matrix("blocks.0.gate.weight", shape)
    assert is_matrix("blocks.0.gate.weight", (2, 8))
    assert not is_matrix("embedding.weight", (256, 32)) and not is_matrix("blocks.0.norm.weight", (32,))


@pytest.mark.parametrize("shape", [(12, 20), (20, 12), (16, 16)])
@pytest.mark.parametrize("adjust", ["match_rms_adamw", "original"])
def test_it_is_the_muon_of_torch(shape: tuple[int, int], adjust: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for bfloat16, in which torch multiplies whatever it is given: it is kept from that here."""
    monkeypatch.setattr(Tensor, "bfloat16", Tensor.clone)
    scale = {
        "match_rms_adamw": plain_matrices.muon_scale,
        "original": lambda rows, columns: max(1, rows / columns) ** 0.5,
    }
    rule, state = Muon(scale=scale[adjust]), {}
    mine, theirs = normal(*shape), nn.Parameter(normal(*shape))
    peer = torch.optim.Muon([theirs], lr=0.1, weight_decay=0.1, adjust_lr_fn=adjust)
    for seed in range(1, 4):
        gradient = theirs.grad = normal(*shape, seed=seed)
        mine.mul_(1 - 0.1 * 0.1).sub_(
            rule.whole(WholeMatrix("", None, *shape), rule.before(state, gradient)), alpha=0.1
        )
        peer.step()
    assert torch.allclose(mine, theirs.detach(), rtol=1e-10, atol=1e-10)


def test_singular_values_become_about_one() -> None:
    values = torch.linalg.svdvals(newton_schulz(normal(32, 16)))
    assert float(values.min()) > 0.6 and float(values.max()) < 1.25


def routed(config: TrainConfig, plan: Plan) -> tuple:
    """Of a step of the optimizer alone: who owns what and holds how much."""
    training = Training(config, dist.group.WORLD, torch.device("cpu"), plan)
    training.backward(0)
    routes = training.optimizer.exchange.routes
    matrices = list(routes.owner)
    held = [[sum(p.numel for p in of if p.matrix == matrix) for of in routes.held] for matrix in matrices]
    return training, [m.rows * m.columns for m in matrices], [routes.owner[m] for m in matrices], held


@pytest.mark.parametrize(
    ("plan", "copies"),
    [(Plan(FORMS.DDP), 4), (Plan(FORMS.FSDP), 1), (Plan(FORMS.HSDP), 2), (Plan(FORMS.ZERO1, tensor_parallel=2), 1)],
    ids=["ddp", "fsdp", "hsdp", "zero1 and tp"],
)
def test_each_rank_sends_what_the_formula_says(clusters: Clusters, plan: Plan, copies: int) -> None:
    def update() -> tuple:
        training, *counts = routed(CONFIG, plan)
        dist.barrier()
        training.optimizer.step()
        dist.barrier()
        return counts

    counts, trace = clusters(4).trace(update)
    sent = cut(trace)[-1].bytes_sent
    for rank, (numels, owners, held) in enumerate(counts):
        assert sent[rank] == 8 * cost.whole_matrices(numels, owners, held, copies, rank), rank
    if copies == 4:  # replicas: each matrix goes from its owner to the three others, and nothing to it
        assert sum(sent) == 8 * 3 * sum(counts[0][0])


def test_owners_have_equal_work(clusters: Clusters) -> None:
    """By FLOPs, and not by elements: a cubic cost. No rank has more than 4/3 of the mean, or of one matrix."""

    def loads() -> list[float]:
        training = Training(
            replace(CONFIG, model=PRESETS["demo"]), dist.group.WORLD, torch.device("cpu"), Plan(FORMS.FSDP)
        )
        return training.optimizer.exchange.routes.load(cost.newton_schulz_flops)

    load, *_ = clusters(4).run(loads)
    assert max(load) < 1.1 * sum(load) / 4


def test_soap_is_adam_where_the_axes_are_those_of_the_elements() -> None:
    """In the first step, before any axis has turned; later they are eigenvectors, and stay orthogonal."""
    gradient, kept = normal(6, 4), plain_matrices.soap_memory(6, 4, dtype=torch.float64)
    first = plain_matrices.soap_direction(gradient, kept)
    assert torch.allclose(first, gradient / (gradient.abs() + plain_matrices.EPSILON), rtol=1e-12)
    for _ in range(200):
        plain_matrices.soap_direction(gradient, kept)
    for side in ("rows", "columns"):
        axes, square = kept[f"axes of {side}"], kept[side]
        assert torch.allclose(axes.mT @ axes, torch.eye(len(axes), dtype=torch.float64), atol=1e-12)
        inside = axes.mT @ square @ axes
        assert (inside - inside.diagonal().diag()).abs().max() < 1e-2 * inside.abs().max()


def test_axes_do_not_depend_on_rounding() -> None:
    """Of a square with eigenvalue zero five times: what is changed by 1e-15 has the same axes."""
    tall = normal(8, 3)
    square = tall @ tall.mT
    axes = [plain_matrices.turned(torch.eye(8, dtype=torch.float64), square + e) for e in (0.0, 1e-15 * normal(8, 8))]
    assert (axes[0] - axes[1]).abs().max() < 1e-9
    bare = [torch.linalg.eigh(square + e)[1] for e in (0.0, 1e-15 * (normal(8, 8) + normal(8, 8).mT))]
    assert (bare[0] - bare[1]).abs().max() > 1e-3


def test_deal_is_within_four_thirds_of_the_best() -> None:
    costs = [7.0, 7, 6, 6, 5, 5, 4, 4, 4]  # Graham's worst for four: 4 x 12 could be had
    load = [sum(c for c, owner in zip(costs, deal(costs, 4), strict=True) if owner == rank) for rank in range(4)]
    assert max(load) == 15 <= 12 * (4 / 3 - 1 / 12)
    assert deal([1.0, 5.0, 3.0], 2) == [1, 0, 1]


def test_the_plain_exchange_is_what_the_engine_does(clusters: Clusters) -> None:
    shapes, matrices = [(4, 6), (8, 2)], [normal(4, 6), normal(8, 2)]

    def exchanged() -> list[Tensor]:
        rank = dist.get_rank()
        shards = [matrix.flatten().chunk(4)[rank].clone() for matrix in matrices]
        plain_matrices.to_its_owner(shards, shapes, [2, 1], newton_schulz, dist.group.WORLD)
        return shards

    made = clusters(4).run(exchanged)
    for number, matrix in enumerate(matrices):
        whole = torch.cat([shards[number] for shards in made]).view(matrix.shape)
        assert torch.equal(whole, newton_schulz(matrix))
