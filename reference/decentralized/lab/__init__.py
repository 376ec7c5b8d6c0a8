"""Instruments of this chapter: small trainings that are compared. Each prints its table: `python -m ...lab.NAME`."""
