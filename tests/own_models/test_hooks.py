"""Hooks sit on modules and their outputs: whatever models do beside that is right, or named."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from types import MappingProxyType

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from reference.cluster import Cluster, RankError
from reference.errors import BadInput
from reference.memory.precision import PRECISIONS
from reference.zero import FullySharded

from .models import Own
from .test_parity import ENGINES, on_ranks, one_process, prove


class Answer:
    """An object that no pytree knows."""

    def __init__(self, value: Tensor) -> None:
        self.inside = {"value": [value]}


@dataclass
class Both:
    """As `transformers` answers, with something that does not learn beside."""

    value: Tensor
    count: int = 0


@dataclass(slots=True)
class Slim:
    """Without a `__dict__`."""

    value: Tensor


class Block(nn.Module):
    """A scale that is multiplied element by element, between two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, 4))

    def forward(self, x: Tensor) -> Tensor:
        self.kept = self.a(x).tanh() * self.scale
        return self.b(self.kept)


class Net(nn.Module):
    """Blocks between an embedding and a head, wired in one of many ways."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.embedding = nn.Embedding(7, 4, sparse=how == "sparse", padding_idx=0 if how == "sparse" else None)
        self.blocks = nn.ModuleList(Wrapping(how) for _ in range(3))
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.head = nn.Linear(4, 7)
        if how == "hooks of parameters":  # each row another factor
            self.head.weight.register_hook(lambda gradient: gradient * torch.arange(7.0)[:, None].to(gradient))
            self.blocks[0].block.scale.register_hook(lambda gradient: gradient * 3)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = value_of(run(self.how, block, x))
        if self.how == "attention":
            x = self.attention(x, x, x)[0]
        if self.how == "functional head":
            return F.linear(x, self.embedding.weight)
        if self.how == "weight of another block":
            x = F.linear(x, self.blocks[0].block.b.weight.t() * 2)
        return self.head(x)

    def embed(self, tokens: Tensor) -> Tensor:
        """A method beside `forward`, which begins with parameters of no unit that is called."""
        return F.embedding(tokens, self.embedding.weight) @ self.head.weight.t()


class Wrapping(nn.Module):
    """A block that gives its output in some form."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.block = how, Block()

    def forward(self, x: Tensor) -> object:
        y = self.block(x)
        kinds = {"a dataclass": Both, "slots": Slim, "an object": Answer, "a tuple": lambda y: (None, [y])}
        return kinds[self.how](y) if self.how in kinds else y


def value_of(y: object) -> Tensor:
    match y:
        case Tensor():
            return y
        case Both(value) | Slim(value):
            return value
        case Answer():
            return y.inside["value"][0]
        case (None, [value]):
            return value


def run(how: str, block: nn.Module, x: Tensor) -> object:
    match how:
        case "checkpoint":
            return checkpoint(block, x, use_reentrant=False)
        case "reentrant checkpoint":
            return checkpoint(block, x, use_reentrant=True)
        case "checkpoint in checkpoint":
            again = partial(checkpoint, block, use_reentrant=False)
            return checkpoint(again, x, use_reentrant=False)
        case "one block in two checkpoints":
            return checkpoint(block, checkpoint(block, x, use_reentrant=False), use_reentrant=False)
    return block(x)


def loss(how: str, model: nn.Module, step: int, part: int, parts: int) -> Tensor:
    tokens = (torch.arange(24).view(4, 6) * (step + 2)).tensor_split(parts)[part] % 7
    match how:
        case "inner tensor":
            model(tokens)
            return model.blocks[1].block.kept.square().sum() / 24
        case "output and inner tensors":
            y = model(tokens)
            return (y.square().sum() + sum(block.block.kept.square().sum() for block in model.blocks)) / 24
        case "another method":
            return model.embed(tokens).square().sum() / 24
        case "penalty on weights":
            data = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten(), reduction="sum") / 24
            return data + sum(weight.square().sum() for weight in model.parameters()) / parts
        case "gradient penalty":
            x = model.embedding(tokens).detach().requires_grad_()
            y = x
            for block in model.blocks:
                y = block(y)
            (slope,) = torch.autograd.grad(model.head(y).square().sum(), x, create_graph=True)
            return slope.square().sum() / 24
        case "gradient penalty of the whole":
            y = model(tokens)
            (slope,) = torch.autograd.grad(y.square().sum(), model.blocks[0].block.kept, create_graph=True)
            return (y.square().sum() + slope.square().sum()) / 24
    return F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten(), reduction="sum") / 24


HOWS = (
    "plain",
    "a dataclass",
    "slots",
    "an object",
    "a tuple",
    "attention",
    "functional head",
    "weight of another block",
    "checkpoint",
    "checkpoint in checkpoint",
    "one block in two checkpoints",
    "inner tensor",
    "output and inner tensors",
    "gradient penalty of the whole",
    "sparse",
    "hooks of parameters",
    "another method",
    "penalty on weights",
)


@lru_cache
def owned(how: str) -> Own:
    return Own(partial(Net, how), partial(loss, how), unused=True)


def by_leaves(model: nn.Module, group: dist.ProcessGroup, **options: object) -> FullySharded:
    """Each module with parameters is a unit, also those that others use without calling them."""
    leaves = [module for module in model.modules() if not [*module.children()] and [*module.parameters()]]
    return FullySharded(model, group, units=[[leaf] for leaf in leaves], **options)


FSDP: Mapping[str, Callable] = MappingProxyType(
    {name: ENGINES[name] for name in ("FSDP", "FSDP, gathered once")} | {"FSDP by leaves": by_leaves}
)


@pytest.mark.turns(4)
@pytest.mark.parametrize("how", HOWS)
def test_whatever_models_do_equals_one_process(two: Cluster, how: str) -> None:
    for make in (*FSDP.values(), ENGINES["ZeRO-2"], ENGINES["DDP"]):
        prove(two.run(on_ranks, owned(how), make, 2), one_process(owned(how)))


def layers(compiled: str) -> nn.Module:
    """With a part that torch.compile traces: hooks of ours are called in there, and send."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    model.get_submodule(compiled).compile(backend="eager")
    return model


def sum_of_squares(model: nn.Module, step: int, part: int, parts: int) -> Tensor:
    x = torch.linspace(-1, step + 1, 16, dtype=torch.float64).view(4, 4)
    return model(x.tensor_split(parts)[part]).square().sum()


@pytest.mark.parametrize("compiled", ["", "0"], ids=["the model", "a layer"])
def test_compiled_models(clusters: Callable[..., Cluster], compiled: str) -> None:
    case = Own(partial(layers, compiled), sum_of_squares)
    cluster = clusters(2, watch=False, preload=("torch._dynamo",))  # the watcher's own code would be compiled, slowly
    for make in (ENGINES["FSDP"], by_leaves):
        prove(cluster.run(on_ranks, case, make, 1), one_process(case))


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_reentrant_checkpoints(two: Cluster, micro_batches: int) -> None:
    case = owned("reentrant checkpoint")
    for make in (*FSDP.values(), ENGINES["ZeRO-2"], ENGINES["DDP"]):
        prove(two.run(on_ranks, case, make, micro_batches), one_process(case))


class TwoReentrant(Net):
    """One block in two reentrant checkpoints: its gradient comes in two backwards."""

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for _ in range(2):
            x = checkpoint(self.blocks[0], x, use_reentrant=True)
        return self.head(x)


def test_one_block_in_two_reentrant_checkpoints_is_named_where_it_is_not_right(two: Cluster) -> None:
    case = Own(partial(TwoReentrant, "plain"), partial(loss, "plain"), unused=True)
    for make in (*FSDP.values(), ENGINES["ZeRO-2"], ENGINES["DDP"]):
        try:
            found = two.run(on_ranks, case, make, 1)
        except RankError as error:
            assert "use_reentrant=False" in str(error)
        else:
            prove(found, one_process(case))


def without_a_batch() -> str:
    model = owned("plain").model()
    form = FullySharded(model, dist.group.WORLD, precision=PRECISIONS["fp64"])
    with pytest.raises(BadInput) as error, form.micro_batch(last=True):
        pass
    return str(error.value)


def test_a_rank_without_a_batch_is_named(two: Cluster) -> None:
    assert two.run(without_a_batch)[0].startswith("this rank computed nothing in a micro-batch")


def fewer_batches() -> Tensor:
    """As `uneven` says: a batch that counts zero in place of the one that is not there."""
    model = owned("plain").model()
    form = FullySharded(model, dist.group.WORLD, precision=PRECISIONS["fp64"])
    for step in range(2):
        with form.micro_batch(last=True):
            counts = step == 0 or dist.get_rank() == 0
            (counts * loss("plain", model, step, 0, 1)).backward()
        form.reduce_gradients()
        gradients = torch.cat([part.master.grad for part in form.parts])
        form.end_step()
    return gradients.norm()


def test_a_batch_that_counts_zero_takes_its_place(two: Cluster) -> None:
    norms = two.run(fewer_batches)
    model = owned("plain").model()
    loss("plain", model, 1, 0, 1).backward()
    expected = sum(p.grad.square().sum() for p in model.parameters() if p.grad is not None)
    assert abs(sum(norm.square() for norm in norms) - expected) < 1e-10
