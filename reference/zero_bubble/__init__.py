"""Pipelines without a bubble: half of backward moves to where a rank would be idle; or there is no flush at all.

| module          | orders                                                                                          |
|-----------------|-------------------------------------------------------------------------------------------------|
| orders          | zb_h1, zb_h2, zb_v, dual_pipe, dual_pipe_v: tables, as papers draw them                         |
| building_blocks | v_half, v_min, one_f_one_b_v: half, a third and two thirds of 1F1B's activations                |
| automatic       | automatic: the shortest step that is found for given costs and memory, one stage a rank or a V  |

`published.py` has the numbers of others that these are held against. Pipelines that never flush are in
`asynchronous.py`, which weights they see in `versions.py`, `weights.py`, `methods.py` and `pipemare.py`.
"""
