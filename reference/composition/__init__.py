"""Composition: several kinds of parallelism on one set of ranks, and which of them goes where."""
