"""`rankwise train`: train a GPT on ranks of this machine.

Its options are those of `reference.options`, where each has its type, its default and its help.
"""

from collections.abc import Mapping
from inspect import Parameter, Signature
from typing import Annotated, Any

import typer
from typer import Context

from rankwise.ranks import TRAINING, begin_importing, require_nodes, require_ranks
from reference.choices import Outer
from reference.errors import BadInput
from reference.fields import Option
from reference.options import GROUPS, OnThisMachine, grouped, require_words


def train(context: Context, **words: Any) -> None:
    """Train a GPT on several processes (ranks) of this machine, by data, tensor and pipeline parallelism.

    How the work is laid out changes nothing of what is learned.
    """
    require_ranks(words["ranks"])
    require_words(words)
    begin_importing(TRAINING)
    from rankwise.elastic_training import train_elastically_here
    from rankwise.island_training import require_cut_off, train_islands_here
    from rankwise.training import Request, train_on_cluster
    from rankwise.voting_training import train_with_votes
    from reference.options import completed, configure, to_store
    from reference.saves import saves_of

    how = words["save_in_background"], words["save_full_every"]
    saves = saves_of(words["save"], words["save_every"], words["resume"], *how)
    if saves:
        given = {name for name in words if context.get_parameter_source(name).name != "DEFAULT"}
        words = completed(words, given, saves.stored())
        saves = saves.of(to_store(words))
    config, plan = configure(**words)
    on_nodes = require_nodes(words["nodes"], words["link"], words["ranks"])
    request = Request(config, plan, saves, words["ranks"], words["device"], words["log"], on_nodes)
    cut_off = require_cut_off(words["cut_off"], words["elastic"], config, on_nodes)
    if words["voting_replicas"] != 1:
        if words["elastic"]:
            raise BadInput(
                "--elastic lays out all anew, and --voting-replicas leaves the others as they are: say one of them; "
                "--no-elastic is for a run that began with it"
            )
        return train_with_votes(request, words["voting_replicas"])
    if words["elastic"] and config.outer is not Outer.NONE:
        return train_islands_here(request, cut_off)
    if words["elastic"]:
        return train_elastically_here(request)
    train_on_cluster(request)


def as_typer_reads_it(groups: Mapping[str, tuple[type, ...]]) -> Signature:
    """The function with a parameter for each option, and the titles of groups in its help."""
    context = Parameter("context", Parameter.KEYWORD_ONLY, annotation=Context)
    options = [parameter(each, title) for title, group in grouped(groups).items() for each in group]
    return Signature([context, *options])


def parameter(option: Option, title: str) -> Parameter:
    """An option as typer reads it, under a title of the help."""
    flag = f"{option.flag}/--no-{option.flag[2:]}" if option.is_taken_over else option.flag
    told = typer.Option(flag, help=option.help, rich_help_panel=title)
    kind = option.kind if option.default is not None else option.kind | None
    return Parameter(option.name, Parameter.KEYWORD_ONLY, default=option.default, annotation=Annotated[kind, told])


train.__signature__ = as_typer_reads_it({**GROUPS, "This machine": (OnThisMachine,)})

COMMANDS = (train,)
