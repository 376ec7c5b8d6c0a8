"""Widgets of a cell, moved as a reader moves them: each must change the picture, or say why it can't."""

import time

from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import Select

from .page import Page

ENOUGH = 60  # seconds for a picture to follow
HANDLE = ".noUi-handle"
MENU = "select"
PLAY = ".widget-play button:has(.fa-play, .fa-pause)"
PLAYS = ".widget-play button:has(.fa-pause)"
SEARCH = "input[type=text]"


def tried(page: Page, place: int) -> list[str]:
    """Try every control of a cell that has run. Returns what was moved.

    Raises:
        AssertionError: a control that changes nothing.
    """
    moved = []
    for what, move in ((HANDLE, _slide), (MENU, _choose), (PLAY, _play), (SEARCH, _search)):
        for at in range(len(_all(page, place, what))):
            now = move(page, place, at)
            page.tell(f"cell {place}: moved {''.join(now) or 'nothing'}")
            moved += now
    return moved


def _all(page: Page, place: int, what: str) -> list[WebElement]:
    return page.node(place).find_elements(By.CSS_SELECTOR, f".jp-OutputArea-output :is({what})")


def _follows(page: Page, place: int, before: tuple[str, str], name: str) -> None:
    """Wait until a cell shows something else than before, and the kernel rests."""
    page.wait(lambda: page.shown(place) != before and page.idle(), ENOUGH, f"{name} to change the picture")


def _name(page: Page, control: WebElement) -> str:
    return page.ask(
        "return arguments[0].closest('.jupyter-widgets')?.querySelector('.widget-label')?.textContent ?? ''", control
    )


def _slide(page: Page, place: int, at: int) -> list[str]:
    """One step of a slider, and back: from one picture to another, and to the first one."""
    handle = _all(page, place, HANDLE)[at]
    if page.ask("return arguments[0].closest('[disabled], .noUi-target[disabled]') !== null", handle):
        return []
    name = _name(page, handle) or "the player's slider"
    here, most = (float(handle.get_attribute(f"aria-value{each}")) for each in ("now", "max"))
    there, back = (Keys.LEFT, Keys.RIGHT) if here == most else (Keys.RIGHT, Keys.LEFT)
    before = page.shown(place)
    for key in (there, back):
        seen = page.shown(place)
        page.ask("arguments[0].focus()", _all(page, place, HANDLE)[at])
        page.press(key)
        _follows(page, place, seen, name)
    page.wait(lambda: page.shown(place) == before, ENOUGH, f"{name} to be back at {here:g}")
    return [name]


def _choose(page: Page, place: int, at: int) -> list[str]:
    """The next entry of a menu, and back, with the mouse: JupyterLab takes arrows and letters there for its own."""
    menu = _all(page, place, MENU)[at]
    if not menu.is_enabled():
        return []
    name, entries = _name(page, menu), [each.text for each in Select(menu).options]
    here = entries.index(Select(menu).first_selected_option.text)
    before = page.shown(place)
    for entry in (here - 1 if here == len(entries) - 1 else here + 1, here):
        seen = page.shown(place)
        Select(_all(page, place, MENU)[at]).select_by_index(entry)
        _follows(page, place, seen, name)
    page.wait(lambda: page.shown(place) == before, ENOUGH, f"{name} to be back at {entries[here]}")
    return [name]


def _play(page: Page, place: int, at: int) -> list[str]:
    """A player runs through several pictures, and holds where it is told to, or at its end."""
    seen = {page.shown(place)}
    _all(page, place, PLAY)[at].click()
    deadline = time.monotonic() + ENOUGH * page.patience
    while len(seen) < 3:
        assert time.monotonic() < deadline, f"the player showed {len(seen)} pictures"
        seen.add(page.shown(place))
        time.sleep(0.1)
    for playing in _all(page, place, PLAYS):
        playing.click()

    def holds() -> bool:
        here = page.shown(place)
        time.sleep(1.5)  # two pictures of a collective
        return page.shown(place) == here

    page.wait(holds, ENOUGH, "the player to hold")
    return ["play"]


def _search(page: Page, place: int, at: int) -> list[str]:
    """Letters that few entries have leave fewer lines."""
    field, before = _all(page, place, SEARCH)[at], page.cell(place)["text"]
    page.ask("arguments[0].focus()", field)
    field.send_keys("zero", Keys.ENTER)
    page.wait(lambda: page.idle() and page.cell(place)["text"] != before, ENOUGH, "the search to leave fewer lines")
    return ["search"]
