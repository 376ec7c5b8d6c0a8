"""Every collective, by hand, from send and receive.

One module for each collective, one function for each algorithm, named as in its paper: `all_reduce.ring`,
`broadcast.tree`. Each takes its tensors first and the `ProcessGroup` as an argument: `dist.group.WORLD` for all ranks,
never None. Roots and peers are group ranks.
They run on gloo and on NCCL, with any number of ranks and any length. The paths that they go along are in
`binomial.py`, `double_tree.py` and `hypercube.py`; `reduction.py` adds, `checks.py` says what arguments must be, and
`done.py` is the request of what is done already.

| module         | algorithms                                                                                |
|----------------|-------------------------------------------------------------------------------------------|
| broadcast      | naive, flat, tree, chain, eager_chain, scatter_all_gather                                 |
| reduce         | naive, tree                                                                               |
| scatter        | naive, tree                                                                               |
| gather         | naive, tree                                                                               |
| all_gather     | ring, recursive_doubling, bruck                                                           |
| reduce_scatter | ring, recursive_halving                                                                   |
| all_reduce     | naive, ring, blockwise_ring, recursive_doubling, eager_doubling, halving_doubling,        |
|                | double_binary_tree, hierarchical                                                          |
| all_to_all     | pairwise, spread_out, bruck, hypercube, uneven                                            |
| barrier        | dissemination                                                                             |

`exchange.py` is the step they are all made of, `chunks.py` says how n ranks divide a tensor. `cost.py` says what each
costs, `best.py` picks one for a size, `differentiable.py` lets gradients through, and `backend.py` puts them under
PyTorch's own DDP, FSDP and pipelining. `native.py` names torch's own, `begin.py` lets those go on while a rank
computes, and `fastest.py` takes ours between processes of one machine and theirs between GPUs.
"""
