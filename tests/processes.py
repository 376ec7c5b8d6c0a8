"""Wait for what other processes do."""

import time
from collections.abc import Callable
from pathlib import Path


def wait_until(condition: Callable[[], bool], seconds: float = 5) -> None:
    """Return when it holds. Raises AssertionError where it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds:g} s in vain"
        time.sleep(0.01)


def gone(pids: list[int]) -> bool:
    """True where none of these processes is left, not even to be waited for."""
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)
