"""Each engine trains an engineer's own model as one process does, in float64: all gradients, all parameters."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache, partial
from types import MappingProxyType

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from reference.cluster import Cluster
from reference.data_parallel import DistributedDataParallel, Replicated, full_state_dict, gather_full, naive
from reference.data_parallel.batch_norm import convert
from reference.data_parallel.gradient_sync import DataParallel
from reference.memory.activation_offload import offload_activations
from reference.memory.offload import OffloadedOptimizer
from reference.memory.offload_targets import HostMemory
from reference.memory.precision import PRECISIONS
from reference.oracle import alone, relative_difference
from reference.pipeline_parallel.orders import one_f_one_b
from reference.pipeline_parallel.run import Pipeline
from reference.pipeline_parallel.schedule import Schedule
from reference.pipeline_parallel.split_backward import DeferredWeightGradients, split_backward
from reference.zero import FullySharded, Sharded
from reference.zero_bubble.orders import zb_h1

from .models import MODELS, Encoder, Own, tokens

STEPS = 3
EXACT = 1e-10  # in float64 additions in another order cost 1e-15 a step, any mistake at least 1e-3
Record = dict[str, Tensor]
Make = Callable[..., DataParallel]
SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.9)

ENGINES: Mapping[str, Make] = MappingProxyType(
    {
        "naive": partial(Replicated, reduce=naive),
        "DDP": partial(DistributedDataParallel, bucket_bytes=1000),
        "ZeRO-1": partial(Sharded, stage=1, bucket_bytes=1000),
        "ZeRO-2": partial(Sharded, stage=2, bucket_bytes=1000),
        "FSDP": FullySharded,
        "FSDP, gathered once": partial(FullySharded, reshard_after_forward=False),
    }
)


def written(step: int, gradients: Record) -> Record:
    return {f"step {step}: gradient of {name}": gradient for name, gradient in gradients.items()}


@lru_cache
def one_process(own: Own) -> Record:
    """Every gradient of every step, and what the model's state is at the end."""
    model, record = own.model(), {}
    optimizer = SGD([p for p in model.parameters() if p.requires_grad])
    for number, step in enumerate(alone(model, optimizer, lambda step: own.loss(model, step, 0, 1), STEPS)):
        record |= written(number, step.gradients)
    return record | model.state_dict()


def unused(make: Make, own: Own) -> dict[str, bool]:
    """What replicas must be told; in forms that shard, an unused parameter has a gradient of zero anyway."""
    return {"unused": own.unused} if make in (ENGINES["naive"], ENGINES["DDP"]) else {}


def on_ranks(own: Own, make: Make, micro_batches: int, target: HostMemory | None = None) -> Record:
    """The same, by a form on all ranks; what waits for something else waits at `target`, if there is one."""
    rank, parts = dist.get_rank(), micro_batches * dist.get_world_size()
    model, record = convert(own.model(), dist.group.WORLD), {}
    form = make(model, dist.group.WORLD, precision=PRECISIONS["fp64"], **unused(make, own))
    masters = [part.master for part in form.parts]
    optimizer = OffloadedOptimizer(torch.optim.SGD, masters, target, lr=0.1, momentum=0.9) if target else SGD(masters)
    offloaded: Callable[[], AbstractContextManager] = partial(offload_activations, target, 0) if target else nullcontext
    for step in range(STEPS):
        for k in range(micro_batches):
            with form.micro_batch(last=k == micro_batches - 1):
                with offloaded():
                    loss = own.loss(model, step, rank * micro_batches + k, parts)
                loss.backward()
        form.reduce_gradients()
        record |= written(step, gather_full(form, lambda part: part.master.grad))
        optimizer.step()
        form.end_step()
    return record | full_state_dict(form, model)


def prove(found: list[Record], expected: Record) -> None:
    """What one process knows is the same here; what was not used has no gradient there, and zero or none here."""
    for record in found:
        assert expected.keys() <= record.keys()
        for name, value in record.items():
            if name in expected:
                assert value.dtype == expected[name].dtype, name
                assert value.numel() == 0 or relative_difference(value.double(), expected[name].double()) < EXACT, name
            else:
                assert not value.any(), name


@pytest.mark.turns(3)
@pytest.mark.parametrize("name", MODELS)
def test_every_engine_equals_one_process(two: Cluster, name: str) -> None:
    own = MODELS[name]
    micro_batches = 1 if "norm" in name else 2  # statistics are of what is computed at once
    for make in ENGINES.values():
        prove(two.run(on_ranks, own, make, micro_batches), one_process(own))


@pytest.mark.turns(2)
@pytest.mark.parametrize("name", ["nn.TransformerEncoder", "tied, frozen, unused, used twice", "Llama, recomputed"])
@pytest.mark.parametrize("engine", ["DDP", "ZeRO-2", "FSDP"])
def test_with_activations_and_state_elsewhere(two: Cluster, name: str, engine: str) -> None:
    own = MODELS[name]
    prove(two.run(on_ranks, own, ENGINES[engine], 2, HostMemory()), one_process(own))


def stages_of(model: Encoder) -> list[nn.Module]:
    """A list of stages, as an engineer cuts a model: an embedding and a layer, and the rest."""
    first, second = model.encoder.layers
    return [nn.Sequential(model.embedding, first), nn.Sequential(second, model.encoder.norm, model.head)]


def in_a_pipeline(order: Callable[[int, int], Schedule], micro_batches: int) -> Record:
    """Gradients and parameters of this rank's stage, by their names in the model."""
    rank, record = dist.get_rank(), {}
    model = MODELS["nn.TransformerEncoder"].model()
    names = {parameter: name for name, parameter in model.named_parameters()}
    stage = stages_of(model)[rank]
    schedule = order(dist.get_world_size(), micro_batches)
    split_backward(stage, deferred := DeferredWeightGradients())
    pipeline = Pipeline(schedule, {rank: stage}, dist.group.WORLD, torch.device("cpu"), deferred=deferred)
    optimizer = SGD(stage.parameters())
    for step in range(STEPS):
        batch = [tokens(step, k, micro_batches) for k in range(micro_batches)]

        def loss(logits: Tensor, k: int, batch: list[Tensor] = batch) -> Tensor:
            rows = batch[k]
            return F.cross_entropy(logits[:, :-1].flatten(0, 1), rows[:, 1:].flatten(), reduction="sum") / 60

        pipeline.step(lambda k, batch=batch: (batch[k],), loss)
        record |= written(step, {names[p]: p.grad.clone() for p in stage.parameters()})
        optimizer.step()
        optimizer.zero_grad()
    return record | {names[p]: p.detach().clone() for p in stage.parameters()}


@pytest.mark.parametrize("order", [one_f_one_b, zb_h1])
def test_a_pipeline_of_a_list_of_stages(two: Cluster, order: Callable[[int, int], Schedule]) -> None:
    first, second = two.run(in_a_pipeline, order, 4)
    assert not first.keys() & second.keys()
    prove([first | second], one_process(MODELS["nn.TransformerEncoder"]))
