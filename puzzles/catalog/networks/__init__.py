"""Puzzles of the chapter `networks`: what communication costs."""

ORDER = ("alpha_beta", "ring_time", "best_algorithm", "crossing", "bus_bandwidth", "hierarchical_time")
