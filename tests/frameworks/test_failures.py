"""What one sees of a mistake: the stored lines, and what the watch says of the same three programs today."""

from collections.abc import Callable
from itertools import product

import pytest

from reference.cluster import Cluster, RankError
from reference.frameworks import words
from reference.frameworks.lab.failing import EVENTS, mistake

NAMED = {
    "a rank dies": "left before finishing",
    "shapes differ": "shapes differ",
    "a collective is missing": "different collectives",
}


def test_each_event_is_there_for_each_way_to_talk() -> None:
    found = {(each.event, each.where) for each in words.failures()}
    assert found == set(product(EVENTS, ("gloo", "MPI", "our watch")))
    assert all(each.seen for each in words.failures())


@pytest.mark.parametrize("event", EVENTS)
def test_the_watch_names_the_mistake_and_its_line(clusters: Callable[..., Cluster], event: str) -> None:
    with pytest.raises(RankError, match=NAMED[event]) as told:
        clusters(2, watch=True).run(mistake, event)
    assert "failing.py:" in str(told.value)
    assert any(NAMED[event] in each.seen for each in words.failures() if each.event == event)
