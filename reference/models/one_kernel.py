"""Chains of elementwise operations that run as one kernel on a GPU.

Each operation of torch goes through memory: it reads its inputs and writes its output, and on a GPU that is all that
it costs. A chain of k of them moves about k times what its inputs and outputs are. `torch.compile` makes one kernel of
a chain. On a CPU the functions run as they are written; `tests/gpu/expected.py` has the bytes of both.
"""

import warnings
from collections.abc import Callable
from functools import cache, wraps

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

VERSIONS = 64
"""Of one chain: for each dtype, with gradients and without, under autocast and not. torch gives up after 8."""


def one_kernel(chain: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Make one kernel of a function wherever its first argument is on a GPU.

    Where no compiler is at hand, the function runs as it is written, after one warning: the same numbers, more slowly.

    Args:
        chain: of elementwise operations, from tensors and numbers to a tensor.
    """
    fails = False

    @wraps(chain)
    def run(first: Tensor, *others: Tensor | int) -> Tensor:
        nonlocal fails
        if fails or not compiles(first):
            return chain(first, *others)
        try:
            return compiled(chain)(first, *others)
        except Exception as error:  # whatever a compiler that is not whole may raise
            fails = True
            result = chain(first, *others)  # a mistake of the caller is raised here, as it is
            reason = str(error).strip().partition("\n")[0]
            warnings.warn(
                f"{chain.__name__} runs as several kernels: it cannot be compiled here ({reason})", stacklevel=2
            )
            return result

    return run


def compiles(x: Tensor) -> bool:
    """Whether what begins with this tensor is worth a kernel of its own: not where each operation is watched."""
    return x.is_cuda and not _get_current_dispatch_mode_stack()


@cache
def compiled(chain: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Compiled once for tensors of all lengths. The numbers among the arguments are constants of the kernel."""
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, VERSIONS)
    return torch.compile(chain, dynamic=True, fullgraph=True)
