"""Our words in the frameworks' words: what each calls it, by which flag one asks for it, and what its default is.

The data are `data/words.json`: for each of our words, what the frameworks say. A setting has a place that can be looked
up in what is installed (`look_up`), so that a flag that is gone, or a default that has changed, is found by a test:
"torch.distributed.fsdp:fully_shard" is a function or a class with a parameter of that name, "torchrun" a command line.
`data/errors.json` says what a reader sees when a rank dies, shapes differ, or a collective is missing.
"""

import inspect
import json
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from operator import attrgetter
from pathlib import Path

from reference.errors import BadInput

DATA = Path(__file__).parent / "data"


@dataclass(frozen=True)
class Word:
    """What one framework says for one of our words."""

    ours: str  # a field of `Plan` or `TrainConfig` with a value, or an idea
    framework: str
    says: str  # how one asks for it there
    place: str = ""  # where the setting is declared; "" for what is code of one's own
    name: str = ""  # of the setting
    default: str = ""  # of it, as it is written
    note: str = ""  # what differs


@dataclass(frozen=True)
class Failure:
    """What one sees of a mistake."""

    event: str  # "a rank dies", "shapes differ", "a collective is missing"
    where: str  # gloo, MPI, a framework, our watch
    seen: str  # the line that says most


def words(framework: str | None = None) -> list[Word]:
    """All that is known, or what is known of one framework."""
    found = [Word(**each) for each in json.loads((DATA / "words.json").read_text(encoding="utf-8"))]
    return [word for word in found if framework in (None, word.framework)]


def failures() -> list[Failure]:
    """What is seen of mistakes, by event."""
    return [Failure(**each) for each in json.loads((DATA / "errors.json").read_text(encoding="utf-8"))]


def search(text: str) -> list[Word | Failure]:
    """The words and mistakes in which some text occurs, in whatever part, and in whatever case.

    Raises:
        BadInput: if there are none.
    """
    found = [each for each in (*words(), *failures()) if text.lower() in " ".join(vars(each).values()).lower()]
    if not found:
        raise BadInput(f"no word, flag or mistake has {text!r} in it: try fsdp, stage, micro or dies")
    return found


def look_up(word: Word) -> str:
    """The default of a setting in what is installed here, as it is written.

    Raises:
        BadInput: if it is not there.
    """
    if word.place == "torchrun":
        from torch.distributed.run import get_args_parser

        options = {flag: action for action in get_args_parser()._actions for flag in action.option_strings}
        return _of(word, {flag: action.default for flag, action in options.items()})
    module, _, path = word.place.partition(":")
    try:
        found = attrgetter(path)(import_module(module))
    except (ImportError, AttributeError) as error:
        raise BadInput(f"{word.place} is not there: {error}") from None
    return _of(word, {name: each.default for name, each in inspect.signature(found).parameters.items()})


def _of(word: Word, defaults: dict[str, object]) -> str:
    if word.name not in defaults:
        raise BadInput(f"{word.place} has no {word.name}; it has {', '.join(defaults)}")
    default = defaults[word.name]
    if default is inspect.Parameter.empty:
        return "must be given"
    return default.__name__ if inspect.isclass(default) or inspect.isfunction(default) else str(default)


def wrong(found: Iterable[Word]) -> list[str]:
    """What is otherwise in what is installed here."""
    said = []
    for word in found:
        if word.place:
            try:
                default = look_up(word)
            except BadInput as error:
                said.append(str(error))
                continue
            if default != word.default:
                said.append(f"{word.place} {word.name}: the default is {default}, not {word.default}")
    return said


if __name__ == "__main__":  # in a framework's own environment: python -m reference.frameworks.words deepspeed
    import sys

    print("\n".join(wrong(words(sys.argv[1]))) or "all as it is written")
