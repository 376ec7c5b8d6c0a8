"""Puzzles of the chapter `planning`: what a training costs before it is paid for."""

ORDER = ("checkpoint_interval", "goodput", "compute_optimal")
