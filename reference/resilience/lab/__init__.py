"""Instruments of this chapter: what breaks a training, or measures how it goes on. No engine imports them."""
