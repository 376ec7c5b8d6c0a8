"""The loop of all proofs on paper: each rank goes on while it can."""

import ast
from pathlib import Path

import pytest

from reference.pipeline_parallel.walk import Walk

ROOT = Path(__file__).parents[2]


def through(lines: list[list[str]]) -> tuple[Walk, list[str]]:
    """ "a!" makes a, "a?" waits for it, and anything else may be done at any time."""
    walk, done = Walk(lines), []
    walk.go(
        lambda _, step: not step.endswith("?") or f"{step[:-1]}!" in done,
        lambda rank, step: done.append(step),
    )
    return walk, done


def test_each_rank_goes_on_while_it_can() -> None:
    walk, done = through([["b?", "c"], ["a?", "b!"], ["x", "a!"]])
    assert done == ["x", "a!", "a?", "b!", "b?", "c"]
    assert walk.waiting == [] and walk.at == [2, 2, 2]
    assert walk.next(0) is None


def test_what_waits_for_ever_is_said() -> None:
    walk, _ = through([["b?", "a!"], ["a?", "b!"], []])
    assert walk.waiting == ["rank 0 waits in b?", "rank 1 waits in a?"]
    assert walk.next(0) == "b?" and walk.next(2) is None


def test_it_says_whether_any_has_moved() -> None:
    walk, open_ = Walk([["a"], []]), []
    assert not walk.go(lambda *_: bool(open_), lambda *_: None)
    open_.append(True)
    assert walk.go(lambda *_: bool(open_), lambda *_: None)
    assert not walk.go(lambda *_: bool(open_), lambda *_: None)


def test_where_a_rank_is_is_known_while_it_takes_a_step() -> None:
    walk = Walk([["a", "b"]])
    seen = []
    walk.go(lambda rank, step: not seen.append((step, walk.at[rank])), lambda rank, step: seen.append(walk.at[rank]))
    assert seen == [("a", 0), 1, ("b", 1), 2]


@pytest.mark.parametrize("lines", [[], [[]], [[], []]])
def test_nothing_to_do_is_done(lines: list[list[str]]) -> None:
    walk, done = through(lines)
    assert done == [] and walk.waiting == []


def test_proofs_have_no_walk_of_their_own() -> None:
    """A file that proves something of lines by stepping through them imports `Walk`."""
    names = ("ordering.py", "folded.py", "validate.py", "lab/programs.py")
    files = [ROOT / "reference/pipeline_parallel" / name for name in names]
    files += [
        ROOT / "puzzles/grading/drives/pipeline_programs.py",
        ROOT / "puzzles/catalog/pipeline_parallel/stalled_stage.py",
    ]
    for path in files:
        tree = ast.parse(path.read_text())
        imported = {each.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for each in node.names}
        assert "Walk" in imported, path
