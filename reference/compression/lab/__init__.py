"""Instruments of this chapter. No engine imports them."""
