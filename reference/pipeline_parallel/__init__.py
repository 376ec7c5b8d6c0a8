"""Pipeline parallelism: every rank has some of the layers, and micro-batches pass through.

Read `plain.py`, then `schedule.py` and `orders.py` (a schedule is data), `passes.py` (messages are put in) and `run.py`
(one interpreter for all of them). A micro-batch sends 2·B·S·D over each border; with m of them, p ranks are idle for
(p-1)/(m+p-1) of a step, and 1F1B holds at most p activations where GPipe holds m.

Schedules

    plain.py                a step of GPipe or 1F1B on one rank, with messages written out
    schedule.py             what each rank computes, in which order
    orders.py               GPipe, 1F1B, interleaved, breadth-first, forward only: each a small table
    unroll.py               from a table to lines
    passes.py               from an order to a program: send, receive, gather, free, reduce
    simulate.py             when each action begins and ends, for given costs
    walk.py                 ranks that go through their lines on paper: the loop of the proofs below
    validate.py             a proof that a schedule computes a step
    ordering.py             a proof that no message waits forever where messages run in order, as NCCL's
    folded.py               `ordering` where streams share the hardware queues of a GPU

Running them

    run.py                  `plain.step` for any schedule, stages of any number, halves of backward, FSDP
    messages.py             activations forward, gradients backward: receive early, send at once
    channels.py             the process groups that a pipeline needs
    per_stage_sync.py       data parallelism for each stage
    stages.py               some of the layers of a model
    balance.py              cut layers into stages of equal cost
    split_backward.py       backward in two halves

Beside them

    answers/two_stages.py   two ranks without a schedule; what ranks in a row exchange at once
    answers/clock.py        a pipeline as a clock, and its bubble
    answers/orders.py       GPipe, 1F1B and interleaved for one rank, written out
    answers/held.py         how many activations a rank holds
    answers/throughput.py   how many samples a micro-batch should have
    answers/find_stall.py   which rank blocks a pipeline
    answers/reduction.py    where in a step replicas sum gradients
    answers/with_fsdp.py    a program that gathers, frees and reduces
    answers/tied.py         a table that lives at both ends
    lab/measure.py          a step that has happened, in the same form as one on paper
    lab/programs.py         programs that gather and free, run on paper
    lab/sleeping_stages.py  stages that sleep: what ranks do when, on any machine
"""
