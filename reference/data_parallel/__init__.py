"""Data parallelism: every rank holds the whole model and reads its own part of the batch."""
