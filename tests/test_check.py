"""`make check` asks those tests first that a change touches, and `make test` says where the time went."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.check import FAR, ROOT, Nearest, distances, first_parameters_first, imported
from tests.prove import Seconds, prove


class Item:
    """As much of a test as decides when its turn is."""

    def __init__(self, file: str, name: str) -> None:
        self.path, self.name = ROOT / file, name


COST = Item("tests/zero/test_cost.py", "test_any")
CARDS = [
    Item("tests/grading/test_catalog.py", f"test_the_solution_passes[{name}]") for name in ("zero.x", "ranks.pair")
]
LESSONS = [
    Item("tests/lessons/test_lessons.py", f"test_a_lesson_runs_with_nothing_solved[{lesson}.ipynb]")
    for lesson in ("06_zero", "07_tensor_parallel")
]


@pytest.mark.parametrize(
    ("touched", "near", "farther"),
    [
        ("tests/zero/test_cost.py", COST, CARDS[0]),
        ("puzzles/catalog/zero/prefetch.py", CARDS[0], CARDS[1]),
        ("lessons/06_zero.ipynb", LESSONS[0], LESSONS[1]),
        ("reference/zero/cost.py", COST, CARDS[1]),
        ("README.md", Item("tests/commands/test_readme.py", "test_any"), COST),
    ],
    ids=["a test", "a puzzle", "a lesson", "a chapter", "a text"],
)
def test_what_a_change_touches_comes_first(touched: str, near: pytest.Item, farther: pytest.Item) -> None:
    nearest = Nearest({touched})
    assert nearest.distance(near) < nearest.distance(farther)
    assert nearest.distance(near) <= 1


def test_where_nothing_has_changed_each_test_is_as_near() -> None:
    nearest = Nearest(set())
    assert {nearest.distance(each) for each in (COST, *CARDS, *LESSONS)} == {0}


def test_imports_are_followed_to_their_ends() -> None:
    used_by = {"a": {"b", "c"}, "b": {"d"}, "c": {"d"}, "d": {"a"}, "e": {"f"}}
    assert distances({"a"}, used_by) == {"a": 0, "b": 1, "c": 1, "d": 2}


def test_every_way_to_import_is_seen() -> None:
    found = set(imported(Path("tests/zero/conftest.py")))
    assert {"reference.cluster", "tests.data_parallel.conftest"} <= found


def test_a_shared_room_touches_tests_of_chapters_that_do_not_name_it() -> None:
    away = Nearest({"reference/cluster/wire.py"}).away
    assert away["reference/cluster/ranks.py"] == 1
    assert away["tests/zero/test_parity.py"] > 1
    assert away.get("tests/models/no_such_file.py", FAR) == FAR


def test_each_function_has_its_first_parameters_before_another_its_second() -> None:
    items = [Item("t.py", name) for name in ("test_a[1]", "test_a[2]", "test_a[3]", "test_b[1]", "test_c[1]")]
    in_turn = first_parameters_first(items)
    assert [each.name for each in in_turn] == ["test_a[1]", "test_b[1]", "test_c[1]", "test_a[2]", "test_a[3]"]


def test_seconds_are_told_by_folder() -> None:
    def told(reports: Sequence[tuple[str, float]]) -> str:
        seconds = Seconds()
        for file, duration in reports:
            seconds.pytest_runtest_logreport(SimpleNamespace(nodeid=f"{file}::test_x[a/b::c]", duration=duration))
        return str(seconds)

    reports = [("tests/zero/test_cost.py", 1.6), ("tests/zero/test_meta.py", 2.6), ("tests/gpu/test_nccl.py", 9.0)]
    assert told([*reports, ("tests/test_rooms.py", 0.2)]) == "seconds by folder: gpu 9, zero 4, tests 0"


@pytest.mark.parametrize(
    ("codes", "whole"),
    [((0, 0), 0), ((0, 1), 1), ((1, 0), 1), ((0, 5), 0), ((5, 0), 0), ((5, 5), 5), ((1, 5), 1), ((2,), 2), ((4,), 4)],
    ids=str,
)
def test_a_proof_fails_where_a_part_of_it_does(codes: tuple, whole: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or where there was nothing to prove; after an interrupt no second part begins."""
    given = list(codes)
    monkeypatch.setattr(pytest, "main", lambda options, plugins: given.pop(0))
    assert prove([]) == whole
    assert given == []
