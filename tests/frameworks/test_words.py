"""The dictionary: each flag that it names is there in what is installed, with the default that it names."""

import subprocess

import pytest

from reference.errors import BadInput
from reference.fields import options_of
from reference.frameworks import words
from reference.frameworks.catalogue import FRAMEWORKS
from reference.frameworks.environments import ROOT, python_of
from reference.plan import Plan
from reference.train import TrainConfig

HERE = ("torch", "fairscale")
ELSEWHERE = [name for name, framework in FRAMEWORKS.items() if framework.packages and words.words(name)]


@pytest.mark.parametrize("framework", HERE)
def test_each_flag_is_there_with_its_default(framework: str) -> None:
    assert words.wrong(words.words(framework)) == []


@pytest.mark.parametrize("framework", ELSEWHERE)
def test_each_flag_is_there_in_the_environment_of_its_framework(framework: str) -> None:
    try:
        python = python_of(framework, FRAMEWORKS[framework])
    except BadInput as missing:
        pytest.skip(str(missing))
    command = [python, "-m", "reference.frameworks.words", framework]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.stdout.strip().splitlines()[-1] == "all as it is written", done.stderr + done.stdout


def test_a_flag_that_is_gone_or_has_another_default_is_found() -> None:
    gone = words.Word("x", "torch", "x", "torch.distributed.fsdp:fully_shard", "reshard", "None")
    changed = words.Word("x", "torch", "x", "torchrun", "--max-restarts", "3")
    nowhere = [words.Word("x", "torch", "x", place, "reshard") for place in ("torch.gone:f", "torch:gone")]
    found = words.wrong([gone, changed, *nowhere])
    assert "has no reshard" in found[0]
    assert found[1] == "torchrun --max-restarts: the default is 0, not 3"
    assert [line.partition(" is not there")[0] for line in found[2:]] == ["torch.gone:f", "torch:gone"]


def test_our_words_are_fields_with_a_value_that_they_take() -> None:
    options = {option.name: option for declared in (Plan, TrainConfig) for option in options_of(declared)}
    for word in words.words():
        field, _, value = word.ours.partition("=")
        if value:
            options[field].check(value)
        assert word.framework in FRAMEWORKS


def test_words_are_found_by_any_of_their_parts() -> None:
    assert {word.framework for word in words.search("ZeRO-2")} >= {"torch"}
    assert [word.name for word in words.search("--max-restarts")] == ["--max-restarts"]
    with pytest.raises(BadInput, match="no word"):
        words.search("frobnicate")
