"""Puzzles of the chapter `collectives`: every collective from send and receive."""

ORDER = ("ring_all_reduce",)
