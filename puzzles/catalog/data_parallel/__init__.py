"""Puzzles of the chapter `data_parallel`: replicas that agree."""

ORDER = ()
