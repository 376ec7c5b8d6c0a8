"""What became of a training's time, by what its ranks wrote down."""

from pathlib import Path

import pytest

from reference.errors import BadInput
from reference.resilience.lab.history import Deed, Diary, DiaryEntry, DiaryMark, Stretch, told

RESUMED, STEP, SAVE = DiaryMark.RESUMED, DiaryMark.STEP, DiaryMark.SAVE


def diary(rank: int, *words: tuple[float, DiaryMark, int]) -> list[DiaryEntry]:
    return [DiaryEntry(seconds, rank, mark, step) for seconds, mark, step in words]


FROM_DISK = [
    moment
    for rank in range(2)
    for moment in diary(
        rank,
        (100.0, RESUMED, 0),
        (101.0, STEP, 1),
        (102.0, STEP, 2),
        (102.5, SAVE, 2),
        (103.5, STEP, 3),
        (106.0, RESUMED, 2),  # rank 1 has died at 104
        (107.0, STEP, 3),
        (108.0, STEP, 4),
        (108.5, SAVE, 4),
    )
]


def test_a_step_that_is_taken_twice_was_lost_and_is_done_again() -> None:
    history = told(FROM_DISK, [(104.0, 1)])
    of_rank_0 = [(each.deed, each.begin, each.end, each.step) for each in history.stretches if each.rank == 0]
    assert of_rank_0 == [
        (Deed.STEP, 0.0, 1.0, 1),
        (Deed.STEP, 1.0, 2.0, 2),
        (Deed.SAVE, 2.0, 2.5, 2),
        (Deed.LOST, 2.5, 3.5, 3),
        (Deed.LOST, 3.5, 4.0, 0),
        (Deed.RECOVERY, 4.0, 6.0, 2),
        (Deed.AGAIN, 6.0, 7.0, 3),
        (Deed.STEP, 7.0, 8.0, 4),
        (Deed.SAVE, 8.0, 8.5, 4),
    ]
    assert history.deaths == [(4.0, 1)]
    assert history.taken == 5


def test_parts_are_all_of_the_time() -> None:
    history = told(FROM_DISK, [(104.0, 1)])
    assert history.parts() == pytest.approx({"useful": 4.0, "checkpoints": 1.0, "rework": 1.5, "down": 2.0})
    assert sum(history.parts().values()) == pytest.approx(history.seconds)


def test_one_who_dies_does_nothing_more_and_a_spare_begins_late() -> None:
    moments = [
        *diary(0, (0.0, RESUMED, 0), (1.0, STEP, 1), (2.0, RESUMED, 1), (3.0, STEP, 2)),
        *diary(1, (0.0, RESUMED, 0), (1.0, STEP, 1)),
        *diary(2, (2.0, RESUMED, 1), (3.0, STEP, 2)),
    ]
    history = told(moments, [(1.5, 1), (9.0, 0)])  # the second one after the end
    assert [each for each in history.stretches if each.rank == 1][-1] == Stretch(1, Deed.LOST, 1.0, 1.5)
    assert [each.deed for each in history.stretches if each.rank == 2] == [Deed.STEP]
    assert (history.ranks, history.deaths) == ([0, 1, 2], [(1.5, 1)])


def test_who_dies_before_it_has_done_anything_has_a_lane() -> None:
    assert told(diary(0, (0.0, RESUMED, 0), (2.0, STEP, 1)), [(1.0, 3)]).ranks == [0, 3]


def test_a_step_lost_twice_is_lost_twice() -> None:
    words = (0.0, RESUMED, 0), (1.0, STEP, 1), (2.0, RESUMED, 0), (3.0, STEP, 1), (4.0, RESUMED, 0), (5.0, STEP, 1)
    deeds = [each.deed for each in told(diary(0, *words), []).stretches]
    assert deeds == [Deed.LOST, Deed.RECOVERY, Deed.LOST, Deed.RECOVERY, Deed.AGAIN]


def test_what_is_written_is_read_and_a_line_that_was_cut_off_is_not(tmp_path: Path) -> None:
    written = Diary(tmp_path)
    written.note(1, DiaryMark.STEP, 7)
    written.note(0, DiaryMark.SAVE, 7)
    with (tmp_path / "0.txt").open("a") as file:
        file.write("123.4 0 st")
    found = written.read()
    assert [(moment.rank, moment.mark, moment.step) for moment in found] == [
        (1, DiaryMark.STEP, 7),
        (0, DiaryMark.SAVE, 7),
    ]


def test_an_empty_diary_is_refused() -> None:
    with pytest.raises(BadInput, match="no rank has come so far"):
        told([], [])
