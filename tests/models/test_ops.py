"""Strategies enter a model by its ops alone: one list says which stands around which, and no method is replaced."""

import ast
import itertools
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import reference
from reference.collectives.communicator import Native
from reference.errors import BadInput
from reference.memory.recompute import Recompute, recompute
from reference.models import GPT, PRESETS, create
from reference.models.ops import PLAIN, Around, Layer, Ops, OpsLinear, adopt, equip
from reference.parallelize import Plan, ops_of
from reference.pipeline_parallel.split_backward import DeferredWeightGradients
from reference.tensor_parallel import Region, parallelize_layers

INSIDE_OUT = ["Ops", "Fused", "TensorParallel", "Deferred", "SelectivelyRecomputed", "FullyRecomputed"]
TWO_RANKS = SimpleNamespace(rank=lambda: 0, size=lambda: 2)  # of which nothing is said here
REGION = Region(Native(TWO_RANKS))

REPLACED = {
    "reference/tensor_parallel/lab/op_trace.py": {
        "region.start_gather",
        "region.start_sum",
        "region.multiply",
    },  # no module
    "reference/zero_bubble/lab/sleeping_pieces.py": {"recorder.make"},  # no module
    "reference/tensor_parallel/ops.py": {"setattr"},  # a block in the place of a whole parameter
    "reference/zero/unit.py": {"setattr"},  # FSDP: a parameter whose memory is the unit's
    "reference/pipeline_parallel/stages.py": {"setattr"},  # a layer that is elsewhere
    "reference/models/borrowed.py": {"setattr"},  # a layer that another module owns
    "reference/process_group.py": {"setattr"},  # names of torch's own functions
    "reference/resilience/round_group.py": {"setattr"},  # methods of a group
}
"""What is assigned all the same, and is no method of a module."""


def chain(ops: Ops) -> list[str]:
    """The names of ops, from the innermost out."""
    return [*(chain(ops.inside) if isinstance(ops, Around) else []), type(ops).__name__]


def test_the_order_of_ops_is_one_list() -> None:
    cases = itertools.product((None, REGION), (None, DeferredWeightGradients()), Recompute)
    for region, deferred, how in cases:
        found = chain(ops_of(Plan(recompute=how), region, deferred))
        assert found == sorted(found, key=INSIDE_OUT.index)
        assert ("TensorParallel" in found, "Deferred" in found) == (region is not None, deferred is not None)
        assert sum("Recomputed" in name for name in found) == (how is not Recompute.NONE)


def assigned(tree: ast.AST) -> Iterator[str]:
    """Attributes of others that a file assigns a function to: a partial, a lambda, or what is there already."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(target := node.targets[0], ast.Attribute):
            of_another = ast.unparse(target.value) not in ("self", "ctx", "cls")
            value = ast.unparse(node.value)
            if of_another and (target.attr == "forward" or value.startswith(("partial(", "lambda"))):
                yield ast.unparse(target)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "setattr":
            yield "setattr"


def test_no_method_of_a_module_is_replaced() -> None:
    root = Path(reference.__file__).parent
    for path in root.rglob("*.py"):
        where = str(path.relative_to(root.parent))
        if not {"cluster", "trace", "adapters"} & set(path.parts):  # rooms that see no modules, or those of others
            assert set(assigned(ast.parse(path.read_text()))) <= REPLACED.get(where, set()), where


def test_the_lint_sees_a_method_that_is_replaced() -> None:
    for bad in ("block.forward = run", "a.core = partial(f, a.core)", "setattr(m, 'forward', f)", "a.b = lambda x: x"):
        assert [*assigned(ast.parse(bad))], bad


def test_every_layer_of_a_model_has_the_same_ops() -> None:
    model = create(GPT, PRESETS["tiny"], device="meta")
    recompute(model, Recompute.SELECTIVE)
    layers = [module for module in model.modules() if isinstance(module, Layer)]
    assert len(layers) == 3 + 3 * PRESETS["tiny"].layers  # all, both ends; each block, its attention, its feed-forward
    assert len({layer.ops for layer in layers}) == 1 and Layer.ops is PLAIN


def test_tensor_parallelism_stands_inside() -> None:
    model = create(GPT, PRESETS["tiny"], device="meta")
    recompute(model, Recompute.SELECTIVE)
    with pytest.raises(BadInput, match="SelectivelyRecomputed stands around tensor parallelism: give a model that"):
        parallelize_layers(model, REGION)


def test_plain_linear_layers_of_any_model_can_ask() -> None:
    asked = []

    class Counting(Around):
        def row_linear(self, x: torch.Tensor, layer: nn.Module) -> torch.Tensor:
            asked.append(layer.weight)
            return super().row_linear(x, layer)

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 2, bias=False)))
    x = torch.randn(5, 3)
    before, names = model(x), [name for name, _ in model.named_parameters()]
    adopt(model)
    equip(model, Counting)
    assert torch.equal(model(x), before) and [name for name, _ in model.named_parameters()] == names
    assert [id(weight) for weight in asked] == [id(model[0].weight), id(model[1][1].weight)]


def test_layers_that_ask_already_keep_their_own_linear_layers() -> None:
    model = create(GPT, PRESETS["tiny"], device="meta")
    adopt(model)
    assert not any(isinstance(module, OpsLinear) for module in model.modules())
