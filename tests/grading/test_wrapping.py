"""Statements fit beside a lesson: 80 columns, with every word, and tables and programs as they were written."""

import textwrap

import pytest

from puzzles import catalog
from puzzles.grading import rules, text
from puzzles.grading.puzzle import Puzzle
from puzzles.grading.wrapping import wrapped, wrapped_header

PUZZLES = [catalog.find(name) for name in catalog.names()]
LONG = "a word and another, " * 5


def docstrings(source: str) -> list[str]:
    return "\n".join(source.split('"""')[1::2]).splitlines()


@pytest.mark.parametrize("puzzle", PUZZLES, ids=lambda puzzle: puzzle.name)
def test_what_a_stub_says_has_eighty_columns_and_its_code_a_hundred(puzzle: Puzzle) -> None:
    stub = text.stub(puzzle)
    assert [line for line in docstrings(stub) if len(line) > text.COLUMNS] == []
    assert [line for line in stub.splitlines() if len(line) > 100] == []
    assert " ".join(puzzle.statement.split()) in " ".join(stub.split())


def test_a_paragraph_is_filled_anew() -> None:
    words = textwrap.fill(LONG.strip(), 110)
    assert wrapped(words, 76) == textwrap.fill(LONG.strip(), 76)


@pytest.mark.parametrize(
    ("line", "hang"),
    [("- ", 2), ("2. ", 3), ("    x, y: ", 8), ("    term    ", 12), ("    I    gradient = u A        ", 31)],
)
def test_the_second_line_of_an_entry_stands_where_it_is_looked_for(line: str, hang: int) -> None:
    first, second, *_ = wrapped(line + LONG, 76).splitlines()
    assert first.startswith(line) and len(first) <= 76
    assert len(second) - len(second.lstrip()) == hang


@pytest.mark.parametrize(
    "lines",
    [
        "    forward    F0  F1\n    backward       B0",
        "    for x in xs:\n        step(x)",
        "- one thing\n- another",
        "    x: one thing\n    y: another",
        "    m = b m + (1 - b) g\n    v = b v",
    ],
)
def test_lines_that_end_on_purpose_stay(lines: str) -> None:
    assert wrapped(lines, 76) == lines


def test_columns_without_room_go_below_each_other() -> None:
    assert wrapped("    a = 1      b = 2" + " + 2" * 8 + "      c = 3" + " + 3" * 8, 76).splitlines() == [
        "    a = 1", "    b = 2" + " + 2" * 8, "    c = 3" + " + 3" * 8
    ]  # fmt: skip


def test_code_in_a_sentence_is_not_cut() -> None:
    code = "`exchange(outgoing, target, incoming, source, group)`"
    assert code in wrapped("There is a way to send and to receive: " + code + " does both.", 76)


def test_arguments_without_room_have_lines_of_their_own() -> None:
    head = "def f(x: dict[str, int], y: tuple[int, ...] = (1, 2)) -> list[int]:"
    assert wrapped_header(head, 80) == head
    assert wrapped_header(head, 60).splitlines() == [
        "def f(", "    x: dict[str, int], y: tuple[int, ...] = (1, 2)", ") -> list[int]:"
    ]  # fmt: skip
    assert wrapped_header(head, 40).splitlines() == [
        "def f(", "    x: dict[str, int],", "    y: tuple[int, ...] = (1, 2),", ") -> list[int]:"
    ]  # fmt: skip


def test_a_stub_s_head_names_every_module_that_may_be_imported() -> None:
    said = set(text.importable().replace("\n", " ").replace(",", " ").replace(";", " ").split())
    for module in rules.MODULES - {"__future__"}:
        assert module.removeprefix("torch.") in said, module
