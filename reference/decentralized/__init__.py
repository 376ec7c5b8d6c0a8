"""Decentralized training: ranks that are far apart, out of step, or not to be trusted.

Read `plain.py` first.

Islands, groups of ranks that train by themselves and meet now and then:

    plain.py                local SGD and DiLoCo, as their papers write them
    rounds.py               when a round ends
    meeting.py              what every way to meet is
    wire.py                 the mean over islands, in few bits
    diloco.py               an outer optimizer, on parts that an island shares out
    streaming.py            a fragment at a time, under way while islands train
    eager.py                a round to arrive, and an island's own change at once
    elastic_averaging.py    islands and a centre that pull each other
    sparta.py               a few parameters at each step, and no word of which
    noloco.py               in pairs
    islands.py              the outermost axis of the mesh: what a training has to do with other islands
    ring_order.py           in which order nodes stand in a ring, for its slowest link
    absences.py             islands that come and go, with none that waits for another
    parabola.py             the smallest thing that an island can train

    answers/alone.py        islands that train alone and meet, and after how many steps
    answers/outer.py        the outer step, its gradient and its momentum
    answers/streams.py      less at a time, and later
    answers/counted.py      when islands are data parallelism, and what they send in a day

    lab/quality.py          what islands cost in loss, beside synchronous data parallelism
    lab/intellect.py        shares of time that INTELLECT-1 has published, from a replay
"""
