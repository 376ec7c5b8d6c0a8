"""What one sees of a mistake: the stored lines, and what the watch says of the same three programs today."""

from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from reference.cluster import Cluster, RankError
from reference.frameworks import words
from reference.frameworks.catalogue import FRAMEWORKS
from reference.frameworks.lab import failing, failing_in, hanging
from reference.frameworks.lab.failing import EVENTS, WAYS, mistake

NAMED = {
    "a rank dies": "left before finishing",
    "shapes differ": "shapes differ",
    "a collective is missing": "different collectives",
}


def test_each_event_is_there_for_each_way_to_talk() -> None:
    found = {(each.event, each.where) for each in words.failures()}
    assert found == set(product(EVENTS, WAYS))
    assert all(each.seen for each in words.failures())


@pytest.mark.parametrize("event", EVENTS)
def test_the_watch_names_the_mistake_and_its_line(clusters: Callable[..., Cluster], event: str) -> None:
    with pytest.raises(RankError, match=NAMED[event]) as told:
        clusters(2, watch=True).run(mistake, event)
    assert "failing.py:" in str(told.value)
    assert any(NAMED[event] in each.seen for each in words.failures() if each.event == event)


def test_each_framework_that_makes_mistakes_has_an_environment_and_a_program() -> None:
    assert failing.ELSEWHERE.keys() == failing_in.MADE.keys()
    assert set(failing.ELSEWHERE.values()) <= FRAMEWORKS.keys()


def test_what_is_not_installed_keeps_its_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    stored = [each for each in words.failures() if each.where == "DeepSpeed"]
    assert failing.seen("DeepSpeed") == stored
    assert len(stored) == len(EVENTS)


def test_who_saves_alone_makes_another_call_than_the_others() -> None:
    """DeepSpeed's first rank waits in `save_checkpoint` where the others are in their next step."""
    left = hanging.stored()
    assert len(left) == hanging.RANKS
    assert ["save_checkpoint" in each.where for each in left] == [True, False, False]
    assert [each.said != "" for each in left] == [True, False, False], "groups made later have a patience of their own"
    said = [[(call["process_group"][0], call["profiling_name"]) for call in each.calls] for each in left]
    assert said[1] == said[2]
    assert said[0][-1] == ("0", "gloo:barrier") and said[1][-1] == ("1", "gloo:all_reduce")
    numbers = [{call["collective_seq_id"] for call in each.calls if call["process_group"][0] == "1"} for each in left]
    assert max(numbers[0]) + 1 == max(numbers[1]), "which the first has not made"
