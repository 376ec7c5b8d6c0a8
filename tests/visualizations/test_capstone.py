"""The engine with its seats, and the bars of a challenge."""

from visualizations import engine, records

SEATS = {"loss": [("in chunks", "own"), ("in halves", "reference")], "update": [("clipping", "blamed")]}


def words(picture: engine.Picture) -> list[str]:
    return [text.get_text() for axes in picture.axes for text in axes.texts]


def test_a_picture_of_the_engine_names_each_seat_and_marks_whom_to_blame() -> None:
    picture = engine.draw(SEATS)
    assert {"in chunks", "in halves", "✗ clipping", "loss", "update"} <= set(words(picture))
    assert picture.get_suptitle() == "2 of 3 seats run your code, and 1 of them wrongly"


def test_seats_that_have_no_room_begin_a_line() -> None:
    narrow, wide = (engine.draw({"matrices": [(f"seat {n}", "own") for n in range(count)]}) for count in (3, 30))
    assert wide.get_size_inches()[1] > narrow.get_size_inches()[1]
    places = [patch.get_bbox() for patch in wide.axes[0].patches]
    assert all(place.x0 >= 0 and place.x1 <= engine.WIDTH for place in places)
    pairs = [(one, other) for at, one in enumerate(places) for other in places[at + 1 :]]
    assert not [pair for pair in pairs if abs(pair[0].y0 - pair[1].y0) < 0.01 and pair[0].x1 > pair[1].x0]


def test_entries_stand_in_order_and_none_before_the_bound() -> None:
    picture = records.draw({"ring": 3.0, "two levels": 1.5})
    (axes,) = picture.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["two levels", "ring"]
    assert [bar.get_width() for bar in axes.patches] == [1.5, 3.0]
    assert "1.50 times the bound" in picture.get_suptitle()
