"""torch's own all-gather and reduce-scatter of one flat tensor, under the names that torch 2.13 gives them.

torch 2.11 and 2.12 call them `all_gather_into_tensor` and `reduce_scatter_tensor`; 2.13 still does, with a warning.
"""

import torch.distributed as dist

if hasattr(dist, "all_gather_single"):
    all_gather_single, reduce_scatter_single = dist.all_gather_single, dist.reduce_scatter_single
else:
    all_gather_single, reduce_scatter_single = dist.all_gather_into_tensor, dist.reduce_scatter_tensor
