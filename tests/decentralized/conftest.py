"""Small and steady, as in the tests of training."""

from ..train.conftest import one_thread, short_text
from ..zero.conftest import eight, ranks

__all__ = ["eight", "one_thread", "ranks", "short_text"]
