"""Puzzles of the chapter `ranks`: first programs of many processes."""

ORDER = ("ring_shift",)
