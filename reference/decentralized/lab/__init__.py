"""Instruments of this chapter: what islands cost in loss, and what a link costs them. No engine imports them."""
