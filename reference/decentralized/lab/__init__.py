"""Instruments of this chapter: trainings that are compared, each with its table: `python -m ...lab.NAME`."""
