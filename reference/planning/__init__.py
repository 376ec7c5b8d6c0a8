"""Planning: what a plan costs before it is paid for, from a laptop to 131,072 GPUs.

Read `plain.py`, then `step.py` and what it is made of: `work.py`, `traffic.py`, `memory.py`. A prediction is arithmetic
on columns: one layout and a million are one code, and a million cost less than a second of one core.

    plain.py       what a step costs on the back of an envelope
    hardware.py    GPUs and clusters
    job.py         what is to be trained, and on what
    layouts.py     how ranks may share the work: many layouts at once, in columns
    work.py        what one rank computes for one micro-batch, counted
    stages.py      how layers make stages of a pipeline
    traffic.py     what it sends along each axis
    memory.py      what the fullest rank holds
    step.py        seconds of a step, by part
    constants.py   how far each kind of GPU stays behind its data sheet
    predict.py     all of it together
    refusals.py    what must divide, and what stands against a layout
    search.py      all layouts of a job, and the fastest that fit
    rules.py       rules of thumb as a list of decisions, and what each loses
    plans.py       a layout as a `Plan`, and back
    rows.py        predictions for rows of a file
    published.py   steps that were published, as such rows
    fit.py         constants from those that are for fitting
    accuracy.py    how well all of them are met

What a step's seconds become in a training of weeks, and what a budget buys:

    failures.py     how often GPUs fail, as published
    stragglers.py   the slowest of many ranks
    goodput.py      the part of the time that is left, and the best interval between checkpoints
    budget.py       GPU-hours, days, money, energy
    scaling_law.py  the best model for a budget of FLOPs

    lab/random_failures.py      a training whose GPUs fail at random, event after event
    answers/interval.py         how often to write a checkpoint
    answers/useful_time.py      goodput of n GPUs
    answers/compute_optimal.py  parameters and tokens for a budget
    answers/flops.py          FLOPs that a step needs
    answers/utilisation.py    MFU and HFU of a run
    answers/roofline.py       how long a product takes, by its shape
    answers/hiding.py         from where on each kind of parallelism computes for longer than it sends
    answers/fullest.py        memory of a pipeline's fullest rank
    answers/granularity.py    what activations take, by what is made again
    answers/stages.py         how many micro-batches each stage has room for
    answers/experts.py        what a layer of experts takes on a rank
    answers/fitting.py        the cheapest change that makes a model fit
    answers/micro_batches.py  the micro-batch that makes a step shortest
    answers/thumb.py          the field's rule of thumb, and its price
    answers/columns.py        the best of many plans at once

Counted and simulated, one layout at a time:

    counted.py     costs of any plan, by running the code that trains on meta tensors
    meter.py       FLOPs, bytes and messages of what runs inside
    one_rank.py    one rank of any number, alone
    simulated.py   a step action by action: stages that differ, messages, uneven experts
    local.py       steps on this machine, from rates that are measured once
    bubbles.py     what schedules wait for and hold, in closed form
"""
