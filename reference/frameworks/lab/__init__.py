"""Instruments: a run of a framework, with its ranks tapped."""
