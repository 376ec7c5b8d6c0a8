"""Which tests run when: what takes long begins first, and what takes long or proves one thing of very many takes turns.

A test marked `turns(8)` has every eighth of its parameters in a run of `make test`, and others the next day: in eight
days, all of them. Any other function that takes long, by what `long.json` remembers, has its day of the week; one that
is not in there, as each new one, runs every day. `make test ARGS=--all` has all at once; so has pytest, where nobody
gives it a `--turn`.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

REMEMBERED = Path(__file__).with_name("long.json")
"""The seconds of each function that takes long, with all parameters that a run has of it."""
LEAST = 2.0  # seconds of a function that takes long
DAYS = 7  # of which such a function has one


def long_first(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """The same tests; where several processes share them, none is left alone with a long one at the end."""
    return sorted(items, key=lambda item: item.get_closest_marker("long") is None)


def out_of_turn(items: Sequence[pytest.Item], turn: int, long: Mapping[str, float]) -> list[pytest.Item]:
    """Tests whose turn it is not.

    Of each function that is marked `turns(n)`, all but each n-th parameter from `turn` on; one of fewer than n
    parameters has one of them in each turn: what it states is proved every day. Of others that take long, all but on
    their day.

    Args:
        turn: the day.
        long: seconds of each function that takes long; each day has its share of the longest.
    """
    marks = {item: mark.args[0] for item in items if (mark := item.get_closest_marker("turns"))}
    parameters, nth = Counter(map(_function, marks)), Counter[str]()
    longest = sorted(long.keys() - parameters.keys(), key=lambda function: (-long[function], function))
    day_of = {function: place % DAYS for place, function in enumerate(longest)}
    found = []
    for item in items:
        function = _function(item)
        if item in marks:
            passed_over = (nth[function] - turn) % min(marks[item], parameters[function]) != 0
            nth[function] += 1
        else:
            passed_over = day_of.get(function, turn % DAYS) != turn % DAYS
        if passed_over:
            found.append(item)
    return found


def long_functions() -> dict[str, float]:
    """Which functions take long, and how many seconds."""
    return json.loads(REMEMBERED.read_text(encoding="utf-8"))


def remember(seconds: Mapping[str, float]) -> None:
    """Write down which functions take long. What is known of those that have not run stays."""
    found = long_functions() | {function: round(taken, 1) for function, taken in seconds.items()}
    kept = {function: taken for function, taken in sorted(found.items()) if taken >= LEAST and _exists(function)}
    REMEMBERED.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


def _exists(function: str) -> bool:
    file, _, name = function.partition("::")
    path = REMEMBERED.parents[1] / file
    return path.exists() and f"def {name.rpartition('::')[2]}(" in path.read_text(encoding="utf-8")


def _function(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]
