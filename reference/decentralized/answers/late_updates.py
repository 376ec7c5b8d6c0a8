"""How late each update of an asynchronous training was, from the log of its server."""

from collections.abc import Sequence


def staleness(events: Sequence[tuple[int, bool]]) -> list[int]:
    """Of each push: how many pushes came since its worker has pulled weights.

    Args:
        events: in the server's order: a worker, and whether it pushes a gradient; else it pulls weights.
    """
    version, pulled, found = 0, {}, []
    for worker, is_push in events:
        if is_push:
            found.append(version - pulled[worker])
            version += 1
        else:
            pulled[worker] = version
    return found
