"""A wrapped model looks like a model: what one does to models works, or is one clear error before anything is lost."""

import copy
import gc
import io
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from reference.cluster import Cluster
from reference.data_parallel import DistributedDataParallel, full_state_dict, gather_full, gradient_norm
from reference.data_parallel.gradient_sync import DataParallel
from reference.errors import BadInput
from reference.memory.precision import PRECISIONS
from reference.oracle import alone
from reference.zero import FullySharded, Sharded

from .models import MODELS, tokens

FSDP = partial(FullySharded, precision=PRECISIONS["fp64"])
KEPT = partial(FSDP, reshard_after_forward=False)
ZERO_1 = partial(Sharded, stage=1, precision=PRECISIONS["fp64"])
DDP = partial(DistributedDataParallel, precision=PRECISIONS["bf16"])
TANGLED = MODELS["tied, frozen, unused, used twice"]


def wrapped(make: Callable[..., DataParallel]) -> tuple[nn.Module, DataParallel]:
    model = TANGLED.model()
    return model, make(model, dist.group.WORLD)


def said(function: Callable[[], Any]) -> str | None:
    """The one clear error, or None where there is none."""
    try:
        function()
    except BadInput as error:
        return str(error)
    return None


def averaged(model: nn.Module) -> nn.Module:
    return torch.optim.swa_utils.AveragedModel(model)


def saved(x: Any) -> io.BytesIO:
    torch.save(x, file := io.BytesIO())
    return file


READERS: Mapping[str, Callable[[nn.Module], Any]] = MappingProxyType(
    {
        "a sum": lambda model: model.blocks[0].weight.sum(),
        "an item": lambda model: model.blocks[0].bias[0].item(),
        "a list": lambda model: model.blocks[0].bias.tolist(),
        "numpy": lambda model: model.blocks[0].weight.detach().numpy(),
        "a clone": lambda model: model.embedding.weight.clone(),
        "data": lambda model: model.blocks[0].weight.data,
        "a comparison": lambda model: model.blocks[0].weight == 0,
        "an average": averaged,
        "a deep copy": copy.deepcopy,
        "a deep copy of a parameter": lambda model: copy.deepcopy(model.blocks[0].weight),
        "a vector": lambda model: nn.utils.parameters_to_vector(model.parameters()),
        "state_dict": lambda model: saved(model.state_dict()),
        "state_dict(keep_vars=True)": lambda model: saved(model.state_dict(keep_vars=True)),
        "a file of modules": lambda model: saved(model.blocks),
        "a file of a parameter": lambda model: saved(model.blocks[0].weight),
        "another dtype": lambda model: model.float(),
        "an initialisation": lambda model: nn.init.zeros_(model.blocks[0].weight),
        "a list of copies": lambda model: torch._foreach_mul(list(model.parameters()), 2.0),
    }
)


def read(name: str) -> tuple[str | None, bool]:
    """What is said of it, and whether training continues as if nothing had been asked."""
    model, form = wrapped(FSDP)
    before = gather_full(form)
    complaint = said(lambda: READERS[name](model))
    after = gather_full(form)
    with form.micro_batch(last=True):
        TANGLED.loss(model, 0, 0, 1).backward()
    form.reduce_gradients()
    form.end_step()
    return complaint, all(torch.equal(before[key], after[key]) for key in before)


@pytest.mark.parametrize("name", READERS)
def test_values_that_are_not_there_are_named(two: Cluster, name: str) -> None:
    for complaint, unchanged in two.run(read, name):
        assert complaint is not None
        assert "sharded" in complaint
        assert unchanged


def harmless() -> list[str]:
    model, _ = wrapped(FSDP)
    weight = model.blocks[0].weight
    assert (weight.shape, weight.dtype, weight.device.type) == (torch.Size([6, 6]), torch.float64, "cpu")
    assert sum(parameter.numel() for parameter in model.parameters()) == 13 * 6 + 4 * 42
    assert weight.requires_grad and weight.is_leaf and isinstance(weight, nn.Parameter)
    model.zero_grad()
    model.eval()
    return [repr(weight), f"{weight}", str(model)]


def test_shapes_and_print_are_harmless(two: Cluster) -> None:
    parameter, same, model = two.run(harmless)[0]
    assert parameter == same == "blocks.0.weight: [6, 6] in torch.float64, sharded (each rank holds a part)"
    assert "(embedding): Embedding(13, 6)" in model


def while_whole() -> tuple[bool, bool, str | None]:
    """Between a forward that leaves everything whole and the next step."""
    model, form = wrapped(KEPT)
    expected = TANGLED.model().blocks[0].weight
    TANGLED.loss(model, 0, 0, 1)
    seen = torch.equal(model.blocks[0].weight.detach().clone(), expected)
    file = saved({"w": model.blocks[0].weight.detach()})
    file.seek(0)
    kept = model.blocks[0].weight.detach()
    wrote = said(lambda: kept.mul_(2))
    form.end_step()
    assert "sharded" in said(lambda: kept.sum())
    return seen, torch.equal(torch.load(file)["w"], expected), wrote


def test_what_is_whole_is_read_and_saved_and_not_written(two: Cluster) -> None:
    for seen, loaded, wrote in two.run(while_whole):
        assert seen and loaded
        assert "was written to" in wrote


def passed_over(make: Callable[..., DataParallel], early: bool) -> list[str | None]:
    """What an optimizer over the model's parameters and torch's own clipping say: made before wrapping, or after."""
    model = TANGLED.model()
    options = {"unused": True} if make is DDP else {}
    optimizer = torch.optim.AdamW(model.parameters()) if early else None
    form = make(model, dist.group.WORLD, **options)
    optimizer = optimizer or torch.optim.AdamW(model.parameters())
    optimizer.zero_grad()
    with form.micro_batch(last=True):
        TANGLED.loss(model, 0, 0, 1).backward()
    clip = partial(nn.utils.clip_grad_norm_, list(model.parameters()), 1.0)
    complaints = [said(clip), said(optimizer.step)]
    form.reduce_gradients()
    complaints += [said(clip), said(optimizer.step)]
    norm = gradient_norm((part.master.grad for part in form.parts if part.is_primary), form.shard_groups)
    assert norm > 0
    form.end_step()
    return complaints


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("make", [FSDP, KEPT, ZERO_1, DDP], ids=["FSDP", "FSDP, kept", "ZeRO-1", "DDP in bf16"])
def test_optimizers_and_clipping_that_would_do_nothing(two: Cluster, make: Callable, early: bool) -> None:
    for complaints in two.run(passed_over, make, early):
        assert all(complaint and "part.master" in complaint for complaint in complaints), complaints


def loading(make: Callable[..., DataParallel]) -> str | None:
    model, _ = wrapped(make)
    return said(lambda: model.load_state_dict(TANGLED.model().state_dict()))


def test_loading_where_it_would_be_lost(two: Cluster) -> None:
    for make in (FSDP, DDP, partial(Sharded, stage=2, precision=PRECISIONS["bf16"])):
        assert "is lost" in two.run(loading, make)[1]
    assert two.run(loading, ZERO_1) == [None, None]


def copies_and_files(make: Callable[..., DataParallel]) -> None:
    """An average of the weights in a copy, and blocks out of a file, which plain torch trains."""
    model, form = wrapped(make)
    average = copy.deepcopy(model)
    average.load_state_dict(model.state_dict())
    train_alone(average, average.blocks)
    (file := saved(model.blocks)).seek(0)
    average.blocks = torch.load(file, weights_only=False)
    train_alone(average, average.blocks)
    del form
    gc.collect()  # a form has references to itself
    train_alone(model, model.blocks)
    model.load_state_dict(average.state_dict())


def train_alone(model: nn.Module, blocks: nn.ModuleList) -> None:
    """One step of plain torch, which changes the blocks."""
    before = blocks[0].bias.detach().clone()
    optimizer = torch.optim.SGD(blocks.parameters(), lr=0.1)
    optimizer.zero_grad()
    TANGLED.loss(model, 0, 0, 1).backward()
    optimizer.step()
    assert not torch.equal(blocks[0].bias, before)


def test_copies_and_what_a_form_has_left_are_plain_models(two: Cluster) -> None:
    for make in (DDP, ZERO_1, partial(Sharded, stage=2, precision=PRECISIONS["bf16"])):
        two.run(copies_and_files, make)


def state(make: Callable[..., DataParallel], kind: str) -> dict[str, Tensor]:
    model = MODELS[kind].model()
    return full_state_dict(make(model, dist.group.WORLD), model)


@pytest.mark.parametrize("kind", ["tied, frozen, unused, used twice", "convolutions and batch norm", "GPT-2"])
@pytest.mark.parametrize("make", [FSDP, KEPT, ZERO_1], ids=["FSDP", "FSDP, kept", "ZeRO-1"])
def test_a_whole_state_is_what_plain_torch_loads(two: Cluster, make: Callable, kind: str) -> None:
    """By all names, in order, with buffers; tied weights share memory; a file of it takes no class of ours."""
    expected = MODELS[kind].model().state_dict()
    for found in two.run(state, make, kind):
        (file := saved(found)).seek(0)
        loaded = torch.load(file, weights_only=True)
        assert list(loaded) == list(expected)
        assert all(torch.equal(loaded[name], value) for name, value in expected.items())
        assert [value.dtype for value in loaded.values()] == [value.dtype for value in expected.values()]
        if kind.startswith("tied"):
            assert loaded["head.weight"].data_ptr() == loaded["embedding.weight"].data_ptr()
        MODELS[kind].model().load_state_dict(loaded)


def ignoring(frozen: bool) -> tuple[float, bool, set[str]]:
    """How far a step with ignored parameters is from one process, and whether they are still there."""
    model, plain = (TANGLED.model() for _ in range(2))
    for one in (model, plain):
        one.blocks[0].bias.requires_grad_(not frozen)
    ignored = [model.blocks[0].bias, model.blocks[1].weight]
    form = FSDP(model, dist.group.WORLD, ignored=ignored)
    masters = [part.master for part in form.parts]
    optimizer = torch.optim.SGD(masters, lr=0.1)
    learning = [parameter for parameter in plain.parameters() if parameter.requires_grad]
    oracle = alone(plain, torch.optim.SGD(learning, lr=0.1), lambda step: TANGLED.loss(plain, step, 0, 1), steps=2)
    for step, expected in enumerate(oracle):
        with form.micro_batch(last=True):
            TANGLED.loss(model, step, dist.get_rank(), 2).backward()
        form.reduce_gradients()
        counted = gradient_norm((part.master.grad for part in form.parts if part.is_primary), form.shard_groups)
        assert abs(counted - expected.gradient_norm) < 1e-12
        optimizer.step()
        form.end_step()
    found = full_state_dict(form, model)
    worst = max((found[name] - value).abs().max().item() for name, value in plain.state_dict().items() if value.numel())
    still = model.blocks[0].bias is ignored[0] and model.blocks[0].bias.sum().item() != 0
    return worst, still, set(gather_full(form))


@pytest.mark.parametrize("frozen", [False, True])
def test_ignored_parameters_stay_whole_and_learn_alike(two: Cluster, frozen: bool) -> None:
    learning = {name for name, p in TANGLED.model().named_parameters() if p.requires_grad}
    for worst, still, names in two.run(ignoring, frozen):
        assert worst < 1e-12
        assert still
        assert names == learning - ({"blocks.0.bias"} if frozen else set())


def ignoring_what_is_not_there() -> str | None:
    return said(lambda: FSDP(TANGLED.model(), dist.group.WORLD, ignored=[nn.Parameter(torch.ones(2))]))


def test_ignoring_what_is_no_parameter_of_the_model(two: Cluster) -> None:
    assert "no parameter of the model" in two.run(ignoring_what_is_not_there)[0]


def test_tokens_are_what_the_loss_says() -> None:
    """The loss divides by the number of targets of all parts together."""
    assert sum(tokens(0, part, 2)[:, 1:].numel() for part in range(2)) == 60
