"""Puzzles of the chapter `decentralized`: islands that meet now and then."""

ORDER = (
    "local_sgd",
    "still_the_same",
    "pseudo_gradient",
    "outer_nesterov",
    "diloco_whole",
    "off_by_one",
    "stream_a_fragment",
    "overlap_with_a_delay",
    "shared_seed",
    "bytes_of_a_day",
    "a_run_that_climbs",
)
