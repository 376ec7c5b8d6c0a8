"""Resilience: training that continues, whatever dies, and is right, whatever flips.

Among 16,384 GPUs one fails every three hours (Llama 3, 2024).

Read `plain.py`, then what is of interest: each group of files stands alone.

A checkpoint is on a disk:

    plain.py         a checkpoint that is there whole or not at all, written now or behind training
    async_save.py    `plain.save_behind` for any plan: copy, write behind training, agree between steps
    file_image.py    a rank's file in memory: a save fills it, and nothing of Python is left to do behind training
    incremental.py   write only what has changed since the last full checkpoint
    preemption.py    SIGTERM with a grace period: agree on a step, save, leave

A rank dies, hangs or is cut off:

    placement.py    on whose nodes copies lie, so that most losses lose nothing
    reshard.py      from one layout to another without a disk
    copies.py       each rank's state in memory, and on a neighbour's node
    store.py        where those who take part leave words for each other
    membership.py   those who live agree on a list, round after round
    round_group.py  a round as torch's world, in which no rank waits for one who has gone
    elastic.py      training that continues with the ranks that are left
    quorum.py       one answer for all, also where ranks die while it is asked for
    per_step.py     replicas vote on each step; one that returns heals while the others continue
    snapshot.py     what a rank must remember to take its steps again

A rank computes wrongly, which is not seen until it is compared:

    plain_votes.py        a vote, a sum with its checksum, a spike
    votes.py              replicas that must be equal are compared, and a rank that is off is named
    checked_sums.py       a bit that flips while gradients are added up; the rank, in a ring
    audits.py             a neighbour computes a rank's gradient again, from time to time
    together.py           NaN on one rank: all leave the step out together, and it is named where it began
    stragglers_named.py   who makes the others wait, from a trace, and what the step would gain
    spikes.py             a loss spike: back to before it, and past the batches that it came with

    answers/saving.py        checkpoints that are whole, and of their own step
    answers/loading.py       any layout, the place in the data, and no change before all agree
    answers/commit.py        a step that counts on all replicas or on none
    answers/finite.py        a NaN on one rank, and no deadlock
    answers/flipped_bit.py   rank, place and bit, from two integers of each rank
    answers/late.py          the rank that is late by its own work
    answers/elastic.py       who reads what when the number of ranks changes
    answers/momentum.py      the optimizer of the one that heals
    answers/heal.py          a replica heals piece by piece, while the others continue
    answers/neighbour.py     new ranks get back what the dead ones had
    answers/racks.py         copies on nodes that share no rack, and as few fatal losses as can be
    answers/two_levels.py    how often to copy, and how often to save

    lab/faults.py             let a process die at the N-th point of its way
    lab/half_a_message.py     a rank dies in the middle of a message: how long its other end waits
    lab/incident.py           a rank that becomes slow, for its trace to be read
    lab/history.py            what became of a training's time: steps that count, lost ones, saves, recovery
    lab/watched.py            trainings to which something happens, from disk and elastic
    lab/measured_goodput.py   goodput under failures at random, beside the formula
"""
