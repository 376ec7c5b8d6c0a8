"""Cells in a real kernel, for tests of what they show."""

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HOUSE = Path(__file__).resolve().parents[1]


def outputs_of(cells: Mapping[str, str], *, may_fail: bool = False) -> dict[str, list[Any]]:
    """Run cells one after another in one notebook, in a folder and a home of its own.

    Args:
        cells: their texts, by a name for each.
        may_fail: whether a cell may raise; the next ones run in any case.

    Returns: what each shows, by its name.
    """
    import nbformat  # takes longer than torch
    from nbclient import NotebookClient
    from traitlets.config import Config

    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells.values()])
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(
            notebook,
            config=Config(KernelManager={"transport": "ipc", "ip": f"{folder}/kernel"}),
            resources={"metadata": {"path": folder}},
            kernel_name="python3",
            timeout=300,
            allow_errors=may_fail,
            coalesce_streams=True,
        ).execute(env=os.environ | {"PYTHONPATH": str(HOUSE), "IPYTHONDIR": folder})
    return {name: cell.outputs for name, cell in zip(cells, notebook.cells, strict=True)}
