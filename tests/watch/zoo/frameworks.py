"""torch's own parallel training, entered by only some ranks or with different models. The line is the learner's."""

import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed import _functional_collectives as functional
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor import DTensor, Shard
from torch.nn.parallel import DistributedDataParallel

from tests.watch.cases import Outcome, mistake


@mistake(
    ranks=2,
    error="DeadlockError",
    blames=(0,),
    says=["rank 1 finished without"],
    plain=Outcome.CLOSED,
)
def ddp_built_on_one_rank():
    model = nn.Linear(4, 4)
    if dist.get_rank() == 0:
        model = DistributedDataParallel(model)  # <- here
    model(torch.ones(2, 4)).sum()


@mistake(
    ranks=2,
    error="DeadlockError",
    blames=(0,),
    says=["rank 1 finished without"],
    plain=Outcome.CLOSED,
)
def ddp_evaluated_on_rank_zero():
    """The forward of a model with buffers begins with a broadcast; `model.module` would not."""
    model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))
    model(torch.ones(2, 4)).sum().backward()
    if dist.get_rank() == 0:
        model.eval()
        with torch.no_grad():
            model(torch.ones(2, 4))  # <- here


@mistake(
    ranks=2,
    error="DeadlockError",
    blames=(0,),
    says=["all_reduce", "rank 1 finished without|only on rank 0"],
    plain=Outcome.CLOSED,
)
def ddp_with_one_batch_more_on_rank_zero():
    model = DistributedDataParallel(nn.Linear(4, 1))
    for _ in range(3 if dist.get_rank() == 0 else 2):
        loss = model(torch.ones(2, 4)).sum()
        loss.backward()  # <- here


@mistake(
    ranks=2,
    error="DeadlockError",
    blames=(1,),
    says=["all_reduce", "rank 0 finished without|only on rank 1"],
    plain=Outcome.CLOSED,
)
def ddp_skips_a_bad_batch_on_one_rank():
    model = DistributedDataParallel(nn.Linear(4, 1))
    for step in range(3):
        loss = model(torch.ones(2, 4)).sum()
        if dist.get_rank() == 0 and step == 1:
            continue  # the loss looked wrong
        loss.backward()  # <- here


class TwoHeads(nn.Module):
    """A body with two heads of which a batch uses one."""

    def __init__(self):
        super().__init__()
        self.body, self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 1), nn.Linear(4, 1)

    def forward(self, x, head):
        return getattr(self, head)(self.body(x))


@mistake(
    ranks=2,
    error="RemoteException",
    blames=(0, 1),
    says=["finished reduction"],
    plain=Outcome.RAISES,
)
def ddp_with_an_unused_head():
    model = DistributedDataParallel(TwoHeads())
    for _ in range(2):
        model(torch.ones(2, 4), "left").sum().backward()  # <- here


@mistake(
    ranks=2,
    error="DeadlockError",
    blames=(1,),
    says=["all_reduce", "rank 0 finished without"],
    plain=Outcome.CLOSED,
)
def ddp_leaves_a_head_unused_on_one_rank():
    """Rank 0 never has all its gradients, so it never begins to reduce them; rank 1 has begun and waits."""
    model = DistributedDataParallel(TwoHeads())
    x = torch.ones(2, 4)
    loss = model.module(x, "left").sum() if dist.get_rank() == 1 else 0
    loss = loss + model(x, "right").sum()
    loss.backward()  # <- here


@mistake(
    ranks=2,
    error="RemoteException",
    blames=(0, 1),
    says=["params|parameters"],
    plain=Outcome.RAISES,
)
def ddp_of_different_models():
    layers = [nn.Linear(4, 4) for _ in range(1 + dist.get_rank())]
    DistributedDataParallel(nn.Sequential(*layers))  # <- here


@mistake(
    ranks=2,
    error="DeadlockError",
    blames=(0,),
    says=["all_gather", "rank 1 finished without"],
    plain=Outcome.CLOSED,
)
def fsdp_forward_on_rank_zero():
    model = nn.Linear(4, 4)
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    if dist.get_rank() == 0:
        model(torch.ones(2, 4))  # <- here


@mistake(
    ranks=2,
    error="DeadlockError",
    blames=(0,),
    says=["rank 1 finished without"],
    plain=Outcome.CLOSED,
)
def fsdp_weights_collected_on_rank_zero():
    """`full_tensor` is an all-gather, however innocent the name."""
    model = nn.Linear(4, 4)
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    if dist.get_rank() == 0:
        state = {name: value.full_tensor() for name, value in model.state_dict().items()}  # <- here
        print(list(state))


@mistake(
    ranks=2,
    error="DeadlockError",
    blames=(1,),
    says=["rank 0 finished without"],
    plain=Outcome.CLOSED,
)
def sharded_tensor_printed_in_full_by_one_rank():
    mesh = init_device_mesh("cpu", (2,))
    weights = DTensor.from_local(torch.ones(2, 4), mesh, [Shard(0)])
    if dist.get_rank() == 1:
        print(weights.full_tensor())  # <- here


@mistake(
    ranks=2,
    error="DeadlockError",
    blames=(0,),
    says=["rank 1 finished without"],
    plain=Outcome.CLOSED,
)
def functional_all_reduce_on_one_rank():
    x = torch.ones(4)
    if dist.get_rank() == 0:
        total = functional.all_reduce(x, "sum", dist.group.WORLD)  # <- here
        return total + 0  # <- here


@mistake(
    ranks=2,
    error="DeadlockError",
    blames=(0,),
    says=["rank 1 finished without"],
    plain=Outcome.CLOSED,
)
def checkpoint_saved_by_rank_zero():
    """`dcp.save` is a collective; every rank writes its own part."""
    model = nn.Linear(4, 4)
    if dist.get_rank() == 0:
        with tempfile.TemporaryDirectory() as folder:
            dcp.save(model.state_dict(), checkpoint_id=folder)  # <- here


@mistake(
    ranks=2,
    error="DeadlockError",
    blames=(0,),
    says=["rank 1 finished without|only on rank 0"],
    plain=Outcome.CLOSED,
)
def sharded_optimizer_steps_on_one_rank():
    model = nn.Linear(4, 4)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.SGD, lr=0.1)
    model(torch.ones(2, 4)).sum().backward()
    if dist.get_rank() == 0:
        optimizer.step()  # <- here


@mistake(
    ranks=2,
    error="DeadlockError",
    blames=(0, 1),
    says=["deadlock|rank 1 finished without"],
    plain=Outcome.HANGS,
)
def last_stage_of_the_pipeline_leaves_early():
    """Stage 1 believes that there are two micro-batches, stage 0 sends four."""
    rank = dist.get_rank()
    stage = PipelineStage(nn.Linear(4, 4), rank, 2, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=4 if rank == 0 else 2, loss_fn=nn.functional.mse_loss)
    if rank == 0:
        schedule.step(torch.ones(8, 4))  # <- here
    else:
        schedule.step(target=torch.ones(4, 4))  # <- here


@mistake(
    ranks=4,
    error="GroupError",
    blames=(0, 1),
    says=["every rank must call"],
    plain=Outcome.HANGS,
)
def mesh_built_by_half_of_the_ranks():
    if dist.get_rank() < 2:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))  # <- here
        return mesh["data"].size()


@mistake(
    ranks=2,
    error="DeadlockError",
    blames=(1,),
    says=["all_reduce", "rank 0"],
    plain=Outcome.CLOSED,
)
def gradient_norm_reduced_only_where_it_is_clipped():
    layer = nn.Linear(4, 1)
    layer(torch.full((2, 4), 1.0 + 100 * dist.get_rank())).sum().backward()
    norm = layer.weight.grad.norm()
    if norm > 10:  # only rank 1 has a norm this large
        dist.all_reduce(norm)  # <- here
        layer.weight.grad /= norm


@mistake(
    ranks=2,
    error="DeadlockError",
    blames=(1,),
    says=["all_reduce", "rank 0 finished without"],
    plain=Outcome.CLOSED,
)
def ddp_accumulates_on_one_rank_only():
    model = DistributedDataParallel(nn.Linear(4, 1))
    if dist.get_rank() == 0:
        with model.no_sync():
            model(torch.ones(2, 4)).sum().backward()
    else:
        model(torch.ones(2, 4)).sum().backward()  # <- here
