"""One file for each way to train: `losses(course, feature)` yields this rank's loss of each step, None where it has none."""
