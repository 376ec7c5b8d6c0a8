"""Pipelines without a bubble: half of backward moves to where a rank would be idle; or there is no flush at all."""
