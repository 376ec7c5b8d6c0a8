"""The ledger of a plan is clean, and names whatever sum is forgotten, taken twice, divided, or of other ranks."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from rankwise import cli
from reference.choices import ContextMethod
from reference.cluster import Cluster
from reference.collectives.communicator import Finish, Native
from reference.collectives.reduction import SUM
from reference.config import TrainConfig
from reference.errors import BadInput
from reference.ledger import entries_of_training, ledger_of
from reference.memory.precision import PRECISIONS
from reference.memory.recompute import Recompute
from reference.mesh import Mesh
from reference.models import GPTConfig
from reference.models.moe_config import Balance, MoEConfig
from reference.parallelize import DataParallelism, PipelineSchedule, Plan
from reference.trace.ledger import Dye, Entry, Ledger, entries_of
from reference.train import Training

DENSE = GPTConfig(layers=2, width=16, heads=4, kv_heads=2, hidden=24)
EXPERTS = MoEConfig(2, 16, 4, 2, 24, experts=4, top_k=2, expert_hidden=12, shared_experts=1)
CONFIG = TrainConfig(DENSE, steps=1, batch=8, sequence=24)
PLANS = {
    "flat": (2, DENSE, Plan()),
    "tied ends of a pipeline": (4, replace(DENSE, tied=True), Plan(pipeline_parallel=2, micro_batches=2)),
    "sequence parallel": (4, DENSE, Plan(DataParallelism.DDP, tensor_parallel=2, sequence_parallel=True)),
    "copies of heads": (4, DENSE, Plan(tensor_parallel=4)),
    "hsdp x cp": (8, DENSE, Plan(DataParallelism.HSDP, dp_replicate=2, context_parallel=2, micro_batches=2)),
    "experts": (4, EXPERTS, Plan(DataParallelism.FSDP, expert_parallel=2)),
    "experts, folded": (8, replace(EXPERTS, balance=Balance.SEQUENCE), Plan(
        DataParallelism.ZERO2, tensor_parallel=2, context_parallel=2, context_method=ContextMethod.ULYSSES,
        expert_parallel=2, expert_tensor_parallel=2,
    )),
    "five axes": (8, replace(EXPERTS, capacity=1.0), Plan(
        DataParallelism.HSDP, dp_replicate=1, pipeline_parallel=2, schedule=PipelineSchedule.ZB_H1, micro_batches=4,
        tensor_parallel=2, sequence_parallel=True, context_parallel=2, expert_parallel=4, recompute=Recompute.FULL,
    )),
}  # fmt: skip
Clusters = Callable[..., Cluster]


def taken(clusters: Clusters, name: str, communicate: Callable | None = None) -> Ledger:
    """The ledger of a plan, perhaps over communicators that make a mistake."""
    ranks, model, plan = PLANS[name]
    options = {"communicate": communicate} if communicate else {}
    return ledger_of(replace(CONFIG, model=model), plan, clusters(ranks), **options)


@pytest.mark.parametrize("name", PLANS)
def test_the_ledger_of_a_plan_is_clean(clusters: Clusters, name: str) -> None:
    ledger = taken(clusters, name)
    assert ledger.faults == []
    assert {entry.what for entry in ledger.entries} >= {"gradient", "loss", "norm"}
    rows = {(what, parameter): axes for what, parameter, axes, _ in ledger.table()}
    names = [parameter for what, parameter in rows if what == "norm"]
    assert len(names) == len({parameter for what, parameter in rows if what == "gradient"}) > 10


def test_axes_of_a_table_are_those_of_the_specs(clusters: Clusters) -> None:
    rows = {(what, name): axes for what, name, axes, _ in taken(clusters, "experts, folded").table()}
    assert rows["gradient", "blocks.0.attention.query.weight"] == "dp_shard x cp"
    assert rows["gradient", "blocks.0.feed_forward.router.weight"] == "dp_shard x cp x tp_head"
    assert rows["gradient", "blocks.0.feed_forward.experts.up.weight"] == "edp"
    assert rows["loss", "of a step"] == "dp_shard x cp"


class Mistaken(Native):
    """Makes one mistake in sums of dyed gradients, over the ranks of one group."""

    def __init__(self, group: dist.ProcessGroup, victim: tuple[int, ...], how: str) -> None:
        super().__init__(group)
        self.how = how if tuple(dist.get_process_group_ranks(group)) == victim else "right"

    def all_reduce(self, x: Tensor, op: dist.ReduceOp = SUM) -> None:
        if not (self.is_dyed(x) and self.how == "forgotten"):
            super().all_reduce(x, op)
        self.spoil(x)

    def reduce_scatter(self, x: Tensor, out: Tensor) -> None:
        own = x.view(-1).tensor_split(self.size())[self.rank()].clone()
        dyed = self.is_dyed(x)
        super().reduce_scatter(x, out)
        if dyed and self.how == "forgotten":
            out.view(-1).copy_(own)
        elif dyed:
            self.spoil(out)

    def start_all_reduce(self, x: Tensor, op: dist.ReduceOp = SUM) -> Finish:
        self.all_reduce(x, op)
        return lambda: x

    def start_reduce_scatter(self, x: Tensor, out: Tensor) -> Finish:
        own = torch.empty_like(out)
        self.reduce_scatter(x, own)
        return lambda: out.copy_(own)

    def is_dyed(self, x: Tensor) -> bool:
        """Whole numbers, and not all zeros, which a rank without tokens has."""
        if self.how == "right" or x.dtype != torch.float64 or x.numel() < 2:
            return False
        return bool((x == x.round()).all() and x.max() >= 1)

    def spoil(self, x: Tensor) -> None:
        if self.is_dyed(x) and self.how in ("twice", "mean"):
            x.mul_(self.size() if self.how == "twice" else 1 / self.size())


class Mistake:
    """Makes communicators of which those of some ranks are `Mistaken`."""

    def __init__(self, victims: Sequence[tuple[int, ...]], how: str) -> None:
        self.victims, self.how = victims, how

    def __call__(self, group: dist.ProcessGroup) -> Native:
        mine = tuple(dist.get_process_group_ranks(group))
        return Mistaken(group, mine if mine in self.victims else (), self.how)


MISTAKES = [
    # plan, axes of which view, what the ledger should say of which parameter
    ("flat", ("dp_shard",), "blocks.0.attention.query.weight", "dp_shard"),
    ("sequence parallel", ("dp_shard",), "blocks.0.attention.query.weight", "dp_shard"),
    ("sequence parallel", ("tp_head",), "blocks.0.attention_norm.weight", "tp_head"),
    ("copies of heads", ("tp_copy",), "blocks.0.attention.key.weight", "tp_copy"),
    ("hsdp x cp", ("dp_shard", "cp"), "blocks.0.attention.query.weight", "dp_shard and cp"),
    ("hsdp x cp", ("dp_replicate",), "norm.weight", "dp_replicate"),
    ("experts", ("edp",), "blocks.0.feed_forward.experts.up.weight", "edp"),
    ("experts, folded", ("tp_head",), "blocks.1.feed_forward.router.weight", "tp_head"),
    ("five axes", ("tp_head",), "norm.weight", "tp_head"),
    ("five axes", ("cp",), "blocks.0.feed_forward.shared.up.weight", "cp"),
]


@pytest.mark.turns(3)
@pytest.mark.parametrize("how", ["forgotten", "twice", "mean"])
@pytest.mark.parametrize(("name", "axes", "parameter", "named"), MISTAKES)
def test_a_mistake_along_an_axis_is_named(
    clusters: Clusters, name: str, axes: tuple[str, ...], parameter: str, named: str, how: str
) -> None:
    ranks, model, plan = PLANS[name]
    mesh = plan.expert_mesh(ranks, model) if axes == ("edp",) else plan.mesh(ranks, model)
    faults = taken(clusters, name, Mistake(mesh.groups(*axes), how)).faults
    of_it = [fault for fault in faults if fault.startswith(f"gradient {parameter} ")]
    assert of_it, faults
    said = {"forgotten": "is not summed along", "twice": "times", "mean": "counts 1/"}[how]
    assert said in of_it[0], of_it
    if how == "forgotten" or len(axes) == 1:
        assert named in of_it[0], of_it
    assert "reference/" in of_it[0]  # a line that talks along it


def with_wrong_groups(config: TrainConfig, plan: Plan, what: str) -> list[Entry]:
    """Entries of one rank, whose losses or squares are summed over other ranks than they should be."""
    training = Training(config, dist.group.WORLD, torch.device("cpu"), plan)
    every, groups = dist.group.WORLD, training.form.shard_groups
    match what:
        case "loss over all ranks":
            training.loss_group = every
        case "loss over windows alone":
            training.loss_group = training.data
        case "norm without an axis":
            training.form.shard_groups = groups[:-1]
        case "norm over an axis twice":
            training.form.shard_groups = (*groups, groups[-1])
    return entries_of_training(training)


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("loss over all ranks", "loss of a step is summed along tp_head, too"),
        ("loss over windows alone", "loss of a step is not summed along cp"),
        ("norm without an axis", "counts 1/2 of each part"),
        ("norm over an axis twice", "counts each part 2 times"),
    ],
)
def test_a_wrong_group_of_a_loss_or_a_norm_is_named(clusters: Clusters, what: str, said: str) -> None:
    plan = Plan(tensor_parallel=2, context_parallel=2)
    config = replace(CONFIG, precision=PRECISIONS["fp64"])
    entries = clusters(8).run(with_wrong_groups, config, plan, what)
    faults = Ledger(tuple(entry for of_rank in entries for entry in of_rank)).faults
    assert any(said in fault for fault in faults), faults
    assert all(fault.startswith(what.split()[0]) for fault in faults)


MESH = Mesh({"pp": 2, "dp": 2, "tp": 2})
DYE = Dye(8)


def entry(value: float, due: set[int], rank: int = 0) -> Entry:
    (found,) = entries_of({"w": torch.tensor([value])}, {"w": frozenset(due)}, MESH, rank, DYE)
    return found


def total(*ranks: int) -> float:
    return sum(DYE.of(rank) for rank in ranks)


@pytest.mark.parametrize(
    ("value", "due", "fault"),
    [
        (total(0, 2), {0, 2}, None),
        (total(0), {0, 2}, "is not summed along dp: on rank 0, without rank 2"),
        (total(0, 2), {0, 1, 2, 3}, "is not summed along tp: on rank 0, without ranks 1, 3"),
        (total(0, 1, 2, 3), {0, 2}, "is summed along tp, too: on rank 0, with ranks 1, 3"),
        (total(0, 1), {0, 2}, "is not summed along dp: on rank 0, without rank 2"),  # the wrong group of the right size
        (2 * total(0, 2), {0, 2}, "counts each part 2 times, as if summed twice along dp"),
        (3 * total(0, 2), {0, 2}, "counts each part 3 times"),
        (total(0, 2) / 2, {0, 2}, "counts 1/2 of each part, as if it were a mean along dp"),
        (total(0, 0, 2), {0, 2}, "counts some parts wrong: rank 0 2 times"),
        (0.0, {0, 2}, "has no rank's part"),
        (-1.0, {0, 2}, "is no sum of the ranks' parts"),
        (float("nan"), {0, 2}, "is no sum of the ranks' parts"),
    ],
)
def test_what_an_entry_says(value: float, due: set[int], fault: str | None) -> None:
    assert entry(value, due).fault == fault


def test_digits_of_a_sum() -> None:
    assert Dye(3).shares(Dye(3).of(0) + 2 * Dye(3).of(2)) == (1, 0, 2)
    assert Dye(3).shares(Dye(3).of(1) / 3) == (0, Fraction(1, 3), 0)
    assert Dye(3).shares(0.123456) is None
    with pytest.raises(BadInput, match="1 to 26 ranks"):
        Dye(27)
    with pytest.raises(BadInput, match="4 parts of each of 16 ranks, and a digit counts to 3"):
        entries_of({"w": torch.ones(1)}, {"w": frozenset([0])}, Mesh({"dp": 16}), 0, Dye(16), times=4)
    for ranks in (1, 2, 8, 13, 26):
        dye = Dye(ranks)
        assert dye.shares(sum(dye.of(rank) for rank in range(ranks))) == (1,) * ranks
        assert (dye.of(ranks - 1) ** 0.5) ** 2 == dye.of(ranks - 1)  # a norm takes roots


PROGRAM = """
import torch
import torch.distributed as dist
from reference.mesh import Mesh
from reference.trace.ledger import record


def main():
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2).double()

    def step():
        model(torch.randn(3, 4, dtype=torch.float64)).sum().backward()
        for parameter in PARAMETERS:
            dist.all_reduce(parameter.grad)
        LAST

    return record(step, dict(model.named_parameters()), {}, Mesh({"dp": 3}), ("dp",), dist.get_rank())
"""


@pytest.mark.parametrize(
    ("summed", "last", "code", "said"),
    [
        ("model.parameters()", "pass", 0, "each part is in each sum once"),
        ("[model.weight]", "pass", 2, "gradient bias is not summed along dp: on rank 0, without ranks 1, 2"),
        ("model.parameters()", "model.bias.grad /= 3", 2, "gradient bias counts 1/3 of each part"),
        ("[model.bias, *model.parameters()]", "pass", 2, "as if summed twice along dp"),
        ("model.parameters()", "model.bias.grad = None", 1, "bias has no gradient after the step"),
    ],
)
def test_a_program_of_ones_own(
    tmp_path: Path, capsys: pytest.CaptureFixture, summed: str, last: str, code: int, said: str
) -> None:
    file = tmp_path / "program.py"
    file.write_text(PROGRAM.replace("PARAMETERS", summed).replace("LAST", last))
    assert cli.run(["trace", str(file), "--ledger", "--ranks", "3", "--out", str(tmp_path / "out")]) == code
    out, error = capsys.readouterr()
    assert said in out + error
    if "grad /=" not in last and code and "no gradient" not in said:
        assert f"{file}:15" in error  # the line that sums


def test_a_program_without_a_ledger_is_told_so(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    file = tmp_path / "program.py"
    file.write_text("import torch.distributed as dist\n\n\ndef main():\n    dist.barrier()\n")
    assert cli.run(["trace", str(file), "--ledger", "--ranks", "2", "--out", str(tmp_path / "out")]) == 2
    assert "reference.trace.ledger.record" in capsys.readouterr().err
