"""Which tests run when: what takes long begins first, and what proves one thing of very many takes turns.

A test marked `turns(8)` has every eighth of its parameters in a run of `make test`, and others the next day: in eight
days, all of them. `make test ARGS=--all` has all at once; so has pytest, where nobody gives it a `--turn`.
"""

from collections import Counter
from collections.abc import Sequence

import pytest


def long_first(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """The same tests; where several processes share them, none is left alone with a long one at the end."""
    return sorted(items, key=lambda item: item.get_closest_marker("long") is None)


def out_of_turn(items: Sequence[pytest.Item], turn: int) -> list[pytest.Item]:
    """Tests whose turn it is not: of each function that takes turns, all but each n-th parameter from `turn` on. One of
    fewer than n parameters has one of them in each turn: what it states is proved every day."""
    marked = [(item, mark.args[0]) for item in items if (mark := item.get_closest_marker("turns"))]
    parameters = Counter(_function(item) for item, _ in marked)
    nth: Counter[str] = Counter()
    found = []
    for item, turns in marked:
        function = _function(item)
        if (nth[function] - turn) % min(turns, parameters[function]):
            found.append(item)
        nth[function] += 1
    return found


def _function(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]
