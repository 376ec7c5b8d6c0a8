"""Composition: several kinds of parallelism on one set of ranks, and which of them goes where.

Read `plain.py`, then `traffic.py`. Making the groups costs a few messages for each; what a step of any plan costs along
which axis is what `traffic.py` counts. The engine is `reference.parallelize`; `reference.mesh` is `plain.py` with names
for the axes.

    plain.py                ranks in a box: coordinates, the groups along axes, a sum along them
    traffic.py              what each rank sends along each axis in one step, before a byte is sent
    traffic_of_activations.py  what of it travels in each micro-batch
    traffic_of_gradients.py    what of it forms of data parallelism, and specs, make travel
    step_shape.py           a step of a plan in numbers, and the ranks along its axes
    ptd_p.py                how to split n GPUs into p · t · d, and what a step costs then
    answers/best_order.py   axes in the order in which a cluster's links take least time for them
    answers/best_split.py   the fastest split that fits into memory
    answers/axis_bytes.py   what a rank sends along each axis, for the back of an envelope
    answers/folding.py      a rank's place and groups where experts see the ranks in another way
    answers/missing_sum.py  what is wrong with a sum, from the digits that a dyed step leaves
    answers/plan_bytes.py   what a rank keeps under a plan, experts and ZeRO included
    answers/read_axes.py    the mesh of a run, from what its ranks have sent
    answers/whole_norm.py   the norm of a model of which each rank has parts, each element counted once
    answers/whose_sums.py   ranks whose gradients, losses and windows belong together
    lab/dyed_step.py        a small program with dyed parts, which takes faults, and its ledger
    lab/by_axis.py          bytes of a real run, by axis and by group
    lab/reorder.py          the same run with the axes of its mesh in another order
    lab/published.py        what the paper has measured on Selene
    lab/published_layouts.py   layouts of Llama 3, DeepSeek-V3 and others, and what their axes say in a step
"""
