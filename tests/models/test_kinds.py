"""A model has a name on the command line; what counts a GPT's layers says so when it is asked about another model."""

import ast
import inspect
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from reference.composition.step_shape import StepShape
from reference.config import TrainConfig
from reference.errors import BadInput
from reference.memory.recipe import RECIPES
from reference.memory.workload import Workload
from reference.models import PRESETS, EncoderConfig, architecture, create, preset
from reference.models.config import ENCODERS
from reference.plan import DEFAULT_PLAN

REFERENCE = Path(__file__).parents[2] / "reference"
ENCODER = preset("tiny-encoder")
ANY: dict[str, Any] = {"dtype": torch.float32, "device": "meta", "region": None, "flops": 1.0}
ROOMS_OF_THE_GPT = ("models/gpt.py",)
GIVEN = "config: GPTConfig"


def formulas() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Public functions of `reference`, besides the GPT itself, that are given the configuration of a GPT."""
    for path in sorted(REFERENCE.rglob("*.py")):
        place, text = path.relative_to(REFERENCE), path.read_text()
        if str(place) in ROOMS_OF_THE_GPT or GIVEN not in text:
            continue
        for node in ast.parse(text).body:
            if not isinstance(node, ast.FunctionDef) or node.name.startswith("_"):
                continue
            if GIVEN in ast.unparse(node.args):
                module = import_module(".".join(("reference", *place.with_suffix("").parts)))
                yield f"{place}:{node.name}", getattr(module, node.name)


FORMULAS = dict(formulas())


def test_there_are_formulas() -> None:
    assert len(FORMULAS) >= 10


@pytest.mark.parametrize("name", FORMULAS)
def test_a_formula_of_a_gpt_says_so_of_another_model(name: str) -> None:
    function = FORMULAS[name]
    needed = [
        each for each in inspect.signature(function).parameters.values() if each.default is inspect.Parameter.empty
    ]
    arguments = {each.name: ANY.get(each.name, 1) for each in needed}
    with pytest.raises(BadInput, match=r"what a GPT has .*, and not a model of EncoderConfig"):
        function(**{**arguments, "config": ENCODER})


def test_so_do_the_steps_that_are_counted_with_them() -> None:
    with pytest.raises(BadInput, match="what a GPT has"):
        Workload(ENCODER, next(iter(RECIPES.values())))
    with pytest.raises(BadInput, match="what a GPT has"):
        StepShape(ENCODER, DEFAULT_PLAN, ranks=1, windows=1, sequence=8)


@pytest.mark.parametrize("name", [*ENCODERS, *list(PRESETS)[:3]])
def test_a_preset_that_trains_here_is_a_model_of_the_size_that_the_help_says(name: str) -> None:
    config = preset(name)
    assert isinstance(config, EncoderConfig) == (name in ENCODERS)
    assert config.parameters == sum(p.numel() for p in create(architecture, config, device="meta").parameters())
    text = TrainConfig.__dataclass_fields__["model"].metadata["text"]
    told = {"tiny": 33e3, "demo": 0.8e6, "small": 24e6, "tiny-encoder": 58e3, "demo-encoder": 0.9e6}[name]
    assert name in text and config.parameters == pytest.approx(told, rel=0.06)


def test_a_window_that_is_longer_than_its_positions_is_refused_at_once() -> None:
    with pytest.raises(BadInput, match="knows 512 positions, and a window has 513 tokens"):
        TrainConfig(ENCODER, sequence=513)
    TrainConfig(ENCODER, sequence=512)
