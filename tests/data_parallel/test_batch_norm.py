"""Normalised over ranks as one process normalises the whole batch: values, gradients, running statistics."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from reference.cluster import Cluster
from reference.data_parallel.batch_norm import SynchronisedBatchNorm, batch_norm, convert
from reference.data_parallel.uneven import weighted_loss
from reference.errors import BadInput
from reference.trace import Op

Clusters = Callable[..., Cluster]
CHANNELS, STEPS = 3, 3
SHAPES = {"1d": (nn.BatchNorm1d, ()), "1d of sequences": (nn.BatchNorm1d, (5,)), "2d": (nn.BatchNorm2d, (2, 3))}
OPTIONS: dict[str, dict[str, Any]] = {
    "usual": {},
    "cumulative average": {"momentum": None},
    "no weights": {"affine": False},
    "no running statistics": {"track_running_stats": False},
}
SIZES = {1: [7], 2: [4, 4], 3: [5, 1, 2], 4: [3, 0, 1, 6]}  # samples of each rank


def batch(step: int, rank: int, samples: int, inner: tuple[int, ...], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Input, far from zero, and gradient of the output."""
    generator = torch.Generator().manual_seed(10 * step + rank)
    x, upstream = torch.randn(2, samples, CHANNELS, *inner, generator=generator, dtype=torch.float64)
    return (5 + 2 * x).to(dtype), upstream.to(dtype)


def layer(kind: str, options: str, dtype: torch.dtype) -> nn.Module:
    """torch's own, with weights that are not all alike."""
    made = SHAPES[kind][0](CHANNELS, **OPTIONS[options]).to(dtype)
    for i, parameter in enumerate(made.parameters()):
        parameter.data += torch.arange(CHANNELS) * (0.3 + i)
    return made


def through(norm: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
    """Outputs and input gradients of every step; then the last output in evaluation, and state and gradients."""
    found = []
    for x, upstream in batches:
        x.requires_grad_()
        y = norm(x)
        (y * upstream).sum().backward()
        found += [y.detach(), x.grad]
    if list(norm.buffers()):
        found.append(norm.eval()(batches[-1][0]).detach())
    return found


def on_rank(kind: str, options: str, sizes: list[int], dtype: torch.dtype) -> tuple[list[Tensor], dict[str, Tensor]]:
    """What this rank sees, and what should be the same or add up: state, and gradients of parameters."""
    rank = dist.get_rank()
    norm = convert(layer(kind, options, dtype), dist.group.WORLD)
    assert isinstance(norm, SynchronisedBatchNorm)
    found = through(norm, [batch(step, rank, sizes[rank], SHAPES[kind][1], dtype) for step in range(STEPS)])
    for parameter in norm.parameters():
        dist.all_reduce(parameter.grad)
    gradients = {f"{name}.grad": p.grad for name, p in norm.named_parameters()}
    return found, {**gradients, **norm.state_dict()}


def in_one_process(kind: str, options: str, sizes: list[int], dtype: torch.dtype) -> tuple[list, dict[str, Tensor]]:
    norm = layer(kind, options, dtype)
    steps = [[batch(step, r, size, SHAPES[kind][1], dtype) for r, size in enumerate(sizes)] for step in range(STEPS)]
    found = through(norm, [tuple(torch.cat(each) for each in zip(*parts, strict=True)) for parts in steps])
    gradients = {f"{name}.grad": p.grad for name, p in norm.named_parameters()}
    return [whole.split(sizes) for whole in found], {**gradients, **norm.state_dict()}


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("n", SIZES)
def test_it_is_torchs_on_the_whole_batch(clusters: Clusters, n: int, kind: str, options: str) -> None:
    """In float64, only the order of additions differs: some 1e-16 of numbers around 10."""
    found, state = in_one_process(kind, options, SIZES[n], torch.float64)
    for rank, (mine, my_state) in enumerate(clusters(n).run(on_rank, kind, options, SIZES[n], torch.float64)):
        for ours, theirs in zip(mine, found, strict=True):
            torch.testing.assert_close(ours, theirs[rank], rtol=1e-10, atol=1e-12)
        assert my_state.keys() == state.keys()
        for name, value in state.items():
            torch.testing.assert_close(my_state[name], value, rtol=1e-10, atol=1e-12, msg=name)


@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-5), (torch.bfloat16, 4e-2)])
def test_in_few_bits_it_is_as_near_as_rounding_allows(clusters: Clusters, dtype: torch.dtype, error: float) -> None:
    """An input near 5 in bfloat16 is known to 1/64, of a deviation of 2; its gradient goes through two products."""
    exact, _ = in_one_process("2d", "no weights", SIZES[3], torch.float64)
    for rank, (mine, _) in enumerate(clusters(3).run(on_rank, "2d", "no weights", SIZES[3], dtype)):
        for ours, theirs in zip(mine, exact, strict=True):
            assert ours.dtype is dtype
            torch.testing.assert_close(ours.double(), theirs[rank], rtol=error, atol=error)


def test_replicas_keep_the_same_bits(clusters: Clusters) -> None:
    states = [state for _, state in clusters(4).run(on_rank, "2d", "usual", SIZES[4], torch.float32)]
    assert all(torch.equal(state[name], states[0][name]) for state in states for name in state)


def far_from_zero() -> Tensor:
    x = 1e4 + torch.arange(4.0).view(4, 1) + 4 * dist.get_rank()
    return batch_norm(x, torch.ones(1), torch.zeros(1), dist.group.WORLD)


def test_a_large_mean_does_not_drown_the_variance(clusters: Clusters) -> None:
    """In float32, the mean of squares, 1e8, would be known to 8, more than the variance of 5."""
    got = torch.cat(clusters(2).run(far_from_zero)).double()
    x = torch.arange(8.0, dtype=torch.float64).view(8, 1)
    torch.testing.assert_close(got, (x - x.mean()) / (x.var(unbiased=False) + 1e-5).sqrt(), rtol=0, atol=1e-3)


def test_two_messages_of_float64(clusters: Clusters) -> None:
    def on_rank() -> None:
        x = torch.ones(2, CHANNELS, requires_grad=True)
        batch_norm(x, torch.ones(CHANNELS), torch.zeros(CHANNELS), dist.group.WORLD).sum().backward()

    _, trace = clusters(2).trace(on_rank)
    expected = [(Op.ALL_REDUCE, 8 * (2 * CHANNELS + 1)), (Op.ALL_REDUCE, 8 * 2 * CHANNELS)]
    assert all([(event.op, event.bytes) for event in events] == expected for events in trace.events)


def test_convert_changes_only_batch_norms_and_keeps_their_state(clusters: Clusters) -> None:
    def on_rank() -> tuple:
        model = nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.BatchNorm1d(3), nn.ReLU()), nn.LayerNorm(3)).eval()
        parameters, keys = list(model.parameters()), list(model.state_dict())
        same = convert(model, dist.group.WORLD) is model
        kept = all(ours is theirs for ours, theirs in zip(model.parameters(), parameters, strict=True))
        kinds = [type(each).__name__ for each in model.modules()]
        return same and kept and list(model.state_dict()) == keys, any(m.training for m in model.modules()), kinds

    (kept, training, kinds), *_ = clusters(1).run(on_rank)
    assert kept
    assert not training
    assert kinds == ["Sequential", "Linear", "Sequential", "SynchronisedBatchNorm", "ReLU", "LayerNorm"]


def test_convert_finds_a_batch_norm_wherever_it_is_used(clusters: Clusters) -> None:
    """Twice in one module, and once in another."""

    def on_rank() -> tuple[bool, int]:
        norm = nn.BatchNorm1d(3)
        model = convert(nn.Sequential(norm, nn.ReLU(), norm, nn.Sequential(norm)), dist.group.WORLD)
        places = [model[0], model[2], model[3][0]]
        return isinstance(places[0], SynchronisedBatchNorm), len({id(place) for place in places})

    assert clusters(1).run(on_rank) == [(True, 1)]


def refused(kind: type, shape: tuple[int, ...], training: bool = True) -> tuple[str, dict[str, Tensor]]:
    """What is said of an input, which rank 1 has not a sample of; and the state afterwards."""
    norm = convert(kind(CHANNELS), dist.group.WORLD).train(training)
    try:
        norm(torch.ones(shape)[: None if dist.get_rank() == 0 else 0])
    except BadInput as error:
        return str(error), norm.state_dict()
    return "", norm.state_dict()


def test_a_single_value_has_no_variance(clusters: Clusters) -> None:
    for said, state in clusters(2).run(refused, nn.BatchNorm1d, (1, CHANNELS)):
        assert said == "all ranks have 1 values of a channel together: training takes 2 or more"
        assert torch.equal(state["running_var"], torch.ones(CHANNELS))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    ("kind", "shape"),
    [(nn.BatchNorm1d, (4, 1)), (nn.BatchNorm1d, (3,)), (nn.BatchNorm1d, (2, 3, 2, 2)), (nn.BatchNorm2d, (4, 3))],
)
def test_it_takes_the_shapes_that_torchs_takes(
    clusters: Clusters, kind: type, shape: tuple[int, ...], training: bool
) -> None:
    said, _ = clusters(1).run(refused, kind, shape, training)[0]
    dims = "2 or 3" if kind is nn.BatchNorm1d else "4"
    assert said == f"this takes [B, 3, ...] of {dims} dims, not {list(shape)}"


def test_training_with_it_is_training_in_one_process(clusters: Clusters) -> None:
    """A model, a loss over all ranks' samples, gradients summed: those of the whole batch."""

    def gradients(model: nn.Module, x: Tensor, loss: Callable[[Tensor], Tensor]) -> list[Tensor]:
        loss(model(x).square().sum(1)).backward()
        return [parameter.grad for parameter in model.parameters()]

    def model() -> nn.Sequential:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Tanh(), nn.Linear(3, 2)).double()

    samples = torch.randn(8, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def on_rank() -> list[Tensor]:
        mine = samples.split(SIZES[3])[dist.get_rank()]
        found = gradients(convert(model(), dist.group.WORLD), mine, lambda each: weighted_loss(each, dist.group.WORLD))
        for gradient in found:
            dist.all_reduce(gradient)
        return found

    expected = gradients(model(), samples, lambda each: each.mean())
    for found in clusters(3).run(on_rank):
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-13)
