"""The rank's side of a notebook's cell: the names that cells define on a rank stay there for the next one."""

import ast
import linecache
import sys
from types import ModuleType

import torch
import torch.distributed as dist

from ..trace import frames

HOME = "cells"  # the module whose names they are


def run(source: str, filename: str, ranks: tuple[int, ...]) -> tuple[int, str]:
    """Run a cell on this rank, where it is one of `ranks`; a value in its last line is printed, as a notebook does.

    `rank`, `world_size`, `torch` and `dist` are there from the beginning. An exception is printed and reported, and not
    raised: so the ranks stay as they are, with their names.

    Returns: the line of an exception in the cell, 0 if none is known; and what it says, "" where there is none.
    """
    if dist.get_rank() not in ranks:
        return 0, ""
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    names = _home().__dict__
    try:
        tree = ast.parse(source, filename)
        value = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, filename, "exec"), names)
        if value is not None:
            result = eval(compile(ast.Expression(value.value), filename, "eval"), names)
            if result is not None and not source.rstrip().endswith(";"):
                print(repr(result))
    except Exception as error:
        found = (each.line for each in frames.of_traceback(error.__traceback__) if each.file == filename)
        line, said = next(found, 0), f"{type(error).__name__}: {error}".removesuffix(": ")
        print(f"✗ line {line}: {said}")
        return line, said
    return 0, ""


def _home() -> ModuleType:
    """The module that holds the names of this rank's cells."""
    if HOME not in sys.modules:
        sys.modules[HOME] = home = ModuleType(HOME)
        home.__dict__.update(rank=dist.get_rank(), world_size=dist.get_world_size(), torch=torch, dist=dist)
    return sys.modules[HOME]
