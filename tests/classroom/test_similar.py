"""Texts that were copied and changed are found; those that answer alike because there is one way to answer are not."""

import re

from puzzles import catalog
from puzzles.grading import text
from rankwise.classroom import similar
from rankwise.classroom.submissions import Submission

from .conftest import right, wrong

NAME = "collectives.ring_all_reduce"
LONG = right("expert_parallel.dispatch")


def names_changed(source: str) -> str:
    """The same program with other names, numbers, comments and another docstring."""
    for old in ("chunks", "right", "left", "step"):
        source = re.sub(rf"\b{old}\b", f"my_{old}", source)
    source = re.sub(r'""".*?"""', '"""Mine."""', source, count=1, flags=re.DOTALL)
    return source.replace("\n    for", "\n    # my own idea\n\n    for")


def of_class(*sources: str, name: str = NAME) -> list[Submission]:
    return [Submission(f"learner{number}", {name: source}) for number, source in enumerate(sources)]


def other_ways(count: int) -> list[str]:
    """Programs of as many learners who have nothing from each other."""
    puzzle = catalog.find(NAME)
    return [text.wrong(puzzle, puzzle.wrong[index]) for index in (0, 7)][:count]


def test_names_numbers_comments_and_docstrings_change_nothing() -> None:
    changed = names_changed(right(NAME))
    assert changed != right(NAME) and similar.tokens(changed) == similar.tokens(right(NAME))


def test_a_copy_with_other_names_is_found() -> None:
    (pair,) = similar.pairs(of_class(right(NAME), names_changed(right(NAME)), *other_ways(2)), [NAME])
    assert (pair.one, pair.other, pair.name, pair.share) == ("learner0", "learner1", NAME, 1.0)


def test_a_copy_in_which_half_is_new_is_not() -> None:
    assert similar.pairs(of_class(right(NAME), *other_ways(2)), [NAME]) == []


def test_what_the_stub_has_does_not_count() -> None:
    stub = text.stub(catalog.find(NAME))
    assert similar.fingerprints(stub)
    assert similar.pairs(of_class(stub, stub + "# x\n"), [NAME]) == []


def test_what_most_of_the_class_has_does_not_count() -> None:
    alike = [names_changed(right(NAME)) + f"# {number}\n" for number in range(8)]
    assert similar.pairs(of_class(*alike), [NAME]) == []


def test_a_short_text_says_nothing() -> None:
    formula = "networks.ring_time"
    assert similar.pairs(of_class(right(formula), right(formula), name=formula), [formula]) == []


def test_a_run_of_tokens_that_two_texts_share_is_found_for_sure() -> None:
    """The guarantee of the paper, for a passage as short as can be."""
    passage = " ".join(["if a < b : c = d [ e ] ( f )", "x"])
    shared = similar.tokens(passage)[: similar.RUN + similar.WINDOW - 1]
    assert len(shared) == similar.RUN + similar.WINDOW - 1
    one = similar.fingerprints(f"y = 1\n{passage}\nwhile z: z -= 1\n" + "for i in j: k . l\n" * 3)
    other = similar.fingerprints("import m\nwith n as o: pass\n" * 2 + f"{passage}\ndel p\n")
    assert one & other


def test_a_text_that_is_no_program_is_compared_as_far_as_it_is_one() -> None:
    broken = right(NAME) + "\ndef (((\n"
    assert len(similar.pairs(of_class(broken, right(NAME)), [NAME])) == 1
    assert similar.fingerprints("'''") == set()
    assert similar.pairs(of_class(wrong(NAME)), [NAME]) == []
