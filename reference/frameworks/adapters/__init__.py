"""One file for each way to train: `losses(course, feature)` yields a rank's loss of each step; None: it has none."""
