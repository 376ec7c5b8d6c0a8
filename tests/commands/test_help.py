"""Every help text can be read alone, and lists of words are the reference's own."""

import inspect
import re
from importlib import import_module
from typing import Any, get_args

import pytest
import typer
from typer.models import ParameterInfo

from rankwise import cli
from rankwise.commands.train import train
from reference.choices import (
    Aggregation,
    Compress,
    ContextLayout,
    ContextMethod,
    GossipTopology,
    IslandText,
    LateRate,
    LinearNumbers,
    Optimizer,
    Outer,
    RoundLength,
    Wire,
    WireFormat,
)
from reference.memory.offload import Offload
from reference.memory.precision import PRECISIONS
from reference.memory.recompute import Recompute
from reference.models import preset
from reference.models.moe_config import Balance
from reference.options import OPTIONS
from reference.plan import DataParallelism, PipelineSchedule

from .at_once import Answer, answers

MIXTURES = (("moe-tiny", "52 thousand"), ("moe-demo", "2.2 million"))
COMMANDS = [command for name in cli.MODULES for command in import_module(f"rankwise.commands.{name}").COMMANDS]
HALVES = ("And", "Of", "At", "In", "Which;", "Such", "Also", "Likewise")  # how a text begins that leans on another
SHORT_ANSWERS = [
    ("", 0, "Usage: rankwise"),
    ("--version", 0, "rankwise "),
    ("chekc", 2, "No such command 'chekc'. Did you mean 'check'?"),
    ("help", 2, "No such command 'help'. `rankwise --help` lists them."),
    ("lessons", 0, "Many processes, one program"),
    ("lessons 3", 2, "unexpected extra argument"),
    ("bench nothing", 2, "choose one of classroom, cluster"),
    ("train --schedule zbv", 2, "--schedule is one of gpipe, 1f1b, interleaved, interleaved-even, breadth-first"),
    ("train --data-parallel fdsp", 2, "--data-parallel is one of naive, flat, ddp"),
    ("train --recompute some", 2, "--recompute is one of none, selective, full, not some"),
    ("train --precision half", 2, "--precision is one of fp32"),
    ("train --offload gpu", 2, "--offload is one of none"),
    ("train --device tpu", 2, "--device is one of auto, cpu, cuda, not tpu"),
    ("train --scatter-gather maybe", 2, "--scatter-gather is one of on, off, not maybe"),
    ("train --model huge", 2, "there are tiny, demo, small"),
    ("train --ranks 0", 2, "from 1 to 32, not 0"),
    ("train --ranks four", 2, "--ranks"),
    ("train --rank 4", 2, "--ranks"),
    ("plan --gpu x100", 2, "no GPU is called 'x100': there are a100, h100"),
    ("plan --model huge", 2, "no GPT is called 'huge'; there are tiny, demo"),
    ("plan --precision fp4", 2, "--precision is one of bf16, fp8, not fp4"),
    ("plan --model tiny --gpus 2 --batch 4", 0, "rules of thumb take"),
    *((f"{command.__name__} --help", 0, "Usage: rankwise") for command in COMMANDS),
]


def helps() -> dict[str, str]:
    """The help of each option and argument of each command, by "command name"."""
    found = {}
    for command in COMMANDS:
        for name, parameter in inspect.signature(command).parameters.items():
            if parameter.annotation is typer.Context:
                continue
            told = [each for each in get_args(parameter.annotation) if isinstance(each, ParameterInfo)]
            found[f"{command.__name__} {name}"] = told[0].help or "" if told else ""
    return found


@pytest.fixture(scope="module")
def answered() -> dict[str, Answer]:
    """What each of these commands answers."""
    return answers(arguments for arguments, _, _ in SHORT_ANSWERS)


@pytest.mark.parametrize(("arguments", "code", "said"), SHORT_ANSWERS)
def test_a_short_answer_does_not_wait_for_torch(
    arguments: str, code: int, said: str, answered: dict[str, Answer]
) -> None:
    answer = answered[arguments]
    assert (answer.code, said in answer.said, answer.torch) == (code, True, False), answer.said


@pytest.mark.parametrize(("parameter", "said"), helps().items())
def test_each_help_is_a_sentence_of_its_own(parameter: str, said: str) -> None:
    assert said[:1].isupper() and said.endswith("."), said
    assert len(said.split()) >= 4 or parameter.startswith("trace"), said
    assert said.split()[0] not in HALVES, said


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_says_what_it_does(command: Any) -> None:
    first = inspect.getdoc(command).partition("\n")[0]
    assert first.endswith(".") and len(first.split()) >= 6, first


def test_lists_of_words_are_the_references_own() -> None:
    known = {
        "data_parallel": list(DataParallelism),
        "schedule": list(PipelineSchedule),
        "context_method": list(ContextMethod),
        "context_layout": list(ContextLayout),
        "balance": list(Balance),
        "recompute": list(Recompute),
        "precision": list(PRECISIONS),
        "offload": list(Offload),
        "quantize_weights": list(WireFormat),
        "quantize_gradients": list(WireFormat),
        "device": ["auto", "cpu", "cuda"],  # `rankwise.training.choose_device`
        "scatter_gather": ["on", "off"],
        "optimizer": list(Optimizer),
        "linear": list(LinearNumbers),
        "compress": list(Compress),
        "outer": list(Outer),
        "round_length": list(RoundLength),
        "wire": list(Wire),
        "topology": list(GossipTopology),
        "late_rate": list(LateRate),
        "island_text": list(IslandText),
        "aggregation": list(Aggregation),
    }
    assert {name: list(each.words) for name, each in OPTIONS.items() if each.words} == known


@pytest.mark.parametrize("name", [name for name, each in OPTIONS.items() if each.words])
def test_a_help_lists_every_word(name: str) -> None:
    said = helps()[f"train {name}"]
    assert set(OPTIONS[name].words) <= set(re.split(r"[:;,. ]+", said)), said


def test_sizes_of_models_are_what_the_help_says() -> None:
    said = inspect.signature(train).parameters["model"].annotation.__metadata__[0].help
    for name, size in (("tiny", "33 thousand"), ("demo", "0.8 million"), ("small", "24 million"), *MIXTURES):
        number, unit = size.split()
        assert f"{name} ({size}" in said
        assert preset(name).parameters / {"thousand": 1e3, "million": 1e6}[unit] == pytest.approx(
            float(number), rel=0.02
        )
