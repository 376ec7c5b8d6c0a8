"""What ranks print, as the caller sees it: whole lines, each with its rank, not without end."""

import sys
import time

SHOWN = 64 * 1024  # bytes of one rank that one call shows
FLOOD = 256 * 1024  # bytes of one rank that end a call
WINDOW = 10.0  # seconds after which both are counted anew, so that a long run may continue to print


class Output:
    """Splits what ranks print into lines and writes them to the caller's stdout."""

    def __init__(self, world_size: int) -> None:
        self._pending = [b""] * world_size
        self.begin()

    def begin(self) -> None:
        """A new call, or a new window of one: count again."""
        self._count = [0] * len(self._pending)
        self._since = time.monotonic()
        self.flooding: int | None = None  # a rank that has printed more than is kept

    def feed(self, rank: int, data: bytes) -> None:
        """Show what `rank` printed."""
        if time.monotonic() - self._since > WINDOW:
            self.begin()
        before, self._count[rank] = self._count[rank], self._count[rank] + len(data)
        if self._count[rank] > FLOOD:
            self.flooding = rank
        if before > SHOWN:
            return
        *lines, self._pending[rank] = (self._pending[rank] + data[: SHOWN - before]).split(b"\n")
        self._write(rank, lines)
        if self._count[rank] > SHOWN:
            self.flush()
            self._write(rank, [f"… the rest of this call's output is not shown (over {SHOWN // 1024} KiB)".encode()])

    def flush(self) -> None:
        """Show lines that were begun and not ended."""
        for rank, text in enumerate(self._pending):
            if text:
                self._write(rank, [text])
                self._pending[rank] = b""

    @staticmethod
    def _write(rank: int, lines: list[bytes]) -> None:
        if lines:
            sys.stdout.write("".join(f"[rank {rank}] {_visible(line)}\n" for line in lines))
            sys.stdout.flush()


def _visible(line: bytes) -> str:
    """A line as a terminal shows it: a progress bar that was drawn over and over, only the last time."""
    return line.rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace")
