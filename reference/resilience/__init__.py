"""Resilience: training that continues, whatever dies, and is right, whatever flips.

Read `plain.py`, then `votes.py`. A rank that dies is noticed; one that computes wrongly is not, until it is compared.

    plain.py                  a vote, a sum with its checksum, a spike
    votes.py                  replicas that must be equal are compared, and a rank that is off is named
    relay.py                  a communicator through which everything passes to another one
    checked_sums.py           a bit that flips while gradients are added up; the rank, in a ring
    audits.py                 a neighbour computes a rank's gradient again, from time to time
    together.py               NaN on one rank: all leave the step out together, and it is named where it began
    stragglers_named.py       who makes the others wait, from a trace, and what the step would gain
    snapshot.py               what a rank must remember to take its steps again
    spikes.py                 a loss spike: back to before it, and past the batches that it came with
    quorum.py                 one answer for all, also where ranks die while it is asked for
    per_step.py               replicas vote on each step; one that returns heals while the others continue
    answers/commit.py         a step that counts on all replicas or on none
    answers/finite.py         a NaN on one rank, and no deadlock
    answers/flipped_bit.py    rank, place and bit, from two integers of each rank
    answers/late.py           the rank that is late by its own work
    answers/elastic.py        who reads what when the number of ranks changes
    answers/momentum.py       the optimizer of the one that heals
    answers/heal.py           a replica heals piece by piece, while the others continue
"""
