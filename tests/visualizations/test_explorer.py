"""Menus and sliders over a picture: it is always that of the choice, or words say why there is none."""

from dataclasses import dataclass, fields

import pytest

from reference.errors import BadInput
from visualizations import compression_widget, context_widget, expert_widget, memory_widget, schedule_widget
from visualizations.explorer import Choice, Explorer, Menu, Slider
from visualizations.live import VIEW
from visualizations.style import Picture, canvas

CONTROLS = {
    "animal": Menu("animal", ("cat", "dog"), str.upper),
    "legs": Slider("legs", 1, 4, 1),
    "size": Slider("size", 0.5, 2, 0.5),
    "hat": Menu("hat", (True, False)),
}


@dataclass(frozen=True)
class Pet(Choice):
    animal: str = "cat"
    legs: int = 4
    size: float = 1.0
    hat: bool = False

    @property
    def idle(self) -> list[str]:
        return ["hat"] if self.animal == "dog" else []

    def draw(self) -> Picture:
        if self.animal == "dog" and self.legs % 2:
            raise BadInput("a dog has an even number of legs")
        return canvas(1.0, f"{self.animal}, {self.legs} legs, size {self.size}, hat {self.hat}")[0]


def explore(**choice) -> Explorer:
    return Explorer(Pet(**choice), CONTROLS)


def parts(explorer: Explorer) -> tuple:
    """Controls by name, and words."""
    columns, words = explorer.widget.children
    return {control.description: control for column in columns.children for control in column.children}, words


def test_a_control_changes_the_picture():
    explorer = explore()
    controls, _ = parts(explorer)
    assert explorer.seen == Pet().draw().png()
    controls["animal"].value = "dog"
    controls["legs"].value = 2
    controls["size"].value = 1.5
    assert explorer.choice == Pet("dog", 2, 1.5)
    assert explorer.seen == Pet("dog", 2, 1.5).draw().png() != Pet().draw().png()


def test_a_slider_that_is_back_shows_the_same_picture():
    """A browser adds up steps. Of 1.2500000000000002 times 256 tokens the next whole number is one too many."""
    explorer = explore(size=1.25)
    controls, _ = parts(explorer)
    for value in (1.5, 1.2500000000000002):
        controls["size"].value = value
    assert controls["size"].value != 1.25 and explorer.choice.size == 1.25
    assert explorer.seen == Pet(size=1.25).draw().png()


def test_what_cannot_be_is_said_and_can_be_mended():
    explorer = explore()
    controls, words = parts(explorer)
    controls["legs"].value = 3
    controls["animal"].value = "dog"
    assert words.value == "a dog has an even number of legs" and explorer.seen == Pet(legs=3).draw().png()
    controls["legs"].value = 2
    assert not words.value and explorer.seen == Pet("dog", 2).draw().png()


def test_an_explorer_does_not_begin_with_what_cannot_be():
    with pytest.raises(BadInput, match="even"):
        explore(animal="dog", legs=3)


def test_a_control_that_changes_nothing_cannot_be_moved():
    controls, _ = parts(explore())
    assert not controls["hat"].disabled
    controls["animal"].value = "dog"
    assert controls["hat"].disabled and not controls["legs"].disabled


def test_what_was_chosen_before_it_is_shown_is_shown():
    explorer = explore()
    explorer.choose(animal="dog", legs=2)
    controls, _ = parts(explorer)
    assert controls["animal"].value == "dog" and explorer.seen == Pet("dog", 2).draw().png()
    assert repr(explorer) == "<Explorer: <Picture: dog, 2 legs, size 1.0, hat False>>"


def test_controls_reach_what_they_begin_with():
    controls, _ = parts(explore(animal="spider", legs=8, size=0.25))
    assert controls["animal"].value == "spider"
    assert [words for words, _ in controls["animal"].options] == ["CAT", "DOG", "SPIDER"]
    assert (controls["legs"].max, controls["size"].min) == (8, 0.25)


@pytest.mark.parametrize("module", [compression_widget, context_widget, expert_widget, memory_widget, schedule_widget])
def test_every_field_has_a_control(module):
    controls, _ = parts(module.explore())
    assert sorted(module.CONTROLS) == sorted(field.name for field in fields(module.Choice))
    assert list(controls) == [control.name for control in module.CONTROLS.values()]
    assert {field: controls[one.name].value for field, one in module.CONTROLS.items()} == vars(module.Choice())


def test_what_the_picture_says_follows_the_controls():
    explorer = explore()
    parts(explorer)[0]["animal"].value = "dog"
    data, metadata = explorer._repr_mimebundle_()
    assert VIEW not in data and "dog, 4 legs" in metadata["image/png"]["alt"]
    assert repr(explorer) == "<Explorer: <Picture: dog, 4 legs, size 1.0, hat False>>"
