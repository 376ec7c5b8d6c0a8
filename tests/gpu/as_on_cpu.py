"""What training learns on GPUs it learns on CPUs: the same ranks go through each run twice, over NCCL and over gloo.

On CPUs other tests hold each of these runs to one process. They need groups of both kinds, as `reference.launch` and
`Cluster` start them ("lazy").
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
import torch.distributed as dist
from family import EXACT, config_for, shared_folder
from torch.distributed import ProcessGroup

from reference.choices import (
    MOMENTUM_TRAVELS,
    Aggregation,
    Compress,
    GossipTopology,
    LinearNumbers,
    Optimizer,
    Outer,
    Wire,
    WireFormat,
)
from reference.config import TrainConfig
from reference.data_parallel.initial import fingerprint
from reference.errors import BadInput
from reference.islands import WITHOUT_ROUNDS, WITHOUT_WAITING
from reference.models import GPTConfig
from reference.oracle import largest_difference, on_ranks, relative_difference
from reference.parallelize import DataParallelism, Plan
from reference.resilience.snapshot import TrainingSnapshot
from reference.saves import Saves
from reference.train import Training, require_fit, summed, train

MODEL = GPTConfig(layers=2, width=64, heads=4, kv_heads=2, hidden=96)  # sides that kernels of 8 bits take
SIGNS = {Compress.DEMO, Compress.MAJORITY_VOTE}  # they say where to go, and not how far
ROUNDED = 5e-2  # of losses, where a step computes in few bits: another order of additions rounds otherwise
SCALED = 2e-2  # of all, where numbers travel in few bits: the last bit of a scale may choose another
Run = tuple[str, TrainConfig, Plan, float]  # its name, what to learn, how, and how far GPUs may be from CPUs


def config_of(group: ProcessGroup, precision: str = "fp64", **options: object) -> TrainConfig:
    """A few steps that divide among the ranks."""
    return replace(config_for(group, precision), model=MODEL, steps=4, batch=2 * group.size(), **options)


def difference(run: Run, group: ProcessGroup, device: str) -> float:
    """The largest, of losses, norms, gradients and parameters; of losses alone where a step computes in few bits."""
    _, config, plan, bound = run
    here, there = (on_ranks(config, group, where, plan) for where in (device, "cpu"))
    if bound == ROUNDED:
        return relative_difference(here.losses, there.losses)
    here = replace(here, **{name: on_cpu(getattr(here, name)) for name in ("gradients", "parameters")})
    return max(largest_difference(here, there).values())


def on_cpu(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same there."""
    return {name: x.cpu() for name, x in tensors.items()}


def apart(runs: Iterator[Run], group: ProcessGroup, device: str) -> list[str]:
    """Runs whose ranks on GPUs have not learned what they learned on CPUs."""
    found = []
    for run in runs:
        name, _, _, bound = run
        far = difference(run, group, device)
        found += [f"{name}: {far:.2g} from CPUs"] if not far < bound else []
    return found


def optimizers(group: ProcessGroup, device: str) -> list[str]:
    """Optimizers that look at whole matrices, and one that remembers in 8 bits."""
    runs = (
        (f"{optimizer}, {form}", config_of(group, optimizer=optimizer), Plan(form), EXACT)
        for optimizer in (Optimizer.MUON, Optimizer.SHAMPOO, Optimizer.SOAP, Optimizer.ADAMW_8_BIT)
        for form in (DataParallelism.FLAT, DataParallelism.FSDP)
    )
    return apart(runs, group, device)


def compressed(group: ProcessGroup, device: str) -> list[str]:
    """Gradients and momenta that travel in fewer bits."""

    def runs() -> Iterator[Run]:
        for compress in (word for word in Compress if word is not Compress.NONE):
            optimizer = Optimizer.SGD if compress in SIGNS else Optimizer.ADAMW
            bound = ROUNDED if compress in (Compress.BF16, Compress.FP16) else EXACT
            yield compress, config_of(group, compress=compress, optimizer=optimizer), Plan(DataParallelism.DDP), bound
        for optimizer in MOMENTUM_TRAVELS:
            yield optimizer, config_of(group, optimizer=optimizer, freeze_after=2), Plan(DataParallelism.DDP), EXACT

    return apart(runs(), group, device)


def low_bits(group: ProcessGroup, device: str) -> list[str]:
    """Products and weights of few bits, by the kernels that this device has; and what travels so under FSDP."""

    def runs() -> Iterator[Run]:
        for linear in (word for word in LinearNumbers if word is not LinearNumbers.SAME):
            yield f"{linear} in fp64", config_of(group, linear=linear), Plan(DataParallelism.FSDP), EXACT
            yield f"{linear} in bf16", config_of(group, "bf16", linear=linear), Plan(DataParallelism.FSDP), ROUNDED
        for optimizer in (Optimizer.ADAMW, Optimizer.ADAMW_8_BIT):
            yield f"{optimizer} by chance", config_of(group, "bf16-stochastic", optimizer=optimizer), Plan(), ROUNDED
        node = 2 - group.size() % 2
        for numbers in (word for word in WireFormat if word is not WireFormat.NONE):
            nodes = {"secondary_shards": node, "ranks_per_node": node}
            ways = {"quantize_weights": numbers, "quantize_gradients": numbers}
            yield f"{numbers} under way", config_of(group), Plan(DataParallelism.FSDP, **ways, **nodes), SCALED

    return apart(runs(), group, device)


def island_options() -> Iterator[dict[str, object]]:
    """Every way to meet, every way to say it, and every way to agree."""
    yield {"outer": Outer.BRANCHES}
    for outer in (word for word in Outer if word not in (*WITHOUT_ROUNDS, *WITHOUT_WAITING)):
        yield {"outer": outer, "inner_steps": 2}
    yield from ({"outer": Outer.GOSSIP, "inner_steps": 2, "topology": topology} for topology in GossipTopology)
    yield from ({"outer": Outer.STREAMING, "inner_steps": 2, "wire": wire} for wire in Wire)
    robust = (word for word in Aggregation if word is not Aggregation.MEAN)
    yield from ({"outer": Outer.DILOCO, "inner_steps": 2, "aggregation": word, "liars": 0} for word in robust)
    yield {"outer": Outer.LOCAL_SGD, "inner_steps": 2, "clip_change": 0.1, "noise_multiplier": 1e-14}  # drawn anew
    yield {"outer": Outer.LOCAL_SGD, "inner_steps": 2, "secure_sum": True}


def meetings(group: ProcessGroup) -> Iterator[Run]:
    """Those for which there are islands enough, and pairs where pairs meet; a rank is an island."""
    for options in island_options():
        try:
            config = config_of(group, islands=group.size(), **options)
            require_fit(config, Plan(), group.size())
        except BadInput:
            continue
        bound = SCALED if options.get("wire") in (Wire.INT8, Wire.INT4) else EXACT
        yield ", ".join(map(str, options.values())), config, Plan(), bound


def islands(group: ProcessGroup, device: str) -> list[str]:
    """They meet after each second step; and those that wait for no other end as one."""
    found = apart(meetings(group), group, device)
    for outer in WITHOUT_WAITING:
        config = config_of(group, islands=group.size(), outer=outer, inner_steps=2)
        last = on_ranks(config, group, device).parameters
        said = [int(fingerprint(x)) for x in last.values()]
        of_all = [said] * group.size()
        dist.all_gather_object(of_all, said, group)
        found += [f"{outer}: islands do not end as one"] if any(each != said for each in of_all) else []
    return found


def saved(group: ProcessGroup, device: str) -> list[str]:
    """What is written while training continues, or as what has changed, is resumed on CPUs by another plan."""
    config, found = config_of(group), []
    expected = next_loss(train(config, group, torch.device("cpu"), Plan(DataParallelism.FSDP)))
    for how in ({"in_background": True}, {"full_every": 2}, {}):
        with shared_folder(group, device) as folder:
            saves, plan = Saves(folder / "run", every=1, **how), Plan(DataParallelism.FSDP)
            train(replace(config, stop_after=2), group, torch.device(device), plan, saves=saves)
            resumed = train(config, group, torch.device("cpu"), Plan(), saves=replace(saves, resume=True))
        far = abs(next_loss(resumed) - expected)
        found += [f"{how}: {far:.2g} from a run that was not resumed"] if not far < EXACT else []
    return found


def next_loss(training: Training) -> float:
    """Of the step after the last."""
    return summed(training.backward(training.config.steps), training.loss_group)


def gone_back(group: ProcessGroup, device: str) -> list[str]:
    """From a snapshot a step can be taken again; bits are summed up to the same number everywhere."""
    training = Training(config_of(group), group, torch.device(device), Plan(DataParallelism.ZERO1))
    snapshot, losses = TrainingSnapshot.of(training), []
    for _ in range(2):
        losses.append([loss for _, loss, _ in training.steps(0, 3)])
        snapshot.restore(training)
    far = relative_difference(*losses)
    masters = [part.master.detach() for part in training.form.parts]
    same = all(int(fingerprint(x)) == int(fingerprint(x.cpu())) for x in masters)
    return ([] if far < EXACT else [f"{losses}"]) + ([] if same else ["fingerprints differ"])
