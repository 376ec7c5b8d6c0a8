"""JupyterLab over a course in which nothing is solved, and a browser; or why nothing runs where one is missing."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ..lessons.course import copy_course

if TYPE_CHECKING:
    from .page import Page

Opened = Callable[[str], "Page"]


@pytest.fixture(scope="session")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    """`opened("01_ranks.ipynb")`: that lesson, just opened, with a kernel of its own."""
    pytest.importorskip("selenium", reason="selenium is not installed: `make setup` does it")
    pytest.importorskip("jupyterlab", reason="JupyterLab is not installed: `make setup` does it")
    from .lab import served
    from .page import CHROMIUM, DRIVER, Page, chromium

    if missing := [program.name for program in (CHROMIUM, DRIVER) if not program.exists()]:
        pytest.skip(f"there is no {' and no '.join(missing)}: on Debian, apt-get install chromium chromium-driver")
    patience = min(max(1.0, os.getloadavg()[0] / 2), 4.0)  # pages, their kernel and its ranks need all cores at once
    folder = tmp_path_factory.mktemp("browser")
    course, home = copy_course(folder / "course", solved=False), folder / "home"
    home.mkdir()
    with served(course, home, patience) as address:
        driver = chromium(folder / "profile")
        try:
            yield lambda lesson: Page(driver, address, lesson, patience)
        finally:
            driver.quit()


@pytest.fixture
def pictures() -> Path:
    """Where screenshots are kept, to be looked at."""
    folder = Path(__file__).resolve().parents[2] / "out" / "browser"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
