"""Speed on this machine: nothing here is needed to understand a collective, or to get the right sum.

| module    | what it adds                                                                           |
|-----------|----------------------------------------------------------------------------------------|
| eager     | all receives before the first send: a step costs one way instead of two                |
| blockwise | a ring all-reduce in blocks that stay in the cache, two at a time                      |
| select    | one algorithm for each number of ranks and size, by thresholds that were measured      |
| dispatch  | `Fastest`: those on a CPU, NCCL's own on a GPU; yields of the core around what is said |
"""
