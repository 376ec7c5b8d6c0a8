"""Puzzles of the chapter `zero`: replicas that share."""

ORDER = ()
