"""What README tells a reader to type can be typed, and the letters of its tables are explained."""

import re
from importlib import import_module
from pathlib import Path

import pytest
from typer.main import get_command

from puzzles import catalog
from puzzles.grading.course import here
from rankwise import cli
from rankwise.naming import meant
from reference.options import OPTIONS

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TYPED = re.findall(r"`([^`\n]+)`", README) + [
    line.partition("#")[0].strip()
    for block in re.findall(r"```\n(.*?)```", README, re.S)
    for line in block.splitlines()
]
LETTERS = re.findall(r"\| \[\d\d .*\|(.*)\|\n", README)  # the last column of the table of chapters


def typed(program: str) -> list[list[str]]:
    """The command lines of a program, without its name."""
    lines = (line.split(" - ")[0].split() for line in TYPED)
    return [line[1:] for line in lines if line and line[0].removeprefix(".venv/bin/") == program]


@pytest.mark.parametrize("arguments", typed("rankwise"), ids=" ".join)
def test_each_command_line_of_rankwise_is_understood(arguments: list[str]) -> None:
    known = get_command(cli.build()).commands
    if not arguments:
        return
    command, *rest = arguments
    assert command in known
    options = {name for parameter in known[command].params for name in parameter.opts} | {"--help"}
    handed_on = command in [each.__name__ for each in import_module("rankwise.commands.lessons").HANDS_ON]
    for word in rest:
        assert not word.startswith("--") or word in options or handed_on, word
        if command in ("check", "hint") and not word.startswith("--") and word != "FOLDER":
            assert meant(word, here())


@pytest.mark.parametrize("target", sorted({line[0] for line in typed("make") if line}))
def test_each_target_of_make_is_there(target: str) -> None:
    assert re.search(rf"^{target}:", MAKEFILE, re.M)


def test_options_of_train_are_all_told() -> None:
    known = {name for each in get_command(cli.build()).commands["train"].params for name in each.opts}
    told = {word for line in TYPED if line.startswith("--") for word in line.split() if word.startswith("--")}
    assert told - known <= {"--json", "--ledger"}
    assert all(word in README for option in ("schedule", "data_parallel") for word in OPTIONS[option].words)


def test_setup_shows_how_far_it_is() -> None:
    """pip draws its own progress, unless it is told to be quiet."""
    (recipe,) = re.findall(r"pip install.*lab,dev.*", MAKEFILE)
    assert "--quiet" not in recipe and "-q" not in recipe.split()
    assert "make setup" in README


def test_each_letter_of_the_chapters_is_explained() -> None:
    assert len(LETTERS) >= len(catalog.CHAPTERS)
    used = {letter for line in LETTERS for letter in re.findall(r"(?<![A-Za-z])[A-Za-zΨαβ](?![A-Za-z])", line)} - {"a"}
    assert used >= set("ΨαβBSDvmtnp")
    (explained,) = re.findall(r"The letters: .*?\n\n", README, re.S)
    assert used <= set(re.findall(r"(?<![A-Za-z])[A-Za-zΨαβ](?![A-Za-z])", explained)), explained
