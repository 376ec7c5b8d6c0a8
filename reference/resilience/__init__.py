"""Resilience: what a training does when machines die, hang, are cut off, or compute wrong numbers.

Among 16,384 GPUs one fails every three hours (Llama 3, 2024). Read `placement.py`, then `copies.py`, `membership.py`
and `elastic.py`.

    placement.py    on whose nodes copies lie, so that most losses lose nothing
    reshard.py      from one layout to another without a disk
    copies.py       each rank's state in memory, and on a neighbour's node
    store.py        where those who take part leave words for each other
    membership.py   who takes part: those who live agree on a list, round after round
    elastic.py      training that goes on with those who are left

    lab/faults.py             let a process die at the N-th point of its way
    lab/history.py            what became of a training's time: steps that count, lost ones, saves, recovery
    lab/watched.py            trainings to which something happens, from disk and elastic
    lab/measured_goodput.py   goodput under failures at random, beside the formula
    answers/neighbour.py      new ranks get back what the dead ones had
    answers/racks.py          copies on nodes that share no rack, and as few fatal losses as can be
    answers/two_levels.py     how often to copy, and how often to save
"""
