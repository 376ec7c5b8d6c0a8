"""What each rank has sent in a call that has come to its end: its messages are counted, none is replayed.

`Trace.bytes_sent` counts what has arrived, and so runs the whole trace on a model. Where every call has ended well,
all that was sent has arrived, for the watcher lets no message and no collective go that another rank has left out.
"""

from reference.trace import Trace
from reference.trace.native import Lowered, lower


def bytes_sent(trace: Trace) -> list[int]:
    """Bytes that each rank sends; native collectives count as their algorithms, see `reference.trace.native`."""
    return [sum(map(_sent, calls)) for calls in lower(trace.events)]


def _sent(call: Lowered) -> int:
    return sum(half.bytes for halves in call.rounds for half in halves if half.sends)
