"""Small and steady: a short text, and one thread in this process too, as in each rank."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from reference.models.data import python_text


@pytest.fixture(scope="session")
def short_text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first 20 KB of the default text, as a file."""
    path = tmp_path_factory.mktemp("text") / "short.txt"
    path.write_bytes(python_text()[:20_000].tobytes())
    return path


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Several threads on a busy machine wait for each other, and round differently."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
