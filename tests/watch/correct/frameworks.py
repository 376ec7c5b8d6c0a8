"""torch's own parallel training: DDP, FSDP2, ZeRO, tensor parallelism, pipelining, checkpoints."""

import shutil
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed._composable.replicate import replicate
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleDualPipeV,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleLoopedBFS,
    ScheduleZBVZeroBubble,
)
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

from tests.watch.cases import correct


def mlp():
    """Two layers with the same weights on every rank."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))


def batch():
    """Four samples, different on every rank."""
    torch.manual_seed(1 + dist.get_rank())
    return torch.randn(4, 8)


def train(model, optimizer=None, steps=3):
    """A few steps; returns the loss of the last."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(batch()).square().mean()
        loss.backward()
        optimizer.step()
    return loss.item()


def assert_same_everywhere(tensor):
    """Replicas must be equal to the last bit."""
    mine = tensor.detach().clone()
    dist.broadcast(mine, src=0)
    assert torch.equal(mine, tensor.detach())


@correct(2, 4)
def ddp():
    model = DistributedDataParallel(mlp())
    train(model)
    assert_same_everywhere(model.module[0].weight)


@correct(2)
def ddp_with_small_buckets():
    model = DistributedDataParallel(mlp(), bucket_cap_mb=1e-4, gradient_as_bucket_view=True)
    train(model)
    assert_same_everywhere(model.module[2].bias)


@correct(2)
def ddp_accumulates():
    model = DistributedDataParallel(mlp())
    with model.no_sync():
        for _ in range(2):
            model(batch()).sum().backward()
    model(batch()).sum().backward()
    assert_same_everywhere(model.module[0].weight.grad)


class OneOfTwoHeads(nn.Module):
    """Uses the head that it is told to use."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.heads = nn.Linear(8, 8), nn.ModuleList([nn.Linear(8, 1), nn.Linear(8, 1)])

    def forward(self, x, head):
        return self.heads[head](self.body(x))


@correct(2)
def ddp_with_unused_parameters():
    """Each rank uses another head, and has said that it might."""
    model = DistributedDataParallel(OneOfTwoHeads(), find_unused_parameters=True)
    for _ in range(2):
        model(batch(), dist.get_rank()).sum().backward()
    assert_same_everywhere(model.module.heads[0].weight.grad)


@correct(2)
def ddp_with_a_static_graph():
    model = DistributedDataParallel(mlp(), static_graph=True)
    train(model)


@correct(2)
def ddp_with_uneven_batches_joined():
    """`join` shadows the collectives of the ranks that still train."""
    model = DistributedDataParallel(mlp())
    with model.join():
        for _ in range(3 + dist.get_rank()):
            model(batch()).sum().backward()
    assert_same_everywhere(model.module[0].weight)


@correct(2)
def ddp_with_buffers_evaluated_by_module():
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)))
    train(model)
    if dist.get_rank() == 0:
        model.eval()
        with torch.no_grad():
            model.module(batch())
    dist.barrier()


@correct(2)
def ddp_with_a_compressing_hook():
    model = DistributedDataParallel(mlp())
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    train(model)
    assert_same_everywhere(model.module[0].weight)


@correct(2)
def ddp_composable():
    model = replicate(mlp())
    train(model)
    assert_same_everywhere(model[0].weight)


@correct(2)
def join_of_ddp_and_sharded_optimizer():
    model = DistributedDataParallel(mlp())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.Adam, lr=0.01)
    with Join([model, optimizer]):
        for _ in range(2 + dist.get_rank()):
            model(batch()).sum().backward()
            optimizer.step()
    assert_same_everywhere(model.module[0].weight)


@correct(2, 3)
def zero_redundancy_optimizer():
    model = DistributedDataParallel(mlp())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.Adam, lr=0.01)
    train(model, optimizer)
    optimizer.consolidate_state_dict(to=0)
    if dist.get_rank() == 0:
        assert optimizer.state_dict()["state"]
    assert_same_everywhere(model.module[2].weight)


@correct(2)
def fsdp1():
    model = FullyShardedDataParallel(mlp(), device_id=torch.device("cpu"), use_orig_params=True)
    train(model)


@correct(2, 4)
def fsdp2():
    model = mlp()
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    train(model)
    assert_same_everywhere(model[0].weight.full_tensor())


@correct(3)
def fsdp2_of_uneven_shards():
    """Sixteen rows on three ranks."""
    model = mlp()
    fully_shard(model, mesh=init_device_mesh("cpu", (3,)))
    train(model)
    assert_same_everywhere(model[2].bias.full_tensor())


@correct(2)
def fsdp2_accumulates_and_clips():
    model = mlp()
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=init_device_mesh("cpu", (2,)), reshard_after_forward=False)
    model.set_requires_gradient_sync(False)
    model(batch()).sum().backward()
    model.set_requires_gradient_sync(True)
    model(batch()).sum().backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0).full_tensor()
    assert_same_everywhere(norm)


@correct(2)
def fsdp2_in_mixed_precision():
    model = mlp()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)), mp_policy=policy)
    train(model)


@correct(4)
def hybrid_sharding():
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    model = mlp()
    fully_shard(model, mesh=mesh)
    train(model)
    assert_same_everywhere(model[0].weight.full_tensor())


@correct(2)
def fsdp2_full_state_dict():
    """Collected by all ranks, kept by rank 0."""
    model = mlp()
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    options = dcp.state_dict.StateDictOptions(full_state_dict=True, cpu_offload=True)
    state = get_model_state_dict(model, options=options)
    assert len(state) == (4 if dist.get_rank() == 0 else 0)


@correct(2)
def tensor_parallel():
    mesh = init_device_mesh("cpu", (2,))
    model = parallelize_module(mlp(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    torch.manual_seed(1)
    x = torch.randn(4, 8)
    assert torch.allclose(model(x), mlp()(x), atol=1e-5)
    model(x).sum().backward()
    assert model[0].weight.grad.full_tensor().shape == (16, 8)


class Block(nn.Module):
    """A norm and two layers, for sequence parallelism."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        return self.down(self.up(self.norm(x)).relu())


@correct(2)
def sequence_parallel():
    mesh = init_device_mesh("cpu", (2,))
    plan = {
        "norm": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Shard(1)),
    }
    model = parallelize_module(Block(), mesh, plan)
    x = distribute_tensor(torch.ones(2, 4, 8), mesh, [Shard(1)])
    model(x).sum().backward()
    assert model.norm.weight.grad is not None


@correct(2)
def loss_over_a_sharded_vocabulary():
    mesh = init_device_mesh("cpu", (2,))
    logits = distribute_tensor(torch.randn(6, 8, requires_grad=True), mesh, [Shard(1)])
    with loss_parallel():
        nn.functional.cross_entropy(logits, torch.arange(6)).backward()


@correct(4)
def tensor_and_data_parallel_together():
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    model = parallelize_module(mlp(), mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(model, mesh=mesh["data"])
    train(model, steps=2)


@correct(2, 3)
def distributed_tensors_change_their_layout():
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    whole = torch.randn(6, 6)
    x = distribute_tensor(whole, mesh, [Shard(0)])
    assert torch.equal(x.redistribute(mesh, [Shard(1)]).full_tensor(), whole)
    assert torch.equal(x.redistribute(mesh, [Replicate()]).to_local(), whole)
    assert torch.allclose((x @ x).full_tensor(), whole @ whole, atol=1e-5)
    assert DTensor.from_local(torch.ones(1), mesh, [Shard(0)]).sum().full_tensor() == dist.get_world_size()


def stages(count):
    """This rank's `count` stages of a pipeline, looped over the ranks."""
    rank, n = dist.get_rank(), dist.get_world_size()
    mine = [rank + loop * n for loop in range(count)]
    torch.manual_seed(rank)
    return [PipelineStage(nn.Linear(8, 8), index, n * count, torch.device("cpu")) for index in mine]


def step_twice(schedule, first, last):
    """Two steps of a schedule; the first rank gives the input, the last one the target."""
    for _ in range(2):
        inputs = (torch.ones(8, 8),) if first else ()
        losses = [] if last else None
        schedule.step(*inputs, target=torch.zeros(8, 8) if last else None, losses=losses)
        assert not last or len(losses) == 4


@correct(2, 3, args=(ScheduleGPipe,))
@correct(2, 4, args=(Schedule1F1B,))
def pipeline(schedule):
    [stage] = stages(1)
    step_twice(schedule(stage, 4, loss_fn=nn.functional.mse_loss), stage.is_first, stage.is_last)


@correct(2, args=(ScheduleInterleaved1F1B,))
@correct(2, args=(ScheduleLoopedBFS,))
@correct(2, args=(ScheduleInterleavedZeroBubble,))
def pipeline_of_several_stages_a_rank(schedule):
    mine = stages(2)
    step_twice(schedule(mine, 4, loss_fn=nn.functional.mse_loss), mine[0].is_first, mine[-1].is_last)


@correct(2)
def distributed_checkpoint():
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder, src=0)
    model = mlp()
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    before = model[0].weight.full_tensor()
    state = get_model_state_dict(model)
    dcp.save(state, checkpoint_id=folder[0])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    dcp.load(state, checkpoint_id=folder[0])
    set_model_state_dict(model, state)
    assert torch.equal(model[0].weight.full_tensor(), before)
    if dist.get_rank() == 0:
        shutil.rmtree(folder[0])


@correct(4)
def pipeline_of_sharded_stages():
    """A pipeline over one axis of the mesh, each stage sharded over the other."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pipeline", "data"))
    torch.manual_seed(0)
    module = nn.Linear(8, 8)
    fully_shard(module, mesh=mesh["data"])
    index, group = mesh["pipeline"].get_local_rank(), mesh.get_group("pipeline")
    stage = PipelineStage(module, index, 2, torch.device("cpu"), group=group)
    step_twice(Schedule1F1B(stage, 4, loss_fn=nn.functional.mse_loss), stage.is_first, stage.is_last)


@correct(2, args=(ScheduleZBVZeroBubble,))
@correct(2, args=(ScheduleDualPipeV,))
def pipeline_in_the_shape_of_a_v(schedule):
    """Rank 0 holds the first stage and the last."""
    rank = dist.get_rank()
    torch.manual_seed(rank)
    mine = [PipelineStage(nn.Linear(8, 8), index, 4, torch.device("cpu")) for index in (rank, 3 - rank)]
    step_twice(schedule(mine, 4, loss_fn=nn.functional.mse_loss), rank == 0, rank == 0)


@correct(2)
def ddp_with_power_sgd():
    model = DistributedDataParallel(mlp())
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    train(model, steps=4)
    assert_same_everywhere(model.module[0].weight)


@correct(2)
def ddp_under_autocast():
    model = DistributedDataParallel(mlp())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(batch()).sum()
    loss.backward()
    assert_same_everywhere(model.module[0].weight.grad)


@correct(2)
def models_averaged_now_and_then():
    """Local SGD: the ranks drift apart and meet every second step."""
    model = mlp()
    averager = PeriodicModelAverager(period=2)
    for _ in range(4):
        train(model, steps=1)
        averager.average_parameters(model.parameters())
    assert averager.step == 4


@correct(2)
def fsdp2_unshards_ahead():
    model = mlp()
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=init_device_mesh("cpu", (2,)))
    handle = model[0].unshard(async_op=True)
    handle.wait()
    train(model)


@correct(2)
def checkpoint_saved_in_the_background():
    """The thread that saves has a group of its own, and training continues beside it."""
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder, src=0)
    model, group = mlp(), dist.new_group()
    future = dcp.async_save(model.state_dict(), checkpoint_id=folder[0], process_group=group)
    train(DistributedDataParallel(mlp()))
    future.result()
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(folder[0])
