"""What was wrapped is fixed at wrapping: a parameter that changes later is named before a step is lost."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import pytest
import torch
import torch.distributed as dist
from torch import nn

from reference.cluster import Cluster
from reference.data_parallel.gradient_sync import DataParallel
from reference.errors import BadInput
from reference.memory.precision import PRECISIONS

from .models import MODELS
from .test_parity import ENGINES

TANGLED = MODELS["tied, frozen, unused, used twice"]
SAID: Mapping[str, str] = MappingProxyType(
    {
        "replaced": "blocks.0.weight was replaced",
        "added": "blocks.3.extra was added",
        "a module added": "adapter was added",
        "a block replaced": "blocks.3 was replaced",
        "taken away": "blocks.3.bias was taken away",
        "frozen": "blocks.0.bias was frozen",
        "thawed": "blocks.1.weight was thawed",
    }
)


def change(model: nn.Module, how: str) -> None:
    match how:
        case "replaced":
            model.blocks[0].weight = nn.Parameter(torch.zeros(6, 6, dtype=torch.float64))
        case "added":
            model.blocks[3].extra = nn.Parameter(torch.zeros(2))
        case "a module added":
            model.adapter = nn.Linear(6, 6)
        case "a block replaced":
            model.blocks[3] = nn.Linear(6, 6).double()
        case "taken away":
            model.blocks[3].bias = None
        case "frozen":
            model.blocks[0].bias.requires_grad_(False)
        case "thawed":
            model.blocks[1].weight.requires_grad = True


def wrapped(make: Callable, model: nn.Module, precision: str = "fp64") -> DataParallel:
    """Some of its parameters are not used, which two forms want to be told."""
    options = {"unused": True} if make in (ENGINES["naive"], ENGINES["DDP"]) else {}
    return make(model, dist.group.WORLD, precision=PRECISIONS[precision], **options)


def take_step(form: DataParallel, model: nn.Module) -> None:
    with form.micro_batch(last=True):
        TANGLED.loss(model, 0, 0, 1).backward()
    form.reduce_gradients()
    form.end_step()


def complaint(make: Callable, how: str) -> str:
    """What is said in the micro-batch after the change; the one before went well."""
    model = TANGLED.model()
    form = wrapped(make, model)
    take_step(form, model)
    change(model, how)
    with pytest.raises(BadInput) as error, form.micro_batch(last=True):
        TANGLED.loss(model, 1, 0, 1).backward()
    return str(error.value)


@pytest.mark.parametrize("how", SAID)
def test_a_change_after_wrapping_is_named(two: Cluster, how: str) -> None:
    for name, make in ENGINES.items():
        for said in two.run(complaint, make, how):
            assert said.startswith(f"{SAID[how]} after the model was wrapped"), name


def without_parameters(make: Callable) -> None:
    model = TANGLED.model()
    model.dropout = nn.Dropout(0.1)
    form = wrapped(make, model)
    model.dropout, model.criterion = nn.Dropout(0.2), nn.CrossEntropyLoss()
    take_step(form, model)


def test_modules_without_parameters_may_come_and_go(two: Cluster) -> None:
    for make in ENGINES.values():
        two.run(without_parameters, make)


def write(model: nn.Module, how: str) -> None:
    weight = model.blocks[0].weight
    match how:
        case "an initialisation":
            nn.init.ones_(weight)
        case "a copy":
            with torch.no_grad():
                weight.copy_(torch.ones(6, 6))
        case "a block's own state":
            model.blocks[0].load_state_dict({"weight": torch.ones(6, 6), "bias": torch.ones(6)})


def written(make: Callable, how: str) -> str:
    """What is said where values are written that the masters do not know; a step before went well."""
    model = TANGLED.model()
    form = wrapped(make, model, "bf16")
    take_step(form, model)
    with pytest.raises(BadInput) as error:
        write(model, how)
        with form.micro_batch(last=True):
            pass
    return str(error.value)


@pytest.mark.parametrize("how", ["an initialisation", "a copy", "a block's own state"])
@pytest.mark.parametrize("engine", ["DDP", "ZeRO-1", "FSDP"])
def test_values_that_would_be_lost_are_named(two: Cluster, engine: str, how: str) -> None:
    """The next `end_step` would round the masters over them."""
    said = two.run(written, ENGINES[engine], how)[0]
    if how == "a block's own state":
        assert said.startswith("what is loaded into a wrapped model is lost")
    else:
        assert said.startswith(
            "blocks.0.weight is sharded" if engine == "FSDP" else "blocks.0.weight was written to after the model"
        )


def lazy(make: Callable) -> str:
    with pytest.raises(BadInput) as error:
        make(nn.Sequential(nn.LazyLinear(3), nn.Linear(3, 2)), dist.group.WORLD)
    return str(error.value)


def test_lazy_modules_compute_once_before_they_are_wrapped(two: Cluster) -> None:
    for make in ENGINES.values():
        assert two.run(lazy, make)[0] == "0.weight has no shape yet: run the model once, then wrap it"


def converted() -> str:
    model = TANGLED.model()
    form = ENGINES["ZeRO-2"](model, dist.group.WORLD, precision=PRECISIONS["fp64"])
    model.load_state_dict(TANGLED.model().state_dict())  # in place: nothing moves
    take_step(form, model)
    model.float()
    with pytest.raises(BadInput) as error, form.micro_batch(last=True):
        pass
    return str(error.value)


def test_a_model_that_leaves_its_flat_tensors_is_named(two: Cluster) -> None:
    assert "converted or moved" in two.run(converted)[0]
