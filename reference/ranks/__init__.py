"""First programs of many processes: who am I, how many are we, and how does a tensor get from one to another."""

from .causality import Moment, happened_before
from .neighbours import look_both_ways
from .pair import hand_over
from .parcel import deliver
from .ping_pong import one_way, ping_pong
from .shift import ring_shift
from .swap import swap
from .turns import take_turns

__all__ = [
    "Moment",
    "deliver",
    "hand_over",
    "happened_before",
    "look_both_ways",
    "one_way",
    "ping_pong",
    "ring_shift",
    "swap",
    "take_turns",
]
