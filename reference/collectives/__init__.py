"""Every collective, by hand, from send and receive.

One module for each collective, one function for each algorithm, named as in its paper: `all_reduce.ring`,
`broadcast.tree`. Each takes its tensors first and the `ProcessGroup` as an argument: `dist.group.WORLD` for all ranks,
never None. Roots and peers are group ranks.
They run on gloo and on NCCL, with any number of ranks and any length. The paths that they go along are in
`binomial.py`, `double_tree.py` and `hypercube.py`; `reduction.py` adds, `checks.py` says what arguments must be, and
`done.py` is the request of what is done already.

| read       | module         | algorithms                                                                         |
|------------|----------------|------------------------------------------------------------------------------------|
| first      | exchange       | the step that they are all made of: send to one rank while receiving from another  |
|            | chunks         | how n ranks divide a tensor                                                        |
| one root   | broadcast      | naive, flat, tree, chain, scatter_all_gather                                       |
|            | reduce         | naive, tree                                                                        |
|            | scatter        | naive, tree                                                                        |
|            | gather         | naive, tree                                                                        |
| all ranks  | all_gather     | ring, recursive_doubling, bruck                                                    |
|            | reduce_scatter | ring, recursive_halving                                                            |
|            | all_reduce     | naive, ring, recursive_doubling, halving_doubling, double_binary_tree, hierarchical |
|            | all_to_all     | pairwise, spread_out, bruck, hypercube, uneven                                     |
|            | barrier        | dissemination                                                                      |
| shapes     | binomial       | the tree of broadcast, reduce, scatter and gather                                  |
|            | hypercube      | which rank swaps with which in doubling and halving, for any n                     |
|            | double_tree    | two trees in which each rank is a leaf once                                        |
| then       | cost           | steps and bytes of each algorithm, for each rank                                   |
|            | differentiable | the gradient of each collective, which is a collective                             |
|            | communicator   | what strategies talk through: native, by hand, or one of one's own                 |
|            | default        | the communicator that a plain process group stands for                             |
|            | relay          | a communicator through which everything passes to another one                      |
| details    | reduction      | what a reduction does to two tensors                                               |
|            | checks         | what is wrong with a call, said before its first message                           |
| in torch   | backend        | all of these under PyTorch's own DDP, FSDP and pipelining                          |
|            | done           | what such a call leaves: results, and a request that is done                       |
|            | mpi            | the same over MPI, for ranks that mpiexec has started                              |
|            | compat         | torch's names for its own, in all of its versions; where tensors must be           |
| speed      | fast           | the same on one machine, faster: blocks, eager receives, thresholds (`fast`)       |
"""
