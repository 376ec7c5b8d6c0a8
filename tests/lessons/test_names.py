"""Names of other projects in lessons: torch knows those of torch, and the rest say in which version they were read.

Code cells are run elsewhere. What nothing runs is prose, its tables and its listings: there a name outlives what it
names.
"""

import importlib
import json
import re
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest
import torch

from tests.lessons.course import LESSONS, ROOT, committed

DOTTED = re.compile(r"(?<![\w./-])(torch|dist)((?:\.[A-Za-z_]\w*)+)")
IMPORTED = re.compile(r"from (torch[\w.]*) import ([\w, ]+)")
TORCHS_COLUMNS = ("PyTorch", "PyTorch's DDP", "`torch.distributed`")  # of tables, by their heads
ROOMS_OF_TORCH = ("distributed", "nn", "utils", "amp", "autograd", "cuda", "optim")

READ_AT = {
    "Megatron": ("d98e8a6", "008e9cd", "megatron-core 0.19.2", "megatron-core 0.16.1"),
    "TorchTitan": ("b5bcd76",),
    "DeepSpeed": ("edaa722", "DeepSpeed 0.19.8"),
}
"""The commits at which names of these projects were looked up, in August 2026, or releases. A lesson gives one."""


def texts(lesson: str) -> list[str]:
    """Prose and code of a lesson, cell by cell."""
    return ["".join(cell["source"]) for cell in json.loads(committed(lesson))["cells"]]


def known(name: str) -> bool:
    """Does the installed torch know this dotted name? What hangs on a value, a dtype or a group, is not looked at."""
    first, *rest = re.sub(r"^dist\b", "torch.distributed", name).split(".")
    owner, path = importlib.import_module(first), first
    for part in rest:
        if not isinstance(owner, (ModuleType, type)):
            return True
        path += f".{part}"
        try:
            owner = getattr(owner, part) if hasattr(owner, part) else importlib.import_module(path)
        except ImportError:
            return False
    return True


def unknown(text: str) -> list[str]:
    """Dotted names of torch in a text, and names imported from it, that the installed torch does not know."""
    names = [match[0] for match in DOTTED.finditer(text)]
    for module, listed in IMPORTED.findall(text):
        names += [f"{module}.{name.split()[0]}" for name in listed.split(",") if name.strip()]
    return [name for name in dict.fromkeys(names) if not known(name)]


@cache
def words_of_torch() -> frozenset[str]:
    """Every word in the sources of torch in which a lesson's name may stand: functions, classes, arguments, options."""
    root = Path(torch.__file__).parent
    files = [root / "__init__.py", *(file for room in ROOMS_OF_TORCH for file in (root / room).rglob("*.py"))]
    return frozenset(word for file in files for word in re.findall(r"\w+", file.read_text(errors="replace")))


def in_torchs_columns(text: str) -> list[str]:
    """Names in the columns of a text's tables that list PyTorch's."""
    found: list[str] = []
    columns: list[int] | None = None  # of the table that we are in
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            columns = None
        elif columns is None:
            columns = [place for place, cell in enumerate(cells) if cell in TORCHS_COLUMNS]
        else:
            found += [name for column in columns for name in names_in(cells[column])]
    return found


def names_in(cell: str) -> list[str]:
    """What looks like a name in a cell's code: words with an underscore or a capital, but none in quotes: values."""
    code = [re.sub('"[^"]*"', "", span) for span in re.findall("`([^`]*)`", cell)]
    words = [word for span in code for word in re.findall(r"[A-Za-z_]\w*", span)]
    return [word for word in words if "_" in word or word[1:] != word[1:].lower()]


@pytest.mark.parametrize("lesson", LESSONS)
def test_torch_knows_the_names_that_a_lesson_gives_it(lesson: str) -> None:
    assert [name for text in texts(lesson) for name in unknown(text)] == []


@pytest.mark.parametrize("lesson", LESSONS)
def test_torch_has_what_a_lesson_s_tables_list_as_its_own(lesson: str) -> None:
    listed = [name for text in texts(lesson) for name in in_torchs_columns(text)]
    assert [name for name in listed if name not in words_of_torch()] == []


@pytest.mark.parametrize("lesson", LESSONS)
def test_names_of_other_projects_carry_the_version_in_which_they_were_read(lesson: str) -> None:
    text = "\n".join(texts(lesson))
    tables = "\n".join(line for line in text.splitlines() if line.startswith("|"))
    named = [project for project in READ_AT if project in tables]
    named += ["Megatron"] * ("Megatron" in text and re.search(r"`--[a-z]+-", text) is not None)
    assert [project for project in named if not any(version in text for version in READ_AT[project])] == []


@pytest.mark.parametrize("file", ["README.md", "CONTRIBUTING.md"])
def test_torch_knows_the_names_in_other_texts(file: str) -> None:
    assert unknown((ROOT / file).read_text()) == []


def test_a_name_that_torch_does_not_know_is_found() -> None:
    prose = "Call `torch.distributed.all_reduce_everything`, `dist.all_reduce(x)`, then `torch.nn.Linear.weights`."
    assert unknown(prose) == ["torch.distributed.all_reduce_everything", "torch.nn.Linear.weights"]
    assert unknown("from torch.distributed.fsdp import fully_shard, partly_shard") == [
        "torch.distributed.fsdp.partly_shard"
    ]
    assert unknown("`dist.group.WORLD.recorder`, `torch.float32.itemsize`, reference/torch.py, my.torch.thing") == []


def test_a_name_that_torch_s_sources_do_not_have_is_found() -> None:
    table = "| here | PyTorch | elsewhere |\n|---|---|---|\n| x | `fully_shard`, `partly_shard(x)` | `own_name` |"
    assert in_torchs_columns(table) == ["fully_shard", "partly_shard"]
    assert "fully_shard" in words_of_torch() and "partly_shard" not in words_of_torch()
