"""Puzzles of the chapter `ranks`: first programs of many processes."""

ORDER = ("pair", "take_turns", "find_the_deadlock", "swap", "ring_shift", "unknown_shape", "ping_pong")
