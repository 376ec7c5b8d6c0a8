"""`make check` asks those tests first that a change touches, and `make test` says where the time went."""

import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import check, turns
from tests.check import FAR, LONG, ROOT, Nearest, distances, first_parameters_first, imported
from tests.prove import MOST, Seconds, in_turn, processes, prove, where_alone
from tests.turns import LEAST, long_first, long_functions, out_of_turn, remember


class Item:
    """As much of a test as decides when its turn is."""

    def __init__(self, file: str, name: str, **marks: int) -> None:
        self.path, self.name, self.nodeid, self.marks = ROOT / file, name, f"{file}::{name}", marks

    def get_closest_marker(self, name: str) -> SimpleNamespace | None:
        return SimpleNamespace(args=(self.marks[name],)) if name in self.marks else None


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


def test_nothing_begins_when_the_time_is_up_and_what_takes_long_some_time_before() -> None:
    short, long = COST, Item("t.py", "test_b", long=1)
    for left, passed_over in ((LONG + 30, []), (LONG / 2, [long]), (-1, [short, long])):
        nearest = Nearest(set(), end=time.monotonic() + left)
        assert [item for item in (short, long) if nearest.pytest_runtest_protocol(item)] == passed_over


def test_a_check_without_tests_is_no_success(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    def as_if(options: list[str], plugins: list[Nearest]) -> int:
        (nearest,) = plugins
        nearest.near, nearest.done = 5, ran
        return 0

    monkeypatch.setattr(check.pytest, "main", as_if)
    for ran, code in ((0, pytest.ExitCode.NO_TESTS_COLLECTED), (3, 0)):
        assert check.main([]) == code
        assert ("proves nothing" in capsys.readouterr().out) == (not ran)


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


def test_what_takes_long_begins_first_and_the_rest_stays_in_its_order() -> None:
    items = [Item("t.py", "test_a"), Item("t.py", "test_b", long=1), Item("t.py", "test_c"), Item("u.py", "t", long=1)]
    assert [each.name for each in long_first(items)] == ["test_b", "t", "test_a", "test_c"]


@pytest.mark.parametrize("first", [0, 1, 739_215])
def test_in_as_many_turns_as_there_are_each_parameter_has_its_own_once(first: int) -> None:
    always = [Item("t.py", f"test_always[{i}]") for i in range(3)]
    by_turns = [Item(file, f"test_x[{i}]", turns=4) for file in ("t.py", "u.py") for i in range(9)]
    runs = [set(by_turns) - set(out_of_turn([*always, *by_turns], turn, {})) for turn in range(first, first + 4)]
    assert sorted(item.nodeid for run in runs for item in run) == sorted(item.nodeid for item in by_turns)
    assert {len(run) for run in runs} == {4, 6}
    assert not set(always) & set(out_of_turn([*always, *by_turns], first, {}))


def test_a_function_of_few_parameters_has_one_of_them_in_every_turn() -> None:
    few = [Item("t.py", f"test_x[{i}]", turns=5) for i in range(3)]
    assert [len(few) - len(out_of_turn(few, turn, {})) for turn in range(10)] == [1] * 10


TAKEN = {f"t.py::test_{name}": 9.0 - place for place, name in enumerate("abcdefgh")}


def test_what_takes_long_has_its_day_of_the_week_and_all_else_runs_every_day() -> None:
    items = [Item("t.py", f"test_{name}") for name in "abcdefghi"]
    runs = [[item for item in items if item not in out_of_turn(items, day, TAKEN)] for day in range(98, 105)]
    assert ["".join(item.name[-1] for item in run) for run in runs] == ["ahi", "bi", "ci", "di", "ei", "fi", "gi"]


def test_what_takes_turns_and_takes_long_runs_every_day() -> None:
    items = [Item("t.py", f"test_a[{number}]", turns=8) for number in range(16)]
    runs = [[item for item in items if item not in out_of_turn(items, day, TAKEN)] for day in range(1000, 1008)]
    assert [len(run) for run in runs] == [2] * 8
    assert sorted(item.name for run in runs for item in run) == sorted(item.name for item in items)


def test_each_function_that_takes_long_is_there() -> None:
    known = long_functions()
    assert min(known.values()) >= LEAST
    for function in known:
        file, *_, name = function.split("::")
        assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8"), "make test ARGS='--all --remember'"


def test_what_took_long_is_remembered_and_what_did_not_run_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_x.py").write_text("".join(f"def test_{name}(): ...\n" for name in "abc"))
    monkeypatch.setattr(turns, "REMEMBERED", tmp_path / "tests/long.json")
    turns.REMEMBERED.write_text(
        '{"tests/test_x.py::test_a": 7, "tests/test_x.py::test_b": 8, "tests/test_x.py::gone": 9}'
    )
    remember({"tests/test_x.py::test_b": 1.0, "tests/test_x.py::test_c": 12.34})
    assert long_functions() == {"tests/test_x.py::test_a": 7, "tests/test_x.py::test_c": 12.3}


def test_the_day_has_its_turn_unless_one_asks_for_another_or_for_all() -> None:
    assert in_turn(["-x"], 7) == ["--turn=7", "-x"]
    assert in_turn(["--turn", "3"], 7) == ["--turn", "3"]
    assert in_turn(["--turn=3"], 7) == ["--turn=3"]
    assert in_turn(["--all", "-x"], 7) == ["-x"]


def test_one_process_waits_while_as_many_compute_as_there_are_cores() -> None:
    assert [processes(cores) for cores in (1, 2, 4, 64)] == [2, 3, 6, MOST]


def test_what_runs_alone_is_looked_for_where_it_is_unless_one_says_where() -> None:
    found = {str(Path(file).relative_to(ROOT)) for file in where_alone(["--turn=7", "-x", "-k", "zero"])}
    assert "tests/cluster/test_lifetime.py" in found and "tests/zero/test_cost.py" not in found
    assert where_alone(["--turn=7", str(ROOT / "tests" / "cluster")]) == []


def test_minutes_are_told_by_part_and_seconds_by_folder() -> None:
    def told(reports: Sequence[tuple[str, float]]) -> str:
        seconds = Seconds()
        seconds.parts |= {"side by side": 750.0, "alone": 63.0}
        for file, duration in reports:
            seconds.pytest_runtest_logreport(SimpleNamespace(nodeid=f"{file}::test_x[a/b::c]", duration=duration))
        return str(seconds)

    reports = [("tests/zero/test_cost.py", 1.6), ("tests/zero/test_meta.py", 2.6), ("tests/gpu/test_nccl.py", 9.0)]
    assert told([*reports, ("tests/test_rooms.py", 0.2)]) == (
        "     9 s  tests/gpu/test_nccl.py::test_x\n     3 s  tests/zero/test_meta.py::test_x\n"
        "     2 s  tests/zero/test_cost.py::test_x\n     0 s  tests/test_rooms.py::test_x\n"
        "minutes: side by side 12.5, alone 1.1; seconds by folder: gpu 9, zero 4, tests 0"
    )


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
