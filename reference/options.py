"""What a person can ask of a training run, as words: the same for `rankwise train` and for `torchrun`.

Every option is a field of a dataclass: of `TrainConfig`, `Plan` or, here, `Run`. There it has its type, its default and
its help, and nowhere else. A new field is a new option of both command lines, and is kept in checkpoints.
"""

import argparse
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any

from reference.config import TrainConfig
from reference.errors import BadInput
from reference.fields import Option, option, options_of
from reference.models import GPTConfig
from reference.models.moe_config import Balance
from reference.plan import Plan


class Device(StrEnum):
    """Where ranks compute."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


@dataclass(frozen=True)
class OfExperts:
    """What a run may change of a model that has experts."""

    balance: Balance | None = option(
        None, "What keeps all experts of a model busy: {words}; as the model says otherwise. Lesson 12."
    )
    capacity: float | None = option(
        None,
        "How many tokens of a window an expert takes, as a multiple of an even share; 0 for any number.",
    )


@dataclass(frozen=True)
class Run:
    """Where a run takes place, and what it leaves behind: no number that it computes depends on it."""

    device: Device = option(
        Device.AUTO, "Where to compute: cpu (gloo), cuda (NCCL) or auto: cuda if each rank has a GPU.", stored=False
    )
    save: str | None = option(None, "Save checkpoints in this folder.", stored=False)
    save_every: int | None = option(None, "Steps from one checkpoint to the next; 100 by default.")
    save_in_background: bool = option(
        False, "Write checkpoints while training continues: a step waits for a copy in memory, not for the disk."
    )
    save_full_every: int = option(
        1,
        "One of so many checkpoints holds everything, and the others what has changed since. That is less only of rows "
        "that a step leaves alone, as with --weight-decay 0 those of bytes that the text does not have.",
    )
    resume: bool = option(False, "Resume from the newest checkpoint in --save, with its options.", stored=False)


@dataclass(frozen=True)
class OnThisMachine:
    """What `rankwise train` asks besides, since it starts the ranks itself."""

    ranks: int = option(4, "Processes that train together; with --device cuda each has a GPU of its own.")
    nodes: int | None = option(
        None,
        "Put the ranks on so many nodes: machines on this one, each with a network of its own (Linux).",
        within=("ranks",),
    )
    link: str | None = option(
        None,
        "With --nodes: the rate of each node's link, such as 200Mbit; 1Gbit by default.",
        within=("ranks", "nodes"),
    )
    elastic: bool = option(
        False,
        "Where ranks die, continue with those that are left: each keeps a copy of its state on a neighbour. With "
        "--outer diloco or local-sgd islands come and go, and none waits for one that is cut off.",
    )
    cut_off: str | None = option(
        None,
        "With --elastic and islands on --nodes: cut a node off, and connect it again; 3:20:30 is node 3, after 20 "
        "seconds, for 30 seconds.",
        within=("elastic", "nodes"),
        stored=False,
    )
    voting_replicas: int = option(
        1,
        "Divide the ranks into so many replicas that vote on each step: one that fails takes no other along, and one "
        "that returns heals while the others continue; with 1 there is no vote. Lesson 17.",
        within=("ranks",),
    )
    log: Path | None = option(
        None, "Write each step's loss and speed into this file, a JSON object a line.", stored=False
    )


GROUPS: Mapping[str, tuple[type, ...]] = MappingProxyType(
    {"What is learned": (TrainConfig, GPTConfig, OfExperts), "How the work is laid out": (Plan,), "The run": (Run,)}
)
"""Options of both command lines, under the titles of their help."""


def grouped(groups: Mapping[str, tuple[type, ...]] = GROUPS) -> dict[str, list[Option]]:
    """All options, by the title that they stand under."""
    return {title: [each for kind in kinds for each in options_of(kind)] for title, kinds in groups.items()}


OPTIONS: Mapping[str, Option] = MappingProxyType(
    {each.name: each for options in grouped({**GROUPS, "": (OnThisMachine,)}).values() for each in options}
)
"""Every option by name."""


def add_to(parser: argparse.ArgumentParser, groups: Mapping[str, tuple[type, ...]] = GROUPS) -> None:
    """Let `parser` know the options of these groups. What it parses has their names."""
    for title, options in grouped(groups).items():
        group = parser.add_argument_group(title)
        for each in options:
            switch = argparse.BooleanOptionalAction if each.is_taken_over else "store_true"
            how = {"action": switch} if each.kind is bool else {"type": each.kind}
            default = "" if each.default is None or each.kind is bool else " [default: %(default)s]"
            text = each.help.replace("%", "%%") + default
            group.add_argument(each.flag, default=each.default, **how).help = text  # to a switch's it would add


def require_words(words: Mapping[str, Any]) -> None:
    """See that each option, by name, has a word that it takes.

    Raises:
        BadInput: with the words that would do.
    """
    for name, word in words.items():
        OPTIONS[name].check(word)


def configure(**words: Any) -> tuple[TrainConfig, Plan]:
    """What to learn, and how to lay it out.

    Args:
        words: what was typed, by the names of options; those of a `Run` are passed over, and what is missing has its
            default.

    Raises:
        BadInput: if a word or a number cannot be understood, with what would be.
        TypeError: if no option is called so.
    """
    if unknown := words.keys() - OPTIONS:
        raise TypeError(f"no option is called {', '.join(sorted(unknown))}")
    plan = Plan(**_values(Plan, words))
    learned = _values(TrainConfig, words)
    model = learned.pop("model", TrainConfig().model)
    of_experts = {name: value for name, value in _values(OfExperts, words).items() if value is not None}
    if of_experts and not model.experts:
        raise BadInput(f"{OPTIONS[next(iter(of_experts))].flag} is of a model with experts, such as moe-demo")
    return TrainConfig(replace(model, **_values(GPTConfig, words), **of_experts), **learned), plan


def _values(declared: type, words: Mapping[str, Any]) -> dict[str, Any]:
    """The values of those fields that there are words for."""
    return {each.name: each.read(words[each.name]) for each in options_of(declared) if each.name in words}


def completed(options: Mapping[str, Any], given: Collection[str], stored: Mapping[str, Any]) -> dict[str, Any]:
    """All options of a run: those given, the others as the run that it resumes had them, or else by default.

    An option that belongs to others is not taken over where one of those is another now.

    Args:
        options: all of them, by name.
        given: names of those that were given.
        stored: the options in a checkpoint; empty for a run that begins, and for a checkpoint that does not have them.
    """
    anew = {name for name in given if name in options and options[name] != stored.get(name)}
    taken_over = {
        name: value
        for name, value in stored.items()
        if name in options and name not in given and anew.isdisjoint(OPTIONS[name].within)
    }
    return {**options, **taken_over}


def to_store(options: Mapping[str, Any]) -> dict[str, Any]:
    """Those that a resumed run takes over: all but what is of one sitting."""
    return {name: value for name, value in options.items() if OPTIONS[name].stored}
