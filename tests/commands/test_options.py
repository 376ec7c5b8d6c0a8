"""A field of a `TrainConfig`, a `Plan` or a `Run` is an option of both command lines: declared once, told once."""

import argparse
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import pytest
import typer

from rankwise import cli
from rankwise.commands.train import as_typer_reads_it, train
from reference import launch
from reference.choices import ContextMethod, Outer, PrecisionName, Recompute
from reference.config import TrainConfig
from reference.errors import BadInput
from reference.fields import Option, option, options_of
from reference.islands import TAKEN_BY
from reference.memory.precision import PRECISIONS
from reference.models import PRESETS, GPTConfig
from reference.options import OPTIONS, OnThisMachine, Run, add_to, completed, configure, to_store
from reference.plan import DataParallelism, PipelineSchedule, Plan
from reference.saves import Saves
from reference.spikes import SpikePolicy

BOTH = [(declared, field.name) for declared in (TrainConfig, Plan, Run) for field in fields(declared)]
ARGUMENTS = {action.dest: action for action in launch.command_line()._actions if action.dest != "help"}
PARAMETERS = {name: each for name, each in inspect.signature(train).parameters.items() if name != "context"}


def without_option(declared: type) -> set[str]:
    """The fields of a dataclass that no command line knows."""
    return {field.name for field in fields(declared)} - {each.name for each in options_of(declared)}


@pytest.mark.parametrize(("declared", "name"), BOTH)
def test_each_field_is_the_same_option_of_both_command_lines(declared: type, name: str) -> None:
    assert not without_option(declared)
    typed, torchrun, here = OPTIONS[name], ARGUMENTS[name], PARAMETERS[name]
    told = here.annotation.__metadata__[0]
    flags = [typed.flag, f"--no-{typed.flag[2:]}"] if typed.kind is bool and typed.stored else [typed.flag]
    assert torchrun.option_strings == "/".join(told.param_decls or [told.default]).split("/") == flags
    assert typed.flag == f"--{name.replace('_', '-')}"
    assert torchrun.default == here.default == typed.default
    assert typed.help == told.help and torchrun.help.partition(" [default")[0] == typed.help
    default = getattr(declared(), name)
    assert typed.default is None if default is None else typed.read(typed.default) == default


def test_neither_command_line_has_options_of_its_own() -> None:
    both = {name for _, name in BOTH} | {"dropout", "balance", "capacity"}  # of a model
    assert set(ARGUMENTS) == both
    assert set(PARAMETERS) == both | {
        "ranks",
        "nodes",
        "link",
        "elastic",
        "cut_off",
        "voting_replicas",
        "log",
    } and not without_option(OnThisMachine)


def test_a_new_field_is_a_new_option_and_one_without_help_is_found() -> None:
    @dataclass(frozen=True)
    class Larger(Plan):
        tea_parallel: int = option(1, "How many ranks share the experts of 100 % of the layers.")
        forgotten: int = 1

    assert without_option(Larger) == {"forgotten"}
    parser = argparse.ArgumentParser()
    add_to(parser, {"Larger": (Larger,)})
    assert "100 % of the layers. [default: 1]" in " ".join(parser.format_help().split())
    assert parser.parse_args([]).tea_parallel == 1
    assert parser.parse_args(["--tea-parallel", "2"]).tea_parallel == 2
    here = as_typer_reads_it({"Larger": (Larger,)}).parameters
    assert here["tea_parallel"].default == 1 and "100 %" in here["tea_parallel"].annotation.__metadata__[0].help
    assert "forgotten" not in here and "tea_parallel" not in PARAMETERS


def test_a_switch_that_is_on_is_turned_off_by_a_word() -> None:
    assert configure()[1].scatter_gather and not configure(scatter_gather="off")[1].scatter_gather
    assert launch.parse(["--scatter-gather", "off"])["scatter_gather"] == "off"


@pytest.mark.parametrize("name", [name for name, each in OPTIONS.items() if each.kind is bool and each.stored])
def test_a_switch_that_a_run_began_with_can_be_turned_off_where_it_resumes(name: str) -> None:
    off = f"--no-{OPTIONS[name].flag[2:]}"
    context = typer.main.get_command(cli.build()).commands["train"].make_context("train", [off])
    assert context.get_parameter_source(name).name != "DEFAULT" and context.params[name] is False
    if name in ARGUMENTS:
        assert launch.given([off]) == {name} and launch.parse([off])[name] is False
    assert completed({name: False}, {name}, {name: True}) == {name: False}
    assert completed({name: False}, set(), {name: True}) == {name: True}


NEEDED = {
    "model": "tiny",
    "data": "book.txt",
    "stop_after": 1,
    "data_parallel": "hsdp",
    "dp_replicate": 4,
    "offload_folder": "/scratch",
    "schedule": "interleaved",
    "stages_per_rank": 3,
    "context_parallel": 6,
    "context_method": "usp",
    "context_neighbours": 3,
    "expert_parallel": 6,
    "outer": "streaming",
    "inner_steps": 10,
    "overlap_steps": 3,
    "order_of": "out/late",
    "lying_islands": "1:large",
}
"""Words that are no default, for options that do not take just any, or not with others."""
AS_WORDS = ("round_length", "wire", "topology", "late_rate", "island_text", "aggregation")
BESIDE = {"liars": {"aggregation": "median"}, "noise_multiplier": {"clip_change": 0.5}}
"""Words without which an option makes no sense."""


def another(each: Option) -> Any:
    """A word for an option that is not its default."""
    if each.name in NEEDED:
        return NEEDED[each.name]
    if each.words:
        return next(word for word in each.words if word != each.default)
    return {bool: True, int: 2, float: 0.5}[each.kind]


def test_what_is_typed_becomes_the_config_and_the_plan() -> None:
    words = {each.name: another(each) for declared in (TrainConfig, GPTConfig, Plan) for each in options_of(declared)}
    words = {name: word for name, word in words.items() if NEEDED["outer"] in TAKEN_BY.get(name, NEEDED["outer"])}
    typed = [part for name, word in words.items() for part in (OPTIONS[name].flag, str(word))[: 2 - (word is True)]]
    config, plan = configure(**launch.parse(typed))
    assert config.model == replace(PRESETS["tiny"], dropout=0.5)
    assert config.precision == PRECISIONS[words["precision"]]
    made = vars(config) | vars(plan) | {"dropout": 0.5}
    assert not plan.scatter_gather
    for name in words.keys() - {"model", "precision", "scatter_gather"}:
        assert made[name] == words[name] != OPTIONS[name].default, name


@pytest.mark.parametrize("name", TAKEN_BY)
def test_an_option_of_a_way_to_meet_is_taken_by_each_that_has_a_use_for_it(name: str) -> None:
    for outer in TAKEN_BY[name]:
        words = {name: another(OPTIONS[name]), "outer": outer, "islands": 2, **BESIDE.get(name, {})}
        typed = [part for each, word in words.items() for part in (OPTIONS[each].flag, str(word))[: 2 - (word is True)]]
        config, _ = configure(**launch.parse(typed))
        assert getattr(config, name) == getattr(config.meets, name) == OPTIONS[name].read(another(OPTIONS[name]))


def test_nothing_typed_is_the_default() -> None:
    assert configure() == configure(**launch.parse([])) == (TrainConfig(), Plan())


def test_no_option_of_another_name_is_passed_over() -> None:
    with pytest.raises(TypeError, match="no option is called tensor_paralel"):
        configure(tensor_paralel=2)


@pytest.mark.parametrize("name", PrecisionName)
def test_each_precision_has_a_meaning(name: str) -> None:
    assert configure(precision=str(name))[0].precision is PRECISIONS[name]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"data_parallel": "zero4"}, "data_parallel takes a member of DataParallelism .naive, flat, .*., not 'zero4'"),
        ({"data_parallel": "ddp"}, "data_parallel takes a member of DataParallelism .*, not 'ddp'"),
        ({"data_parallel": Recompute.FULL}, "data_parallel takes a member of DataParallelism .*, not <Recompute"),
        ({"recompute": "full"}, "recompute takes a member of Recompute .none, selective, full., not 'full'"),
        ({"offload": None}, "offload takes a member of Offload .none, cpu, disk., not None"),
        ({"recompute": print}, "recompute takes a member of Recompute .*, not <built-in function print>"),
        ({"schedule": "gpipe", "pipeline_parallel": 2}, "schedule takes a member of PipelineSchedule .*, not 'gpipe'"),
    ],
)
def test_a_word_in_the_place_of_a_member_is_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        Plan(**wrong)


def sums(gradients: Any, group: Any) -> None:
    """Stands for a learner's sum of gradients."""


@pytest.mark.parametrize("form", [*DataParallelism, sums])
def test_every_member_and_a_function_are_taken(form: DataParallelism | Callable) -> None:
    assert Plan(form).data_parallel is form


def test_what_is_of_one_sitting_is_not_stored() -> None:
    passing = {name for name, each in OPTIONS.items() if not each.stored}
    assert passing == {"stop_after", "device", "save", "resume", "log", "cut_off", "order_of"}
    assert to_store(dict.fromkeys(OPTIONS)) == dict.fromkeys([name for name in OPTIONS if name not in passing])


def test_a_field_of_another_one_says_so_and_that_one_is_there() -> None:
    within = {name: each.within for name, each in OPTIONS.items() if each.within}
    assert within and all(set(others) <= set(OPTIONS) for others in within.values())
    assert completed({"batch": 16, "ranks": 4}, {"batch"}, {"ranks": 2, "batch": 8}) == {"batch": 16, "ranks": 2}


def test_what_a_help_says_is_there_by_default_is_there() -> None:
    hybrid = Plan(DataParallelism.HSDP)
    interleaved = Plan(pipeline_parallel=3, schedule=PipelineSchedule.INTERLEAVED, micro_batches=3)
    known = {
        "dp_replicate": hybrid.replicas,
        "stages_per_rank": interleaved.timetable().stages // 3,
        "context_neighbours": Plan(context_parallel=4, context_method=ContextMethod.USP).neighbours,
        "save_every": Saves.every,
    }
    known |= {f"spike_{name}": each for name, each in vars(SpikePolicy()).items() if name != "deviations"}
    meets = TrainConfig(outer=Outer.STREAMING).meets
    known |= {name: getattr(meets, name) for name in TAKEN_BY if getattr(meets, name) and name not in AS_WORDS}
    assert {name for name, each in OPTIONS.items() if re.search(r"\d+ by default", each.help)} == set(known)
    for name, number in known.items():
        assert f"; {number} by default." in OPTIONS[name].help
