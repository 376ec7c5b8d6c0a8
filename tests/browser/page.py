"""An open lesson in Chromium: keys are pressed as a reader presses them, and JupyterLab says what came of it."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

CHROMIUM, DRIVER = Path("/usr/bin/chromium"), Path("/usr/bin/chromedriver")
OPTIONS = ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--no-proxy-server")
THEMES = ("JupyterLab Light", "JupyterLab Dark")
WIDTHS = (1440, 1000)  # pixels
HEIGHT = 900
LONGEST = 600  # seconds for what the browser is asked
LOOK = Path(__file__).with_name("look.js").read_text(encoding="utf-8")
NOTEBOOK = "const panel = window.jupyterapp?.shell.currentWidget, notebook = panel?.content;"
CELL = NOTEBOOK + "const cell = notebook.widgets[arguments[0]];"
OUTPUT = """
const outputs = cell.model.type === 'code' ? cell.model.sharedModel.getOutputs() : [];
return {
    type: cell.model.type,
    source: cell.model.sharedModel.getSource(),
    prompt: cell.promptNode?.textContent ?? '',
    folded: cell.outputHidden ?? false,
    errors: outputs.filter(each => each.output_type === 'error').map(each => `${each.ename}: ${each.evalue}`),
    text: cell.outputArea?.node.innerText ?? '',
}
"""
SELECT = """
notebook.activeCellIndex = arguments[0];
notebook.mode = 'command';
notebook.activate();
notebook.activeCell.node.scrollIntoView({block: 'nearest'});
notebook.node.focus();
"""
ASKED = "return document.querySelector('.jp-Dialog .jp-mod-accept') !== null"
RESTARTS = """
window.restarted = false;
panel.sessionContext.statusChanged.connect((_, now) => { window.restarted ||= now.endsWith('restarting'); });
"""
PICTURES = """
let mark = 0;
for (const image of cell.outputArea.node.querySelectorAll('img'))
    for (let at = 0; at < image.src.length; at++) mark = (31 * mark + image.src.charCodeAt(at)) | 0;
const words = [...cell.outputArea.node.querySelectorAll('.widget-html-content')].map(each => each.textContent);
return [String(mark), words.join(' ')];
"""
END = "return window.jupyterapp?.serviceManager.sessions.shutdownAll()"


def chromium(profile: Path) -> webdriver.Chrome:
    """A browser of its own, without a window."""
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for option in (*OPTIONS, f"--user-data-dir={profile}"):
        options.add_argument(option)
    driver = webdriver.Chrome(options=options, service=Service(str(DRIVER)))
    driver.set_script_timeout(LONGEST)  # by default 30 s, which a busy machine may need to load the page
    driver.command_executor.client_config.timeout = LONGEST
    driver.execute_cdp_cmd("Emulation.setFocusEmulationEnabled", {"enabled": True})  # of itself, no window has the keys
    return driver


class Page:
    """A lesson.

    Args:
        patience: how much longer than on a quiet machine things may take.
    """

    def __init__(self, driver: webdriver.Chrome, address: str, lesson: str, patience: float) -> None:
        self.driver, self.lesson, self.patience = driver, lesson, patience
        self.began = time.monotonic()
        self.ask(END)  # the kernel of the lesson before
        self.width(WIDTHS[0])
        self.open(f"{address}/lab/tree/lessons/{lesson}?reset")

    def open(self, address: str) -> None:
        """Load a notebook, and wait until it can be worked with."""
        self.driver.get(address)
        self.wait(lambda: self.ask(f"{NOTEBOOK} return panel?.context?.isReady ?? false"), 60, "the notebook")
        self.wait(self.idle, 60, "its kernel")
        self.wait(lambda: self.ask(f"{NOTEBOOK} return notebook.widgets.every(each => each.inViewport)"), 60, "cells")
        self.select(0)

    def tell(self, what: str) -> None:
        """Say what was done, and when: some lessons take minutes."""
        print(f"{time.monotonic() - self.began:6.1f} s  {self.lesson}: {what}", flush=True)

    def ask(self, script: str, *arguments: Any) -> Any:
        """What a script in the page returns."""
        return self.driver.execute_script(script, *arguments)

    def wait(self, condition: Callable[[], Any], seconds: float, what: str) -> Any:
        """What holds at last. Raises AssertionError where nothing does."""
        deadline = time.monotonic() + seconds * self.patience
        while not (found := condition()):
            assert time.monotonic() < deadline, f"waited {seconds:g} s, {self.patience:.1f} times, for {what}"
            time.sleep(0.2)
        return found

    def press(self, *keys: str) -> None:
        """Press keys one after another; those of one string together: `Keys.SHIFT + Keys.ENTER`.

        They are sent at once: JupyterLab forgets the first `I` of `I I` after a second, which a busy machine may take.
        """
        chain = ActionChains(self.driver, duration=0)
        for chord in keys:
            for key in chord[:-1]:
                chain.key_down(key)
            chain.send_keys(chord[-1])
            for key in chord[:-1]:
                chain.key_up(key)
        chain.perform()

    @property
    def cells(self) -> int:
        """How many cells the notebook has."""
        return self.ask(f"{NOTEBOOK} return notebook.widgets.length")

    @property
    def active(self) -> int:
        """The place of the cell that keys go to."""
        return self.ask(f"{NOTEBOOK} return notebook.activeCellIndex")

    def idle(self) -> bool:
        """Whether the kernel is there and has nothing to do."""
        return self.ask(f"{NOTEBOOK} return panel.sessionContext.session?.kernel?.status === 'idle'")

    def select(self, place: int) -> None:
        """Make this cell the one that keys go to, which a reader's click does."""
        self.ask(NOTEBOOK + SELECT, place)

    def cell(self, place: int) -> dict[str, Any]:
        """Its type, source, prompt, the text that it shows, and errors."""
        return self.ask(CELL + OUTPUT, place)

    def node(self, place: int) -> WebElement:
        """All that stands in this cell."""
        return self.ask(f"{CELL} return cell.node", place)

    def shown(self, place: int) -> tuple[str, str]:
        """A number that tells a cell's pictures from others, and the words with which its widgets refuse a choice."""
        return tuple(self.ask(CELL + PICTURES, place))

    def run(self, place: int, seconds: float = 240) -> dict[str, Any]:
        """Run a cell that is selected, from the keyboard, and go to the next one."""
        assert self.active == place
        self.ask(f"{CELL} if (cell.model.type === 'code') cell.model.executionCount = null", place)  # it may come again
        self.press(Keys.SHIFT + Keys.ENTER)
        if self.cell(place)["type"] == "code":
            self.wait(lambda: self.ran(place), seconds, f"cell {place} to end")
        self.wait(lambda: self.active == place + 1, 10, "the next cell")
        return self.cell(place)

    def ran(self, place: int) -> bool:
        """Whether a cell has its number, and its last output is there."""
        prompt, number = self.ask(f"{CELL} return [cell.promptNode.textContent, cell.model.executionCount]", place)
        return "*" not in prompt and number is not None and self.idle()

    def write(self, place: int, source: str) -> None:
        """Replace the text of a cell, as by pasting."""
        self.select(place)
        self.press(Keys.ENTER, Keys.CONTROL + "a")
        self.driver.execute_cdp_cmd("Input.insertText", {"text": source})
        self.wait(lambda: self.cell(place)["source"] == source, 10, "the text in the cell")
        self.press(Keys.ESCAPE)

    def interrupt(self) -> None:
        """What `I I` does."""
        self.press("i", "i")

    def restart(self) -> None:
        """What `0 0` does, and yes to the question."""
        self.ask(NOTEBOOK + RESTARTS)
        self.press("0", "0")
        self.wait(lambda: self.ask(ASKED), 10, "a question")
        self.press(Keys.ENTER)
        self.wait(lambda: self.ask("return window.restarted") and self.idle(), 60, "the kernel to restart")

    def width(self, pixels: int) -> None:
        """Make the window so wide."""
        size = {"width": pixels, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def theme(self, name: str) -> None:
        """Choose a theme of JupyterLab."""
        self.ask("window.jupyterapp.commands.execute('apputils:change-theme', {theme: arguments[0]})", name)
        self.wait(lambda: self.ask("return document.body.dataset.jpThemeName") == name, 30, name)

    def look(self, least: float) -> list[str]:
        """Texts that are cut off, or whose contrast is below `least`."""
        return [f"cell {place}: {what}: {text!r}" for what, place, text in self.ask(LOOK, least)]
