"""What several puzzles of this chapter share."""

DOUBLE = 8  # bytes of an element: everything is compared in float64
