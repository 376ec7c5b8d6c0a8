"""Collectives inside of autograd, and beside it."""

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as differentiable
from torch import nn
from torch.distributed import _functional_collectives as functional

from tests.watch.cases import correct


@correct(2)
def functional_collectives():
    rank, n = dist.get_rank(), dist.get_world_size()
    x = torch.full((2, 3), float(rank))
    total = functional.all_reduce(x, "sum", dist.group.WORLD)
    gathered = functional.all_gather_single(x, gather_dim=0, group=dist.group.WORLD)
    shard = functional.reduce_scatter_single(gathered, "sum", scatter_dim=0, group=dist.group.WORLD)
    assert (total == 1).all() and gathered.shape == (2 * n, 3) and torch.equal(shard, n * x)


@correct(2)
def functional_collectives_waited_for_late():
    """The result is a tensor that waits when it is first used."""
    a = functional.all_reduce(torch.ones(100), "sum", dist.group.WORLD)
    b = functional.all_reduce(torch.ones(100), "max", dist.group.WORLD)
    assert b.sum() == 100 and (a + b).sum() == 300


@correct(2)
def functional_result_is_never_used():
    functional.all_reduce(torch.ones(4), "sum", dist.group.WORLD)
    dist.barrier()


@correct(4)
def functional_collectives_on_a_mesh():
    mesh = dist.device_mesh.init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    x = torch.tensor([float(dist.get_rank())])
    row = functional.all_reduce(x, "sum", mesh["tensor"])
    assert functional.all_reduce(row, "sum", mesh["data"]).item() == 6


@correct(2)
def functional_all_to_all():
    rank = dist.get_rank()
    sends, receives = [1, 2], [rank + 1, rank + 1]
    received = functional.all_to_all_single(torch.full((3,), float(rank)), receives, sends, dist.group.WORLD)
    assert received.tolist() == [0.0] * (rank + 1) + [1.0] * (rank + 1)


@correct(2)
def functional_gradients():
    x = torch.full((2, 3), 1.0, requires_grad=True)
    y = functional.all_gather_single_autograd(x, gather_dim=0, group=dist.group.WORLD)
    (y * 2).sum().backward()
    assert (x.grad == 4).all()


@correct(2, 3)
def differentiable_all_reduce():
    x = torch.ones(4, requires_grad=True)
    differentiable.all_reduce(x * 2).sum().backward()
    assert (x.grad == 2 * dist.get_world_size()).all()


@correct(2)
def differentiable_all_gather():
    x = torch.ones(4, requires_grad=True)
    torch.cat(differentiable.all_gather(x)).sum().backward()
    assert (x.grad == 2).all()


@correct(2)
def differentiable_all_to_all():
    x = torch.ones(4, requires_grad=True)
    differentiable.all_to_all_single(torch.empty(4), x).sum().backward()
    assert (x.grad == 1).all()


class CopyToRanks(torch.autograd.Function):
    """Identity forward, all-reduce backward: Megatron's f."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.contiguous()
        dist.all_reduce(gradient)
        return gradient


class ReduceFromRanks(torch.autograd.Function):
    """All-reduce forward, identity backward: Megatron's g."""

    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


@correct(2)
def conjugate_pair_by_hand():
    """Two layers, split by columns and then by rows, equal one process doing both."""
    torch.manual_seed(0)
    first, second, x = torch.randn(4, 8), torch.randn(8, 4), torch.randn(3, 4)
    half = slice(4 * dist.get_rank(), 4 * dist.get_rank() + 4)
    mine, rest = first[:, half].clone().requires_grad_(), second[half].clone().requires_grad_()
    source = x.clone().requires_grad_()
    out = ReduceFromRanks.apply((CopyToRanks.apply(source) @ mine).relu() @ rest)
    out.square().sum().backward()
    whole = x.clone().requires_grad_()
    ((whole @ first).relu() @ second).square().sum().backward()
    assert torch.allclose(source.grad, whole.grad, atol=1e-3)


@correct(2)
def gradients_that_were_asked_for():
    """`torch.autograd.grad` leaves nothing in `.grad`, and the loss is only reported."""
    weight, unused = torch.ones(4, requires_grad=True), torch.ones(4, requires_grad=True)
    for _ in range(2):
        loss = (weight * 2 + unused.detach()).sum()
        (gradient,) = torch.autograd.grad(loss, weight)
        total = loss.detach()
        dist.all_reduce(total)
        assert (gradient == 2).all() and total == 12 * dist.get_world_size()
    (unused * weight.detach()).sum().backward()


@correct(2)
def gradients_reduced_by_hand():
    torch.manual_seed(0)
    layer = nn.Linear(4, 4)
    layer(torch.full((2, 4), 1.0 + dist.get_rank())).sum().backward()
    for parameter in layer.parameters():
        dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
    assert (layer.weight.grad == 3).all()


@correct(2)
def gradients_reduced_by_hooks_without_blocking():
    layers, works = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), []
    for parameter in layers.parameters():
        parameter.register_post_accumulate_grad_hook(
            lambda p: works.append(dist.all_reduce(p.grad, async_op=True)),
        )
    layers(torch.ones(2, 4)).sum().backward()
    for work in works:
        work.wait()
    assert len(works) == 4 and (layers[1].bias.grad == 4).all()


@correct(2)
def loss_reported_after_backward():
    """A loss that still requires a gradient may be summed once the gradient has been computed, for the log."""
    layer = nn.Linear(4, 1)
    loss = layer(torch.ones(2, 4)).sum()
    loss.backward()
    report = loss.detach().clone()
    dist.all_reduce(report)
    with torch.no_grad():
        dist.all_reduce(loss)
    assert report == loss


@correct(2)
def losses_of_several_models_reported_after_backward():
    """One step for each model; its gradients are gone when its loss is summed for the log."""
    for _ in range(2):
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        outputs = model(torch.ones(2, 3))
        loss = outputs.square().mean()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()
        report, largest = loss.detach(), outputs.detach().amax()
        dist.all_reduce(report)
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)


@correct(2, 3)
def gradients_found_before_the_sum():
    """A part of the output goes backward by itself, then the parts are added up: with a fresh leaf each time."""
    for step in range(3):
        table = torch.full((4, 3), float(step), requires_grad=True)
        out = table.square()
        out.backward(torch.ones(4, 3))
        out = out.detach()
        dist.all_reduce(out)
        assert (table.grad == 2 * step).all()


@correct(2)
def backward_while_a_message_travels():
    """What was sent of each has a history, and each goes backward before the messages of the other have come."""
    rank, n = dist.get_rank(), dist.get_world_size()
    for _ in range(2):
        layers = [nn.Linear(4, 4) for _ in range(2)]
        outputs = [layer(torch.ones(2, 4)) for layer in layers]
        incoming = torch.empty(2, 4)
        receive = dist.irecv(incoming, (rank - 1) % n)
        send = dist.isend(outputs[0].detach(), (rank + 1) % n)
        outputs[0].sum().backward()
        send.wait()
        receive.wait()
        outputs[1].sum().backward()


@correct(2)
def weight_gradient_by_hand():
    """Backward is asked for the input's gradient alone; that of the weight is a product, made later."""
    weight, x = torch.ones(4, 4, requires_grad=True), torch.ones(2, 4, requires_grad=True)
    y, gradient = x @ weight, torch.empty(2, 4)
    if dist.get_rank() == 0:
        dist.send(y, dst=1)
        dist.recv(gradient, src=1)
        torch.autograd.backward(y, gradient, inputs=[x])
        assert (gradient.T @ x.detach() == 2).all() and weight.grad is None
    else:
        dist.recv(gradient, src=0)
        dist.send(torch.ones(2, 4), dst=0)


@correct(2)
def own_part_put_back_after_all_gather():
    """The gathered parts carry no history, but the rank's own part is put back and carries it all."""
    encoder = nn.Linear(4, 4, bias=False)
    features = encoder(torch.randn(2, 4))
    everybodys = [torch.zeros(2, 4) for _ in range(2)]
    dist.all_gather(everybodys, features)
    everybodys[dist.get_rank()] = features
    torch.cat(everybodys).logsumexp(dim=0).sum().backward()
    assert encoder.weight.grad is not None


@correct(2)
def activations_and_gradients_over_messages():
    """A pipeline of two stages by hand: what is received becomes a leaf, its gradient is sent back."""
    torch.manual_seed(dist.get_rank())
    layer, x = nn.Linear(4, 4), torch.ones(2, 4)
    if dist.get_rank() == 0:
        y = layer(x)
        dist.send(y.detach(), dst=1)
        gradient = torch.empty(2, 4)
        dist.recv(gradient, src=1)
        y.backward(gradient)
    else:
        dist.recv(x, src=0)
        x.requires_grad_()
        layer(x).sum().backward()
        dist.send(x.grad, dst=0)
    assert layer.weight.grad.abs().sum() > 0


@correct(2)
def output_with_history_is_sent_in_inference():
    """Backward is not called, so nothing is lost although the tensor has a history."""
    layer, x = nn.Linear(4, 4), torch.ones(2, 4)
    if dist.get_rank() == 0:
        dist.send(layer(x), dst=1)
    else:
        dist.recv(x, src=0)
        assert layer(x).shape == (2, 4)


@correct(2)
def collectives_under_recomputation():
    """The forward runs again inside of the backward, and with it its all-reduce."""
    layer = nn.Linear(4, 4)

    def block(x):
        return ReduceFromRanks.apply(layer(x).relu())

    x = torch.ones(2, 4, requires_grad=True)
    torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False).sum().backward()
    assert layer.weight.grad is not None


@correct(2)
def what_is_detached_learns_nothing_from_others():
    """A teacher, a backbone under a probe, a generator while the discriminator learns: none is to have a gradient."""
    torch.manual_seed(0)
    fixed, trained = nn.Linear(4, 4), nn.Linear(4, 1)
    mine = fixed(torch.ones(2, 4)).detach()
    all_of_them, whole = [torch.zeros(2, 4) for _ in range(2)], torch.zeros(4, 4)
    dist.all_gather(all_of_them, mine)
    dist.all_gather_single(whole, fixed(torch.ones(2, 4)).data)
    (trained(torch.cat(all_of_them)) + trained(whole)).sum().backward()
    dist.all_reduce(trained.weight.grad)
    assert fixed.weight.grad is None and torch.equal(torch.cat(all_of_them), whole)


@correct(2)
def a_pipeline_receives_into_rows_of_one_buffer():
    """What arrives counts as no write to what autograd has saved of another row: so it is on gloo alone, too."""
    torch.manual_seed(0)
    layer, buffer = nn.Linear(4, 4), torch.zeros(3, 2, 4)
    if dist.get_rank() == 0:
        for i in range(3):
            dist.send(torch.full((2, 4), float(i + 1)), dst=1)
    else:
        losses = []
        for row in buffer:
            dist.irecv(row, src=0).wait()
            losses.append(layer(row).sum())
        sum(losses).backward()
        assert (layer.weight.grad == 12).all()


@correct(2)
def a_buffer_that_a_collective_fills_anew_is_known_to_autograd():
    """Its numbers are others than what was saved for the backward pass, and torch says so."""
    layer, buffer = nn.Linear(4, 4), torch.zeros(2, 4)
    dist.all_gather_single(buffer, torch.ones(1, 4), async_op=True).wait()
    loss = layer(buffer).sum()
    dist.all_gather_single(buffer, torch.ones(1, 4), async_op=True).wait()
    try:
        loss.backward()
    except RuntimeError as error:
        assert "modified by an inplace operation" in str(error)
    else:
        raise AssertionError("backward with other numbers than forward")
