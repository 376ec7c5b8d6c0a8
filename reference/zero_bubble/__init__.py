"""Pipelines without a bubble: backward in two halves, and the second where a rank would be idle."""
