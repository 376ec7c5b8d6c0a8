"""Instruments of this chapter: what breaks a training, or measures how it continues. No engine imports them."""
