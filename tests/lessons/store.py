"""Run lessons and store them with what they show: `python -m tests.lessons.store [01_ranks.ipynb ...]`; all by default.

They run in a course of their own in which nothing is solved, as they lie in the working tree. Stored are pictures for
those who read them elsewhere, and no controls, which need a kernel. What answers a `predict` is folded away: JupyterLab
shows it when its cell is run.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.lessons.course import LESSONS, ROOT, copy_course, executed

FOLDED = "run this cell to see what it shows"
"""The first line of outputs that are folded away: JupyterLab shows it beside the dots, and would show the answer."""

VIEW = "application/vnd.jupyter.widget-view+json"


def answers(cells: list[Any]) -> set[int]:
    """The places of cells that show what was to be predicted: from a `predict` to the text after its `reveal`."""
    found: set[int] = set()
    open_questions, answered = 0, False
    for place, cell in enumerate(cells):
        source = "".join(cell["source"])
        if cell["cell_type"] != "code":
            open_questions, answered = (0, False) if answered and not open_questions else (open_questions, False)
            continue
        if open_questions or answered:
            found.add(place)
        reveals = source.count("reveal(")
        open_questions += source.count("predict(") - reveals
        answered = answered or bool(reveals)
    return {place for place in found if "predict(" not in "".join(cells[place]["source"])}


def cleaned(notebook: Any) -> Any:
    """The same without what only a kernel can show, and with answers folded away."""
    from nbformat.v4 import new_output

    hidden = answers(notebook.cells)
    for place, cell in enumerate(notebook.cells):
        if cell.cell_type != "code":
            continue
        cell.outputs = [output for output in cell.outputs if VIEW not in output.get("data", {})]
        for output in cell.outputs:
            if "image/png" in output.get("data", {}):
                output.data.pop("text/html", None)  # holds the same picture once more
        cell.outputs = [output for output in cell.outputs if output.get("data", {}).get("text/plain") != FOLDED]
        cell.metadata = {}
        if place in hidden and cell.outputs:
            cell.outputs.insert(0, new_output("display_data", {"text/plain": FOLDED}))
            cell.metadata = {"jupyter": {"outputs_hidden": True}}
    notebook.metadata = {key: notebook.metadata[key] for key in ("kernelspec", "language_info")}
    return notebook


def store(lesson: str, course: Path) -> None:
    """Run one lesson of a course, and write it to the working tree."""
    import nbformat

    (course / "lessons" / lesson).write_text((ROOT / "lessons" / lesson).read_text())
    notebook = cleaned(executed(course, lesson))
    text = nbformat.writes(notebook) + "\n"
    if str(course) in text:
        raise SystemExit(f"{lesson} shows a path of this machine: {course}")
    (ROOT / "lessons" / lesson).write_text(text)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        copied = copy_course(Path(folder, "course"), solved=False)
        for name in sys.argv[1:] or LESSONS:
            store(name, copied)
            print(name, flush=True)
