"""What is found in a class's folder: each learner's texts, and one line for each thing that is no text of theirs."""

import json
import os
import stat
import sys
import zipfile
from pathlib import Path

import pytest

from puzzles import catalog
from puzzles.grading import rules, text
from puzzles.grading.course import Course
from rankwise.classroom import submissions
from reference.errors import BadInput

from .conftest import Put, right, wrong

PAIR, SHIFT = right("ranks.pair"), right("ranks.ring_shift")


def read(folder: Path) -> dict[str, submissions.Submission]:
    return {one.learner: one for one in submissions.read(folder, catalog.names())}


def the_only(folder: Path) -> submissions.Submission:
    (one,) = submissions.read(folder, catalog.names())
    return one


PLACES = ["puzzles/ranks/pair.py", "homework/puzzles/ranks/pair.py", "ranks/pair.py", "pair.py", "ranks.pair.py"]
PLACES += ["rankwise/puzzles/ranks/pair.py"]  # as one clones the course


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("learner", ["alice/", "alice.zip:", "alice/later.zip:"])
def test_a_puzzle_s_file_is_known_by_its_name(folder: Path, put: Put, place: str, learner: str) -> None:
    put(learner + place, PAIR)
    one = the_only(folder)
    assert (one.learner, one.texts, one.remarks) == ("alice", {"ranks.pair": PAIR}, [])


def test_a_text_is_what_check_reads(folder: Path, put: Put) -> None:
    for learner in ("alice/", "bob.zip:"):
        put(f"{learner}puzzles/ranks/pair.py", b"\xef\xbb\xbf" + PAIR.replace("\n", "\r\n").encode())
    wanted = Course(folder / "alice").read(catalog.find("ranks.pair"))
    assert [one.texts for one in read(folder).values()] == [{"ranks.pair": wanted}] * 2
    assert "\r" not in wanted


def test_a_cell_gets_the_imports_that_it_gets_when_it_is_saved(folder: Path, put: Put) -> None:
    puzzle = catalog.find("ranks.pair")
    below = PAIR.rpartition("\n\n\n")[2]
    cells = [["%%puzzle pair\n", *below.splitlines(True)], ["%%puzzle ranks.pear\n", "x"], ["print(1)"]]
    cells.append(text.cell(catalog.find("ranks.ring_shift")).splitlines(True))
    notebook = {"cells": [{"cell_type": "code", "source": source} for source in cells]}
    put("alice.ipynb", json.dumps(notebook))
    one = the_only(folder)
    assert one.texts == {"ranks.pair": text.with_imports(puzzle, below)}
    assert len(one.remarks) == 1 and "did you mean ranks.pair" in one.remarks[0]


@pytest.mark.parametrize("above", ["\n", "  \n\n"])
def test_a_cell_may_begin_with_empty_lines(folder: Path, put: Put, above: str) -> None:
    put("alice.ipynb", notebook(above + "%%puzzle ranks.pair\n" + PAIR))
    assert the_only(folder).texts == {"ranks.pair": PAIR}


def test_a_cell_that_no_file_can_hold_gets_one_line(folder: Path, put: Put) -> None:
    put("alice.ipynb", notebook(f"%%puzzle ranks.pair\n{PAIR}# \ud800\n", "%%puzzle ranks.\ud800"))
    put("bob.ipynb", notebook(f"%%puzzle ranks.pair\n{PAIR}"))
    found = read(folder)
    assert found["bob"].texts == {"ranks.pair": PAIR} and found["alice"].texts == {}
    broken, unknown = found["alice"].remarks
    assert broken == "alice.ipynb, cell %%puzzle ranks.pair: it has characters that UTF-8 has not"
    assert "\\ud800" in unknown and unknown.encode()


def notebook(*cells: str) -> str:
    """A notebook of these cells of code."""
    return json.dumps({"cells": [{"cell_type": "code", "source": cell} for cell in cells]})


def test_the_stub_is_not_handed_in_and_stands_in_no_other_file_s_way(folder: Path, put: Put) -> None:
    put("alice/puzzles/ranks/pair.py", text.stub(catalog.find("ranks.pair")))
    put("alice/pair.py", PAIR)
    assert the_only(folder).texts == {"ranks.pair": PAIR}


def test_a_file_of_puzzles_counts_more_than_a_cell(folder: Path, put: Put) -> None:
    put("alice/puzzles/ranks/pair.py", PAIR)
    source = ["%%puzzle pair\n", *wrong("ranks.pair").splitlines(True)]
    put("alice/lesson.ipynb", json.dumps({"cells": [{"cell_type": "code", "source": source}]}))
    assert the_only(folder).texts == {"ranks.pair": PAIR}


def test_a_folder_with_puzzles_is_one_submission(folder: Path, put: Put) -> None:
    put("puzzles/ranks/pair.py", PAIR)
    one = the_only(folder)
    assert (one.learner, list(one.texts)) == ("class", ["ranks.pair"])


def test_files_named_by_their_puzzles_are_one_submission(folder: Path, put: Put) -> None:
    put("ranks.pair.py", PAIR)
    assert (the_only(folder).learner, list(the_only(folder).texts)) == ("class", ["ranks.pair"])


def test_a_folder_of_gradescope_s_is_one_submission(folder: Path, put: Put) -> None:
    put("one.ipynb", notebook(f"%%puzzle ranks.pair\n{PAIR}"))
    put("two.ipynb", notebook(f"%%puzzle ranks.ring_shift\n{SHIFT}"))
    assert list(read(folder)) == ["one", "two"]
    folder.with_name("submission_metadata.json").write_text("{}")
    assert (the_only(folder).learner, set(the_only(folder).texts)) == ("class", {"ranks.pair", "ranks.ring_shift"})


def test_nothing_that_is_handed_in_vanishes(folder: Path, put: Put) -> None:
    put("ALICE.ZIP:ranks/pair.py", PAIR)
    put("BOB.IPYNB", notebook(f"%%puzzle ranks.pair\n{PAIR}"))
    put("carl.py", PAIR)
    put("dana/ranks/pair.py", PAIR)
    put("erik.tar.gz", b"")
    put(".DS_Store", b"")
    found = read(folder)
    assert [name for name, one in found.items() if one.texts] == ["ALICE", "BOB", "dana"]
    assert {name: one.remarks for name, one in found.items() if not one.texts} == {
        "carl": ["carl.py is no folder, zip file or notebook"],
        "erik.tar": ["erik.tar.gz is no folder, zip file or notebook"],
    }


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS has names of UTF-8 alone")
def test_a_name_need_not_be_utf_8(folder: Path, put: Put) -> None:
    put("alice/ranks/pari\udcfc.py", PAIR)
    put("M\udcfcller/ranks/pair.py", PAIR)
    found = read(folder)
    assert found["M\\udcfcller"].texts == {"ranks.pair": PAIR}
    assert "ranks/pari\\udcfc.py is no puzzle's file" in found["alice"].remarks[0]


LINES = {
    "alice/": "no puzzle file is in it",
    "alice/puzzles/ranks/pari.py": "puzzles/ranks/pari.py is no puzzle's file: ranks.pair is meant?",
    "alice/activation_bytes.py": "may be memory.activation_bytes or sequence_parallel.activation_bytes",
    "alice.zip:../pair.py": "alice.zip: '../pair.py' leads out of the zip file",
    "alice.zip:/puzzles/ranks/pair.py": "leads out of the zip file",
    "alice.zip:C:\\puzzles\\ranks\\pair.py": "leads out of the zip file",
    "alice.zip:more.zip": "'more.zip' is a zip file inside a zip file",
    "alice/lesson.ipynb": "lesson.ipynb: it is no notebook",
}


@pytest.mark.parametrize("place", LINES)
def test_what_can_not_be_used_gets_one_line_and_all_else_is_graded(folder: Path, put: Put, place: str) -> None:
    learner = "alice.zip:" if ":" in place else "alice/"
    if place == "alice/":
        (folder / "alice").mkdir()
    else:
        put(place, PAIR)
        put(f"{learner}ranks/ring_shift.py", SHIFT)
    put("bob/ranks/pair.py", PAIR)
    found = read(folder)
    assert found["alice"].texts == ({} if place == "alice/" else {"ranks.ring_shift": SHIFT})
    assert len(found["alice"].remarks) == 1 and LINES[place] in found["alice"].remarks[0], found["alice"].remarks
    assert found["bob"].texts == {"ranks.pair": PAIR}


BROKEN = {
    "not UTF-8": (b"\xff\xfe" + b"x" * 9, "pair.py: byte 0 is not UTF-8; a solution is a file of UTF-8 text"),
    "too long": (b"#" * (4 * rules.MAX_TEXT + 1), "it has more than 800,000 bytes"),
}


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("learner", ["alice/", "alice.zip:"])
def test_a_text_that_is_none_gets_one_line(folder: Path, put: Put, learner: str, name: str) -> None:
    content, said = BROKEN[name]
    put(f"{learner}ranks/pair.py", content)
    put(f"{learner}ranks/ring_shift.py", SHIFT)
    one = the_only(folder)
    assert list(one.texts) == ["ranks.ring_shift"] and len(one.remarks) == 1 and said in one.remarks[0], one.remarks


def test_two_files_for_one_puzzle_are_not_chosen_between(folder: Path, put: Put) -> None:
    put("alice/old/puzzles/ranks/pair.py", wrong("ranks.pair"))
    put("alice/new/puzzles/ranks/pair.py", PAIR)
    put("alice/new/puzzles/ranks/ring_shift.py", SHIFT)
    one = the_only(folder)
    assert list(one.texts) == ["ranks.ring_shift"]
    said = "ranks.pair is there twice and not the same, new/puzzles/ranks/pair.py and old/puzzles/ranks/pair.py"
    assert one.remarks == [f"{said}: neither is graded"]


def test_links_and_pipes_are_not_followed(folder: Path, put: Put, tmp_path: Path) -> None:
    put("bob/ranks/pair.py", PAIR)
    put("alice/ranks/ring_shift.py", SHIFT)
    (folder / "alice/ranks/pair.py").symlink_to(folder / "bob/ranks/pair.py")
    (folder / "alice/collectives").symlink_to(tmp_path)
    os.mkfifo(folder / "alice/swap.py")
    (folder / "carl").symlink_to(folder / "bob")
    found = read(folder)
    assert found["alice"].texts == {"ranks.ring_shift": SHIFT}
    said = sorted(found["alice"].remarks)
    assert [line.partition(" ")[0] for line in said] == ["collectives", "ranks/pair.py", "swap.py:"], said
    assert found["carl"].texts == {} and found["carl"].remarks == ["carl is a link: links are not followed"]


def test_a_link_in_a_zip_file_is_not_followed(folder: Path) -> None:
    link = zipfile.ZipInfo("ranks/pair.py")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(folder / "alice.zip", "w") as archive:
        archive.writestr(link, "/etc/passwd")
    assert the_only(folder).remarks == ["alice.zip: 'ranks/pair.py' is a link: links are not followed"]


def test_a_zip_bomb_is_unpacked_no_further_than_a_text_may_be_long(folder: Path, put: Put) -> None:
    put("alice.zip:ranks/pair.py", b"\0" * (1 << 28))
    put("alice.zip:ranks/ring_shift.py", SHIFT)
    assert (folder / "alice.zip").stat().st_size < 1 << 20
    one = the_only(folder)
    assert list(one.texts) == ["ranks.ring_shift"] and "more than 800,000 bytes" in one.remarks[0]


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_member_that_would_be_unpacked_as_a_whole_is_not_read(folder: Path, method: int) -> None:
    with zipfile.ZipFile(folder / "alice.zip", "w", method) as archive:
        archive.writestr("ranks/pair.py", PAIR)
    said = "alice.zip: 'ranks/pair.py' is packed by another method than deflate: it was not read"
    assert the_only(folder).remarks == [said]


def test_no_more_is_read_of_a_submission_than_there_is_room_for(
    folder: Path, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submissions, "MOST_BYTES", 2 * len(PAIR))
    for number in range(4):
        put(f"alice.zip:{number}/ranks/pair.py", PAIR)
    put("bob/ranks/pair.py", PAIR)
    found = read(folder)
    assert "bytes of text: the rest was not read" in found["alice"].remarks[0] and len(found["alice"].remarks) == 1
    assert found["bob"].texts == {"ranks.pair": PAIR}


def test_a_notebook_of_very_many_cells_is_refused(folder: Path, put: Put) -> None:
    cells = [{"cell_type": "code", "source": ["%%puzzle pair\n", f"x = {number}"]} for number in range(1001)]
    put("alice.ipynb", json.dumps({"cells": cells}))
    assert the_only(folder).remarks == ["alice.ipynb: it has more than 1,000 cells %%puzzle"]


def test_a_damaged_zip_file_is_said(folder: Path, put: Put) -> None:
    put("alice.zip", b"PK\x03\x04 and no more")
    put("bob/ranks/pair.py", PAIR)
    found = read(folder)
    assert "is no zip file that can be read" in found["alice"].remarks[0] and found["bob"].texts


def test_a_whole_copy_of_the_course_is_its_puzzles_alone(folder: Path, put: Put) -> None:
    put("alice/puzzles/ranks/pair.py", PAIR)
    for file in (
        "puzzles/catalog/ranks/pair.py",
        "reference/ranks/pair.py",
        ".git/ranks/pair.py",
        "puzzles/conftest.py",
        "puzzles/capstone/measure.py",
        "docs/ring.py",
        "rankwise/commands/pair.py",
    ):
        put(f"alice/{file}", "x = 1\n")
    one = the_only(folder)
    assert (one.texts, one.remarks) == ({"ranks.pair": PAIR}, [])


def test_a_folder_without_submissions_is_refused(folder: Path) -> None:
    with pytest.raises(BadInput, match="has no submissions"):
        submissions.read(folder, catalog.names())
    with pytest.raises(BadInput, match="can't be read: no such file"):
        submissions.read(folder / "none", catalog.names())
