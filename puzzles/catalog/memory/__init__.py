"""Puzzles of the chapter `memory`: what a training state weighs, and how to make it lighter."""

ORDER = ()
