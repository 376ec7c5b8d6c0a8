"""Training with compressed gradients: by any layout, resumed as if nothing had happened, refused where it cannot be."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from rankwise import on_rank
from reference.choices import MOMENTUM_TRAVELS, Compress, Optimizer
from reference.cluster import Cluster
from reference.compression.compressed import Compressed
from reference.compression.low_rank import PowerSGD
from reference.compression.signs import OneBit
from reference.compression.sparse import TopK
from reference.config import TrainConfig
from reference.errors import BadInput
from reference.memory.precision import PRECISIONS
from reference.models import GPTConfig
from reference.oracle import largest_difference, one_process
from reference.plan import DataParallelism, PipelineSchedule, Plan
from reference.report import read_log
from reference.saves import Saves
from reference.train import Training, batches_for

Clusters = Callable[..., Cluster]
EXACT = 1e-10
TIED = GPTConfig(layers=2, width=16, heads=4, kv_heads=2, hidden=24, tied=True)
CONFIG = TrainConfig(TIED, steps=8, batch=12, sequence=16, warmup=2, precision=PRECISIONS["fp64"])
WITH_MEMORY = [Compress.ONE_BIT, Compress.TOP_K, Compress.RANDOM_K, Compress.POWER_SGD]


def config_of(compress: Compress, **options: object) -> TrainConfig:
    return replace(CONFIG, compress=compress, compress_rank=2, **options)


OPTIMIZERS = [{"optimizer": each, "freeze_after": 2} for each in MOMENTUM_TRAVELS]


@pytest.mark.parametrize(
    "options", [*({"compress": each} for each in (*WITH_MEMORY, Compress.DEMO)), *OPTIMIZERS], ids=str
)
def test_a_resumed_run_equals_one_that_nothing_interrupts(
    clusters: Clusters, short_text: Path, tmp_path: Path, options: dict[str, object]
) -> None:
    """To the last bit: residuals of ranks and servers, Q, the step from which places are drawn, LAMB's factors."""
    config = replace(CONFIG, data=str(short_text), compress_rank=2, **options)
    plan = Plan(DataParallelism.DDP, micro_batches=2)
    clusters(2).run(on_rank.train, config, tmp_path / "whole", plan, None)
    for leg, background in enumerate((False, True)):
        saves = Saves(tmp_path / "run", 4, resume=leg > 0, in_background=background)
        part = replace(config, stop_after=4 * (leg + 1))
        clusters(2).run(on_rank.train, part, tmp_path / str(leg), plan, saves)
    whole, legs = read_log(tmp_path / "whole")[0], [read_log(tmp_path / str(leg))[0] for leg in range(2)]
    assert [step.loss for leg in legs for step in leg] == [step.loss for step in whole]


def test_without_its_residuals_it_would_not(clusters: Clusters, short_text: Path) -> None:
    """So the test above can fail."""
    config = config_of(Compress.TOP_K, data=str(short_text))

    def losses(forgets: bool) -> list[float]:
        training, found = Training(config, dist.group.WORLD, torch.device("cpu"), Plan()), []
        for step in range(6):
            if step == 3 and forgets:
                for each in training.form.remembered:
                    each.values.zero_()
            found.append(float(training.backward(step)))
            training.update(step)
        return found

    kept, forgot = (clusters(2).run(losses, forgets)[0] for forgets in (False, True))
    assert kept[:4] == forgot[:4] and kept[4] != forgot[4]


MAKERS = {"top-k": partial(TopK, share=0.25), "one-bit": OneBit, "powersgd": partial(PowerSGD, rank=1)}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_what_is_left_of_a_parameter_arrives_in_steps_that_do_not_use_it(clusters: Clusters, make: Callable) -> None:
    def lost() -> float:
        model = nn.ModuleList(nn.Linear(6, 6, bias=False) for _ in range(2)).double()
        form = Compressed(model, dist.group.WORLD, make, PRECISIONS["fp64"], unused=True)
        part, x = form.parts[1], torch.randn(8, 6, dtype=torch.float64)
        arrived, brought = torch.zeros(6, 6, dtype=torch.float64), torch.zeros(6, 6, dtype=torch.float64)
        for step in range(3):
            form.begin_step()
            with form.micro_batch(last=True):
                (model[0](x).sum() + (model[1](x).square().sum() if step == 0 else 0)).backward()
            if step == 0:
                brought += 2 * (x @ model[1].weight.detach().T).T @ x
            form.reduce_gradients()
            arrived += part.master.grad
            form.end_step()
        for each in form.remembered:
            if each.part.name == part.name and each.kind.startswith("residual"):
                brought.view(-1)[each.part.begin : each.part.end] -= each.values.view(-1)
        dist.all_reduce(brought)
        return float((arrived - brought).abs().max())

    assert max(clusters(2).run(lost)) < EXACT


LAYOUTS = {
    "naive": (2, Plan(DataParallelism.NAIVE)),
    "buckets": (2, Plan(DataParallelism.DDP, micro_batches=2)),
    "pipeline": (4, Plan(pipeline_parallel=2, micro_batches=3, schedule=PipelineSchedule.ZB_H1)),
    "pipeline by buckets": (4, Plan(DataParallelism.DDP, pipeline_parallel=2, micro_batches=2)),
}


@pytest.mark.turns(3)
@pytest.mark.parametrize("compress", WITH_MEMORY)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_two_replicas_are_the_same_however_their_gradients_travel(
    clusters: Clusters, short_text: Path, compress: Compress, layout: str
) -> None:
    """All at once, one by one, by buckets, by stages of a pipeline: each is named by its parameter alone."""
    config = config_of(compress, model=replace(TIED, tied=False), data=str(short_text))
    flat = clusters(2).run(on_rank.record, config, Plan())[0]
    ranks, plan = LAYOUTS[layout]
    found = clusters(ranks).run(on_rank.record, config, plan)[0]
    assert max(largest_difference(found, flat).values()) < EXACT


IN_PARTS = {
    "tensor": Plan(tensor_parallel=2),
    "sequence": Plan(DataParallelism.DDP, tensor_parallel=2, sequence_parallel=True),
    "tied ends": Plan(pipeline_parallel=2, micro_batches=2),
    "context": Plan(context_parallel=2),
}


@pytest.mark.parametrize("layout", IN_PARTS)
def test_beside_other_axes(clusters: Clusters, short_text: Path, tmp_path: Path, layout: str) -> None:
    """Where all elements are sent it is plain training; where few are, it can be resumed, to the last bit."""
    config, plan = replace(CONFIG, data=str(short_text)), IN_PARTS[layout]
    whole = config_of(Compress.TOP_K, compress_share=1.0, data=config.data)
    found = clusters(4).run(on_rank.record, whole, plan)[0]
    assert max(largest_difference(found, one_process(config)).values()) < EXACT
    few = config_of(Compress.TOP_K, data=config.data, compress_share=0.1)
    clusters(4).run(on_rank.train, few, tmp_path / "whole", plan, None)
    for leg in range(2):
        saves = Saves(tmp_path / "run", 4, resume=leg > 0)
        clusters(4).run(on_rank.train, replace(few, stop_after=4 * (leg + 1)), tmp_path / str(leg), plan, saves)
    legs = [read_log(tmp_path / str(leg))[0] for leg in range(2)]
    assert [s.loss for leg in legs for s in leg] == [s.loss for s in read_log(tmp_path / "whole")[0]]


@pytest.mark.parametrize("compress", WITH_MEMORY)
def test_on_another_number_of_ranks_nothing_is_lost(
    clusters: Clusters, short_text: Path, tmp_path: Path, compress: Compress
) -> None:
    """What all ranks together have not sent is the same on 4, then 2, then 3 ranks."""
    config = config_of(compress, data=str(short_text), steps=3)

    def unsent(saves: Saves) -> dict[str, torch.Tensor]:
        training = Training(config, dist.group.WORLD, torch.device("cpu"), Plan())
        if saves.resume:
            saves.begin(training)
        else:
            for step in range(2):
                training.backward(step)
                training.update(step)
        saves.save(training, 2)
        left = {}
        for each in training.form.remembered:
            if each.kind.startswith("residual"):
                whole = left.setdefault(each.part.name, torch.zeros(each.part.shape.numel(), dtype=torch.float64))
                whole[each.part.begin : each.part.end] += each.values.flatten()
        for whole in left.values():
            dist.all_reduce(whole)
        return left

    first, *later = [
        clusters(ranks).run(unsent, Saves(tmp_path / "run", resume=leg > 0))[0] for leg, ranks in enumerate((4, 2, 3))
    ]
    assert max(float(left.abs().max()) for left in first.values()) > 0
    for other in later:
        assert all(torch.allclose(first[name], other[name], rtol=0, atol=1e-15) for name in first)


FEW = config_of(Compress.TOP_K)
REFUSED = [
    (Plan(DataParallelism.ZERO1), FEW, r"zero1 does not sum so: take --data-parallel naive, flat or ddp"),
    (Plan(DataParallelism.FSDP), FEW, r"fsdp does not sum so"),
    (Plan(lambda gradients, group: None), FEW, r"a function of one's own does not sum so"),
    (Plan(tensor_parallel=2), replace(CONFIG, optimizer=Optimizer.ONE_BIT_ADAM), "take data parallelism alone"),
    (Plan(pipeline_parallel=2), replace(CONFIG, compress=Compress.DEMO), "take data parallelism alone"),
]


@pytest.mark.parametrize(("plan", "config", "reason"), REFUSED)
def test_a_plan_without_whole_sums_is_refused(plan: Plan, config: TrainConfig, reason: str) -> None:
    with pytest.raises(BadInput, match=reason):
        plan.require_compression(config)


def test_a_setting_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(BadInput, match="a rank of 1 or more, not 0"):
        replace(CONFIG, compress_rank=0)
    with pytest.raises(BadInput, match=r"more than 0 and at most 1, not 1\.5"):
        replace(CONFIG, compress_share=1.5)
    with pytest.raises(BadInput, match="has sums of its own: leave out --compress top-k"):
        replace(FEW, optimizer=Optimizer.ONE_BIT_ADAM)
    with pytest.raises(BadInput, match="scale of the loss changes in fp16"):
        replace(CONFIG, compress=Compress.POWER_SGD, precision=PRECISIONS["fp16"])


def test_a_run_resumes_with_the_compression_that_it_had(clusters: Clusters, short_text: Path, tmp_path: Path) -> None:
    config = config_of(Compress.POWER_SGD, data=str(short_text), steps=2)
    clusters(2).run(on_rank.train, config, tmp_path / "log", Plan(), Saves(tmp_path / "run"))
    for other, is_now in ((replace(config, compress_rank=3), "powersgd 3"), (config_of(Compress.NONE), "none")):
        with pytest.raises(BadInput, match=f"compress powersgd 2, and this has {is_now}"):
            Saves(tmp_path / "run", resume=True).check(other, batches_for(config, 2))
