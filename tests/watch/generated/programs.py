"""Whole programs of blocks: some right ones, one wrong one among them or none."""

import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import ModuleType

from tests.watch.generated.draw import Draw
from tests.watch.generated.right import BLOCKS
from tests.watch.generated.wrong import WRONG, Wrong

HEAD = """\
import queue
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
import torch.distributed as dist


def program():
    rank, n = dist.get_rank(), dist.get_world_size()
"""


@dataclass(frozen=True)
class Program:
    """A generated program: its text, and what is wrong with it."""

    seed: int
    n: int
    source: str
    mistake: Wrong | None

    @property
    def name(self) -> str:
        return f"{self.seed}-{self.mistake.name if self.mistake else 'right'}[{self.n}]"

    def load(self, folder: Path) -> Callable[[], None]:
        """The program as a function, from a file of its own, which messages can name."""
        file = folder / f"program_{self.seed}.py"
        file.write_text(self.source)
        module = ModuleType("__main__")  # so that it travels as code
        exec(compile(self.source, str(file), "exec"), module.__dict__)
        return module.program


def generate(seed: int) -> Program:
    """The program of a seed. Every second one is wrong; the kinds take turns."""
    random = Random(seed)
    mistake = WRONG[seed // 2 % len(WRONG)] if seed % 2 else None
    n = random.choice([size for size in (2, 3, 4) if mistake is None or size >= mistake.least])
    d = Draw(random, n)
    blocks = [random.choice(BLOCKS)(d) for _ in range(random.randrange(0 if mistake else 2, 6))]
    if mistake:
        blocks.insert(random.randrange(len(blocks) + 1), mistake.lines(d))
    body = "".join(blocks)
    if random.random() < 0.2:
        body = "for step in range(2):\n" + textwrap.indent(body, "    ")
    return Program(seed, n, HEAD + textwrap.indent(body, "    "), mistake)
