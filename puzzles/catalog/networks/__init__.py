"""Puzzles of the chapter `networks`: what communication costs."""

ORDER = ("ring_time",)
