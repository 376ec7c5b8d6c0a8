"""What hides behind what."""

import pytest
from matplotlib.colors import to_hex

from reference.trace.activity import Activity, Doing
from visualizations.overlap import FACES, draw, duration, finding, hidden

OWN = [
    Activity(Doing.FORWARD, "layer 0", 10.0, 11.0),
    Activity(Doing.BACKWARD, "layer 0", 11.0, 13.0),
    Activity(Doing.COMMUNICATION, "all_reduce", 12.0, 13.5, 1000),
    Activity(Doing.COMMUNICATION, "all_gather_single", 13.2, 14.0, 2000),
]


def test_hidden_is_the_time_that_both_share():
    assert hidden(OWN) == (2.0, 1.0)
    assert hidden(OWN[:2]) == (0, 0)


def test_the_title_says_how_much_is_hidden():
    assert finding([OWN]) == "4 s: of 2 s of communication, 50% hides behind computing"
    assert finding([OWN[:2]]) == "3 s, and nothing is said"


@pytest.mark.parametrize("ranks", [1, 4])
def test_every_rank_has_a_lane_for_computing_and_one_for_each_collective(ranks: int):
    axes = draw([OWN] * ranks).axes[0]
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels == [name for r in range(ranks) for name in (f"rank {r}", "all_gather", "all_reduce")]
    assert len(axes.patches) == ranks * len(OWN)


def test_boxes_are_activities_in_the_colour_of_what_is_done():
    boxes = draw([OWN]).axes[0].patches
    seen = [(box.get_x() + 10, box.get_width(), to_hex(box.get_facecolor())) for box in boxes]
    assert sorted(seen) == sorted((a.begin, a.end - a.begin, FACES[a.doing].lower()) for a in OWN)


def test_lanes_can_have_names_of_their_own():
    axes = draw([OWN, OWN], names=["naive", "flat"]).axes[0]
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels == ["naive", "all_gather", "all_reduce", "flat", "all_gather", "all_reduce"]


def test_runs_of_different_times_are_of_one_length():
    later = [Activity(Doing.FORWARD, "layer 0", 13.0, 15.0)]
    assert duration([OWN, later]) == 5.0


def test_time_begins_with_the_first_activity():
    axes = draw([OWN]).axes[0]
    assert axes.get_xlim() == (0, 4)
    assert min(box.get_x() for box in axes.patches) == 0
