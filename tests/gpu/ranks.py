"""One rank of the tests on GPUs: runs every check and writes a line of JSON for each, as it goes.

python ranks.py RANK WORLD_SIZE DEVICE BACKEND STORE REPORT
"""

import json
import sys
import traceback
from datetime import timedelta

import torch
import torch.distributed as dist
from checks import ALONE, CHECKS


def main(rank: int, world_size: int, device: str, kind: str, store: str, report: str) -> None:
    """Join the world, run the checks."""
    if device.startswith("cuda"):
        torch.cuda.set_device(device)
    dist.init_process_group(
        kind,
        store=dist.FileStore(store, world_size),
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=90),
        device_id=torch.device(device) if device.startswith("cuda") else None,
    )
    with open(report, "w", buffering=1) as lines:
        for name, check in (ALONE if world_size == 1 else CHECKS).items():
            try:
                found = check(dist.group.WORLD, device.partition(":")[0])
            except Exception:
                found = [traceback.format_exc()]
            print(json.dumps({name: found}), file=lines)
            if found:
                break  # after a failure ranks may no longer agree on what comes next
    dist.destroy_process_group()


if __name__ == "__main__":
    _, rank, world_size, *rest = sys.argv
    main(int(rank), int(world_size), *rest)
