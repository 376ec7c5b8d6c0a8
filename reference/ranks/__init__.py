"""First programs of many processes: which rank am I, how many are there, and how does a tensor get from one to another.

Read `plain.py`, then the answers in the order below. Each program is a few lines, and its cost is a number of steps: a
message is one, and messages that cross in one batch are one together.

    plain.py                hand over, swap, pass on: one step each
    answers/neighbours.py   the halo exchange: both neighbours at once, one step
    answers/parcel.py       a tensor of unknown shape: a label goes first, two messages
    answers/turns.py        ranks speak in order: a token, n-1 steps
    answers/causality.py    what happened before what, by vector clocks; no message of its own
    lab/ping_pong.py        how fast a link is: there and back, by a clock of one's own
    lab/mistakes.py         twelve programs for two ranks, each of which makes one mistake
"""

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
