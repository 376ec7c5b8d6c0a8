"""Decentralized training: ranks that are far apart, out of step, or not to be trusted.

Read `plain.py` first.

Islands, groups of ranks that train by themselves and meet now and then:

    plain.py                local SGD and DiLoCo, as their papers write them
    rounds.py               when a round ends
    meeting.py              what every way to meet is
    wire.py                 the mean over islands, in few bits
    aggregation.py          what islands agree on: the mean, or what stands liars, a private one, a sum of masks
    diloco.py               an outer optimizer, on parts that an island shares out
    streaming.py            a fragment at a time, under way while islands train
    eager.py                a round to arrive, and an island's own change at once
    outer_adam.py           clients' changes are a gradient for Adam: FedAdam
    proximal.py             a spring to where the round began: FedProx
    control_variates.py     gradients corrected by where those of others lead: SCAFFOLD
    elastic_averaging.py    islands and a centre that pull each other
    sparta.py               a few parameters at each step, and no word of which
    noloco.py               in pairs
    neighbours.py           with neighbours in a topology, and what they say is under way for a round
    apart.py                never: branches
    islands.py              the outermost axis of the mesh: what a training has to do with other islands
    ring_order.py           in which order nodes stand in a ring, for its slowest link
    absences.py             islands that come and go, with none that waits for another
    parabola.py             the smallest thing that an island can train

    answers/alone.py        islands that train alone and meet, and after how many steps
    answers/outer.py        the outer step, its gradient and its momentum
    answers/streams.py      less at a time, and later
    answers/counted.py      when islands are data parallelism, and what they send in a day

    lab/quality.py          what islands cost in loss, beside synchronous data parallelism
    lab/short_runs.py       runs of seconds, over steps, bytes, and seconds of a slow link
    lab/intellect.py        shares of time that INTELLECT-1 has published, from a replay

Without a schedule:

    plain_unscheduled.py   late gradients, neighbours, clients and liars, each in its smallest form
    parameter_server.py    workers push in their own time; how far ahead they may run; how late each update was
    replay.py              an asynchronous run again, in every bit, from its record
    late_rounds.py         rounds of DiLoCo that come when they are done: asynchronous DiLoCo, and its replay
    asynchronous.py        the same between islands of any plan, of which the first serves as well
    hogwild.py             processes that write to the same memory without a lock
    topology.py            which ranks average with which, and how fast that brings all to one value
    gossip.py              averages with neighbours alone, and decentralized SGD
    draws.py               what all ranks draw alike, from a seed
    clients.py             examples dealt unevenly, and which clients take part
    federated.py           FedAvg, FedProx, SCAFFOLD, FedAdam; what becomes of buffers
    privacy.py             clipping, noise, and what rounds give away at most
    secure_sum.py          masks that cancel: the sum of what clients say, and no part of it
    robust.py              mean, median, trimmed mean and Krum, among ranks that lie
    branches.py            trained apart on parts of the text; merged by a mean, an ensemble, or into experts
    merge.py               the same of branches in a checkpoint, as a command

    lab/least_squares.py   a problem whose best answer is known
    lab/asynchronous.py    asynchronous trainings, watched
    lab/late_rounds.py     asynchronous DiLoCo on a counted clock, islands of four speeds
    lab/consensus.py       how fast ranks agree, by topology, beside the bound
    lab/skewed.py          classes as clouds of points, dealt to clients unevenly
    lab/federated.py       federated methods side by side
    lab/liars.py           rules and attacks
    lab/branching.py       branches of two kinds of text, merged in three ways

    answers/pairs.py           in each round the mean of two
    answers/mixing.py          the second eigenvalue of a ring
    answers/server.py          gradients of weights that are late, in a known order
    answers/late_updates.py    how late each update was, from a server's log
    answers/bounded.py         not too far ahead, and no deadlock
    answers/by_examples.py     a client counts as much as it has examples
    answers/statistics.py      mean and variance of all clients, from those of each
    answers/mask.py            what two who share a seed both can draw
    answers/masks.py           masks that cancel, and one that has no partner
    answers/trimmed.py         each rank sorts a chunk of what all say
    answers/merged.py          feed-forwards become experts, the rest is averaged
"""
