"""Planning: what a plan costs before it is paid for, from a laptop to 131,072 GPUs.

Read `plain.py`, then `step.py` and what it is made of: `work.py`, `traffic.py`, `memory.py`. A prediction is arithmetic
on columns: one layout and a million are one code, and a million cost less than a second of one core.

    plain.py       what a step costs on the back of an envelope
    hardware.py    GPUs and clusters
    job.py         what is to be trained, and on what
    layouts.py     how ranks may share the work: many layouts at once, in columns
    work.py        what one rank computes for one micro-batch, counted
    traffic.py     what it sends along each axis
    memory.py      what the fullest rank holds
    step.py        seconds of a step, by part
    constants.py   how far each kind of GPU stays behind its data sheet
    predict.py     all of it together

Counted and simulated, one layout at a time

    counted.py     costs of any plan, by running the code that trains on meta tensors
    meter.py       FLOPs, bytes and messages of what runs inside
    one_rank.py    one rank of any number, alone
    simulated.py   a step action by action: stages that differ, messages, uneven experts
    bubbles.py     what schedules wait for and hold, in closed form
"""
