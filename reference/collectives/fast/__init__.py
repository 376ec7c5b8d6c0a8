"""Speed on this machine: nothing here is needed to understand a collective, or to get the right sum.

| module   | what it adds                                                                        |
|----------|-------------------------------------------------------------------------------------|
| select   | one algorithm for each number of ranks and size, by thresholds measured on gloo      |
| dispatch | `Fastest`: those on a CPU, NCCL's own on a GPU; yields of the core around messages   |
"""
