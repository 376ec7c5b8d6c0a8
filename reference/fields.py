"""A field of a dataclass that says itself what it is for, so that command lines are made of it.

    steps: int = option(300, "How many times to update the parameters.")

declares a field, its default, `--steps` of `rankwise train` and of `torchrun -m reference.train`, and what their
`--help` says. `reference.options` makes the command lines. Nothing here needs torch, which takes seconds to import:
`--help`, and the answer to a slip of the finger, do not wait for it.
"""

from collections.abc import Callable, Collection
from dataclasses import Field, dataclass, field, fields
from enum import StrEnum
from functools import cache, partial
from types import MappingProxyType
from typing import Any, get_args

from reference.errors import BadInput


def option(
    default: Any,
    text: str,
    *,
    words: Collection[str] = (),
    value_of: Callable[[str], Any] | None = None,
    within: tuple[str, ...] = (),
    stored: bool = True,
) -> Any:
    """A field with a default and a help text.

    Args:
        default: of the field; with `value_of`, the word for it.
        text: one sentence or more; "{words}" in it stands for all words that there are.
        words: that the option takes; those of an enum need not be said.
        value_of: what a word means, where that is not the word itself. It raises BadInput for a word without meaning.
        within: other options, without which it means nothing: a run that resumes and has another one of those does
            not take this one over.
        stored: False for what is of one sitting: a resumed run does not take it over from a checkpoint.
    """
    told = {"default": default, "text": text, "words": words, "value_of": value_of}
    metadata = told | {"within": within, "stored": stored}
    if value_of:
        return field(default_factory=partial(value_of, default), metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Option:
    """A field as a command line sees it."""

    name: str  # of the field
    kind: type  # int, float, bool, str or Path: what is typed
    default: Any  # as it would be typed; False is a switch that can be turned on
    help: str
    words: tuple[str, ...]  # that it takes; () if others than these, too
    value_of: Callable[[str], Any] | None  # of a word; None if it is its own value
    within: tuple[str, ...]
    stored: bool

    @property
    def flag(self) -> str:
        """What is typed: "--learning-rate"."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def is_taken_over(self) -> bool:
        """Whether it is a switch that a resumed run finds on: then "--no-elastic" turns it off."""
        return self.kind is bool and self.stored

    def check(self, word: Any) -> None:
        """Raises BadInput for a word that it does not take. (If it has a list of words, their values are not asked.)"""
        if word is None and self.default is None:
            return  # nothing was said
        if isinstance(word, int) and abs(word) > LARGEST_INT:
            raise BadInput(f"{self.flag} is a number of 64 bits, {LARGEST_INT:,} at most, not {word:,}")
        if self.words and word not in self.words:
            raise BadInput(f"{self.flag} is one of {', '.join(self.words)}, not {word}")
        if self.value_of and not self.words:
            self.value_of(word)

    def read(self, word: Any) -> Any:
        """The value of the field.

        Raises:
            BadInput: for a word that it does not take.
        """
        self.check(word)
        return self.value_of(word) if self.value_of and word is not None else word


LARGEST_INT = 2**63 - 1  # torch counts in 64 bits, with a sign
SWITCH = MappingProxyType({"on": True, "off": False})


@cache
def options_of(declared: type) -> tuple[Option, ...]:
    """The options among the fields of a dataclass, in the order of its arguments."""
    in_order = sorted(fields(declared), key=lambda each: each.kw_only)
    return tuple(_option(each) for each in in_order if "text" in each.metadata)


def _option(declared: Field) -> Option:
    told = declared.metadata
    kind, *_ = get_args(declared.type) or (declared.type,)  # of `int | None`: int
    words, value_of = tuple(told["words"]), told["value_of"]
    if _is_enum(kind):
        words, value_of = tuple(word.value for word in kind), kind
    default = told["default"].value if isinstance(told["default"], StrEnum) else told["default"]
    if default is True:  # a switch that is on has nothing to be typed for it
        words, value_of, default = tuple(SWITCH), SWITCH.get, "on"
    text = told["text"].replace("{words}", listed(words))
    typed = str if value_of else kind
    return Option(declared.name, typed, default, text, words, value_of, told["within"], told["stored"])


def listed(words: Collection[str]) -> str:
    """Words for a sentence: "none, cpu or disk"."""
    *others, last = words or ("",)
    return f"{', '.join(others)} or {last}" if others else last


def require_members(made: Any) -> None:
    """See that each field of an enum holds a member of it, or, where it may, a function or None.

    Raises:
        BadInput: for a word, say, which compares equal to its member and is none: `is` would not find it.
    """
    for each in fields(made):
        enum, *others = get_args(each.type) or (each.type,)
        value = getattr(made, each.name)
        if not _is_enum(enum) or isinstance(value, enum) or (others and callable(value)):
            continue
        if value is None and type(None) in others:
            continue
        raise BadInput(f"{each.name} takes a member of {enum.__name__} ({', '.join(enum)}), not {value!r}")


def require_64_bits(made: Any) -> None:
    """See that each whole number among the fields is one that torch can count with.

    Raises:
        BadInput: with the first that is not.
    """
    for each in fields(made):
        value = getattr(made, each.name)
        if isinstance(value, int) and abs(value) > LARGEST_INT:
            raise BadInput(f"{each.name} is a number of 64 bits, {LARGEST_INT:,} at most, not {value:,}")


def _is_enum(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, StrEnum)
