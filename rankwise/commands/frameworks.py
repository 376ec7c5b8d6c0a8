"""`rankwise frameworks`: the course's GPT trained by the frameworks, each by its own means, and what each says."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

if TYPE_CHECKING:
    from reference.frameworks.rows import FeatureRow


class Task(StrEnum):
    """What to do with frameworks."""

    LIST = "list"
    SETUP = "setup"
    RUN = "run"
    COMPARE = "compare"
    WORDS = "words"


def frameworks(
    task: Annotated[
        Task,
        Argument(
            help="What to do: list what there is; setup an environment; run one framework; compare, which runs all "
            "that are installed and prints the whole table; or words, for what frameworks call something."
        ),
    ] = Task.LIST,
    name: Annotated[
        str | None,
        Argument(
            help="A framework, such as torch or deepspeed; with words: what to look for, such as fsdp.",
            metavar="NAME",
            show_default=False,
        ),
    ] = None,
    feature: Annotated[
        str | None, Option(help="With run: one feature of it, such as fsdp2 or zero3.", show_default=False)
    ] = None,
    stored: Annotated[bool, Option("--stored", help="With compare: print the stored rows, and run nothing.")] = False,
    store: Annotated[bool, Option("--store", help="With run or compare: store what came out in the course.")] = False,
) -> int | None:
    """Train one GPT through many frameworks, and compare curves, bytes, calls, memory and time a step."""
    from reference.errors import BadInput
    from reference.frameworks import rows
    from reference.frameworks.catalogue import FRAMEWORKS, find

    if task is Task.LIST:
        list_all()
        return None
    if task is Task.WORDS:
        show_words(name or "")
        return None
    if task is Task.COMPARE:
        if name:
            find(name)
        names = [name] if name else list(FRAMEWORKS)
        if stored:
            show([row for name in names for row in rows.load() if row.framework == name])
            return None
        found = run_all(names, store)
        show(found)
    else:
        if name is None:
            raise BadInput(f"`rankwise frameworks {task} NAME`: NAME is one of {', '.join(FRAMEWORKS)}")
        find(name, feature)
        if task is Task.SETUP:
            set_up(name)
            return None
        found = run_one(name, feature, store)
        show(found)
    return int(any(is_unexpected(row) for row in found))


def is_unexpected(row: "FeatureRow") -> bool:
    """Whether a run has ended otherwise than the catalogue says."""
    from reference.frameworks.catalogue import find

    _, features = find(row.framework, row.feature)
    wanted = features[row.feature]
    as_said = wanted.error in row.error if wanted.error else not row.error
    return not as_said or (not row.error and not row.is_equal and not wanted.wrong)


def show_words(text: str) -> None:
    """What frameworks call something, by which flag, with which default; and what errors look like."""
    from reference.frameworks import words

    for word in words.search(text):
        if isinstance(word, words.Failure):
            print(f"{word.event}: {word.where}: {word.seen}")
            continue
        setting = f" [{word.name}, by default {word.default}]" if word.place else ""
        print(f"{word.ours}: {word.framework}: {word.says}{setting}{f': {word.note}' if word.note else ''}")


def list_all() -> None:
    """Each framework, its features, and whether it is installed."""
    from reference.frameworks.catalogue import FRAMEWORKS

    for name, framework in FRAMEWORKS.items():
        where = "here" if is_installed(name) else f"`rankwise frameworks setup {name}`: {framework.megabytes} MB"
        print(f"{name}: {framework.title} ({where})")
        print(f"    {', '.join(framework.features)}")


def is_installed(name: str) -> bool:
    """Whether its environment is there."""
    from reference.errors import BadInput
    from reference.frameworks.catalogue import FRAMEWORKS
    from reference.frameworks.environments import python_of

    try:
        python_of(name, FRAMEWORKS[name])
    except BadInput:
        return False
    return True


def set_up(name: str) -> None:
    """Say what it takes, and make an environment."""
    from reference.frameworks import environments
    from reference.frameworks.catalogue import FRAMEWORKS

    framework = FRAMEWORKS[name]
    if not framework.packages:
        print(f"{framework.title}: the project's own environment has it")
        return
    home = environments.folder(framework.environment or name)
    packages = ", ".join(framework.packages)
    print(f"{packages} into {home}: {framework.megabytes} MB, {framework.seconds} s on a fast network", flush=True)
    environments.create(name, framework)
    print("installed")


def run_one(name: str, feature: str | None, store: bool) -> list["FeatureRow"]:
    """The rows of a framework, or one of them; each feature is said before it runs, and its row may be stored."""
    from reference.frameworks import rows
    from reference.frameworks.catalogue import find
    from reference.frameworks.lab import runs

    framework, features = find(name, feature)
    found = []
    for each, wanted in features.items():
        print(f"{name} {each} on {wanted.ranks} ranks", flush=True)
        found.append(runs.run(name, framework, each, wanted))
        if store:
            rows.store(found[-1:])
    return found


def run_all(names: list[str], store: bool) -> list["FeatureRow"]:
    """All rows of these frameworks: stored ones, where one is not installed."""
    from reference.frameworks import rows

    found = []
    for name in names:
        if is_installed(name):
            found += run_one(name, None, store)
        else:
            print(f"{name} is not installed: its rows are the stored ones")
            found += [row for row in rows.load() if row.framework == name]
    return found


def show(found: list["FeatureRow"]) -> None:
    """The table, and below it why something in it differs from ours, or from one process."""
    from reference.frameworks import rows
    from reference.frameworks.catalogue import find

    lines = rows.table(found)
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    for line in lines:
        print("  ".join(word.ljust(width) for word, width in zip(line, widths, strict=True)).rstrip())
    for row in found:
        _, features = find(row.framework, row.feature)
        for why in filter(None, (features[row.feature].wrong, features[row.feature].differs)):
            print(f"{row.framework} {row.feature}: {why}")


COMMANDS = (frameworks,)
