"""Decentralized: training far apart and out of step.

Read `plain.py`, then what is of interest: each group of files stands alone.

Without a schedule:

    plain_unscheduled.py   late gradients, neighbours, clients and liars, each in its smallest form
    parameter_server.py    workers push in their own time; how far ahead they may run; how late each update was
    replay.py              an asynchronous run again, in every bit, from its record
    hogwild.py             processes that write to the same memory without a lock
    topology.py            who averages with whom, and how fast that brings all to one value
    gossip.py              averages with neighbours alone, and decentralized SGD

    lab/least_squares.py   a problem whose best answer is known
    lab/asynchronous.py    asynchronous trainings, watched
    lab/consensus.py       how fast ranks agree, by topology, beside the bound
"""
