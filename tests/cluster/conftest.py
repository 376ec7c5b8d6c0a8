"""What the tests of the cluster share: no test hangs, and processes can be found again."""

import signal
from collections.abc import Iterator
from typing import NoReturn

import pytest

_LIMIT = 300  # seconds for one test, which takes 30 at most where nothing else is at work


@pytest.fixture(autouse=True)
def alarm() -> Iterator[None]:
    """A test that hangs fails."""

    def too_long(*_: object) -> NoReturn:
        raise TimeoutError(f"the test took more than {_LIMIT} s")

    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(_LIMIT)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
