"""`%%ranks` and `%%rank` in a real kernel: columns, names that stay, deadlocks that are named, and the cell after."""

import re
from typing import Any

import pytest

from puzzles.grading.cells import Columns
from tests.notebooks import outputs_of

CELLS = {
    "load": "%load_ext puzzles",
    "too early": "%%rank 0\nprint(1)",
    "print": "%%ranks 3\nx = torch.full((2,), rank + 0.5)\nprint('hello')\n"
    + "if rank == 1:\n    print('and more')\nworld_size",
    "some": "%%rank 0,2\ny = x * 10\nprint(y.tolist())",
    "sum": "%%ranks\ndist.all_reduce(x)\nx.tolist()",
    "raise": "%%ranks\nif rank == 1:\n    1 / 0",
    "names stay": "%%rank 0-2\n'y' in globals(), x.tolist()",
    "slip": "%%ranks\nx = = 1",
    "magic": "%%ranks\nx = 1\n%time x",
    "command": "%%rank 0\n!ls",
    "help": "%%ranks\nlen?",
    "await": "%%ranks\nimport asyncio\nawait asyncio.sleep(0)",
    "nothing said": "%%ranks\nraise ValueError",
    "bad number": "%%ranks 99\nprint(1)",
    "no such rank": "%%rank 1,3\nprint(1)",
    "deadlock": "%%ranks\nprint('before')\ndist.recv(x, src=(rank + 1) % world_size)",
    "next": "%%ranks\nprint(rank, 'x' in globals())",
    "raise where others wait": "%%ranks\nif rank == 2:\n    raise ValueError('no data')\ndist.barrier()",
    "another number": "%%ranks 2\nprint(world_size)",
    "no such rank of two": "%%rank 2\nprint(1)",
    "one": "%%ranks 1\nprint(world_size)",
    "no such rank of one": "%%rank all\nprint(1)",
}


@pytest.fixture(scope="module")
def shown() -> dict[str, list[Any]]:
    """What each cell shows, by its name."""
    return outputs_of(CELLS, may_fail=True)


def text(outputs: list[Any]) -> str:
    """All that a cell shows, as a terminal would."""
    parts = []
    for output in outputs:
        if output.output_type == "error":
            parts.append("\n".join(output.traceback))
        else:
            parts.append(output.text if output.output_type == "stream" else output.data["text/plain"])
    return "\n".join(parts)


def test_prints_stand_side_by_side(shown: dict[str, list[Any]]) -> None:
    (output,) = shown["print"]
    lines = [line.split("  ") for line in text([output]).splitlines()]
    assert [[word.strip() for word in line if word.strip()] for line in lines] == [
        ["rank 0", "rank 1", "rank 2"], ["hello"] * 3, ["3", "and more", "3"], ["3"],
    ]  # fmt: skip
    assert output.data["text/html"].count("<pre") == 3


def test_names_persist_between_cells_on_their_ranks(shown: dict[str, list[Any]]) -> None:
    assert "rank 1" not in text(shown["some"]) and "[25.0, 25.0]" in text(shown["some"])
    assert text(shown["sum"]).count("[4.5, 4.5]") == 3
    stay = text(shown["names stay"])
    assert stay.count("(True, [4.5, 4.5])") == 2 and stay.count("(False, [4.5, 4.5])") == 1


def test_an_exception_names_its_rank_and_its_line(shown: dict[str, list[Any]]) -> None:
    columns, error = shown["raise"]
    assert "✗ line 3: ZeroDivisionError: division by zero</pre>" in columns.data["text/html"]
    said = text([error])
    assert "rank 1 · cell [7]:3 · exception\n    ZeroDivisionError: division by zero" in said


def test_a_deadlock_is_named_and_the_next_cell_works(shown: dict[str, list[Any]]) -> None:
    said = text(shown["deadlock"])
    assert "before" in said and "DeadlockError: rank 0 · cell" in said and ":3 · recv(src=1)" in said
    assert "rank 0 waits in recv(src=1), rank 1 waits in recv(src=2), rank 2 waits in recv(src=0)" in said
    assert "what earlier cells have defined there is gone" in said
    assert [f"{rank} False" in text(shown["next"]) for rank in range(3)] == [True] * 3


def test_an_exception_is_seen_where_other_ranks_wait_for_it(shown: dict[str, list[Any]]) -> None:
    columns, _, error = shown["raise where others wait"]
    assert "✗ line 3: ValueError: no data" in columns.data["text/html"] and "barrier" in text([error])
    assert text(shown["another number"]).count("2") >= 2


def test_what_is_no_cell_for_ranks_is_said(shown: dict[str, list[Any]]) -> None:
    assert text(shown["too early"]).strip() == "%%rank: no ranks are up: begin with a cell %%ranks 4"
    assert "SyntaxError" in text(shown["slip"])
    assert "give a number of ranks from 1 to 32, as in %%ranks 4, not '99'" in text(shown["bad number"])
    assert "give ranks from 0 to 2, as in %%rank 0,2 or %%rank 0-2, not '1,3'" in text(shown["no such rank"])
    assert "as in %%rank 0,1 or %%rank 0-1, not '2'" in text(shown["no such rank of two"])
    assert "give ranks from 0 to 0, as in %%rank 0, not 'all'" in text(shown["no such rank of one"])


def test_a_slip_has_its_line_of_the_cell(shown: dict[str, list[Any]]) -> None:
    said = re.sub(r"\x1b\[[0-9;]*m", "", text(shown["slip"]))
    assert re.search(r"Cell In\[\d+\], line 2\n +x = = 1\n +\^\n", said) and "SyntaxError: invalid syntax" in said


@pytest.mark.parametrize(("what", "line"), [("magic", 3), ("command", 2), ("help", 2), ("await", 3)])
def test_what_only_a_notebook_understands_is_said(shown: dict[str, list[Any]], what: str, line: int) -> None:
    (said,) = text(shown[what]).splitlines()
    assert said.startswith(("%%ranks: ", "%%rank: ")) and f"line {line}: ranks run plain Python, without %magic" in said


def test_an_exception_without_words_is_its_name(shown: dict[str, list[Any]]) -> None:
    assert "✗ line 2: ValueError</pre>" in shown["nothing said"][0].data["text/html"]


def test_long_lines_are_cut_and_markup_is_text() -> None:
    columns = Columns([0, 1], f"[rank 0] {'a' * 70}\n[rank 1] <b>\n[rank 7] no\nloose\n")
    assert repr(columns).splitlines() == ["rank 0".ljust(48) + "  rank 1", "a" * 48 + "  <b>", "a" * 22]
    assert "&lt;b&gt;" in columns._repr_html_() and "loose" not in columns._repr_html_()


def test_what_is_behind_a_form_feed_or_a_rare_line_end_is_shown() -> None:
    assert Columns([0], "[rank 0] a\x0cb\u2028c\n[rank 0] d\n").lines == {0: ["a\x0cb\u2028c", "d"]}
