"""First programs of many processes: who am I, how many are we, and how does a tensor get from one to another."""

from reference.ranks.answers.causality import Moment, happened_before
from reference.ranks.answers.neighbours import look_both_ways
from reference.ranks.answers.parcel import deliver
from reference.ranks.answers.turns import take_turns
from reference.ranks.lab.ping_pong import one_way, ping_pong

from .plain import hand_over, ring_shift, swap

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
