"""How many ranks a command may be asked for."""

from reference.errors import BadInput


def require_ranks(ranks: int) -> None:
    """Raises BadInput for a number of ranks that no cluster has."""
    from reference.cluster.cluster import MAX_RANKS  # no torch, and yet what other commands need not wait for

    if not 1 <= ranks <= MAX_RANKS:
        raise BadInput(f"--ranks is a number from 1 to {MAX_RANKS}, not {ranks}")
