"""Pipelines without a bubble: half of backward moves to where a rank would be idle; or there is no flush at all.

Read `plain.py`, then `orders.py`; for pipelines that never flush, `versions.py`, then `asynchronous.py`. Messages are
those of a pipeline. Orders differ in idle time and in activations; see each table.

| module          | orders                                                                                          |
|-----------------|-------------------------------------------------------------------------------------------------|
| orders          | zb_h1, zb_h2, zb_v, dual_pipe, dual_pipe_v: tables, as papers draw them                         |
| building_blocks | v_half, v_min, one_f_one_b_v: half, a third and two thirds of 1F1B's activations                |
| automatic       | automatic: the shortest step that is found for given costs and memory, one stage a rank or a V  |

    plain.py                a linear layer whose backward is in halves, and ZB-H1's order for one rank
    orders.py               the orders of papers as tables; the engine that runs them is `pipeline_parallel.run`
    building_blocks.py      as much memory as one chooses: one pattern, repeated
    automatic.py            a greedy scheduler, the best of a grid
    versions.py             which weights each forward and each backward sees without a flush
    weights.py              a stage's weights in as many versions as are in use
    pipemare.py             no versions are kept, and three remedies
    methods.py              four ways to train in a pipeline, as data
    asynchronous.py         a GPT in a pipeline that never flushes
    answers/orders.py       weight gradients placed where a rank would be idle
    answers/v.py            one micro-batch through a V
    answers/overlap.py      a forward and a backward in one, messages of each behind work of the other
    answers/versions.py     two versions, weight stashing and PipeMare for one stage with one weight
    lab/sleeping_pieces.py  what hides behind what, with pieces that sleep
    lab/convergence.py      what late gradients cost, on a small GPT
    lab/published.py        bubble rates that others have computed
"""
