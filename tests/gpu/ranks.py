"""One rank of the tests on GPUs: runs checks and writes a line of JSON for each, as it goes.

python ranks.py RANK WORLD_SIZE DEVICE BACKEND STORE REPORT START [CHECK ...]
"""

import gc
import json
import os
import resource
import sys
import traceback
from datetime import timedelta

import torch
import torch.distributed as dist
from checks import CHECKS, names_for
from torch.distributed import distributed_c10d as c10d

from reference.process_group import drop

PATIENCE = timedelta(seconds=90)


def main(rank: int, world_size: int, device: str, kind: str, store: str, report: str, start: str, *only: str) -> None:
    """Join the world, run the checks."""
    allow_files()
    on_gpu = device.startswith("cuda")
    if on_gpu:
        torch.cuda.set_device(device)
    place = {"store": dist.FileStore(store, world_size), "rank": rank, "world_size": world_size, "timeout": PATIENCE}
    if start == "eager":
        dist.init_process_group(kind, device_id=torch.device(device) if on_gpu else None, **place)
    else:
        dist.init_process_group(f"cpu:gloo,cuda:{kind}", **place)
    with open(report, "w", buffering=1) as lines:
        for name in only or names_for(world_size, start):
            failed = False
            try:
                found = CHECKS[name](dist.group.WORLD, device.partition(":")[0])
                drop_groups()
            except Exception:
                found, failed = [traceback.format_exc()], True
            print(json.dumps({name: found}), file=lines)
            if failed and world_size > 1:  # ranks may no longer agree on what comes next, nor on what NCCL waits for
                sys.stdout.flush()
                os._exit(1)
    dist.destroy_process_group()


def allow_files() -> None:
    """As many as the machine lets a process have open: NCCL takes 10 to 20 for each communicator over sockets."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def drop_groups() -> None:
    """End the groups that a check has made, in the order in which they were made, which is one for all ranks."""
    gc.collect()  # forms and their hooks hold each other, and groups
    for group in [group for group in c10d._world.pg_map if group is not dist.group.WORLD]:
        drop(group)


if __name__ == "__main__":
    _, rank, world_size, *rest = sys.argv
    main(int(rank), int(world_size), *rest)
