"""What a course's `conftest.py` is: its kernels talk over sockets that have names, not numbers.

A port is chosen before the kernel starts, and bound when it has started: by then another kernel, or a rank, may have
taken it, and the kernel dies without a word. Names in a folder of one's own are no other's.
"""

import tempfile
from functools import partial

from jupyter_client.manager import KernelManager
from nbval import kernel

folder = tempfile.TemporaryDirectory()  # gone when Python ends; a socket's whole path has room for 107 characters
kernel.KernelManager = partial(KernelManager, transport="ipc", ip=f"{folder.name}/kernel")
