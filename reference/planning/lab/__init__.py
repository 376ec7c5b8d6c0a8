"""Instruments of this chapter: what measures, imitates or publishes a run. No engine imports them."""
