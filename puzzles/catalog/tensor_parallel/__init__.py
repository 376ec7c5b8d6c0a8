"""Puzzles of the chapter `tensor_parallel`: ranks that share every matrix."""

ORDER: tuple[str, ...] = ()
