"""A job for Ray: one torchrun on each of several nodes, as many ranks on each.

    ray job submit --working-dir . -- python docs/machines/ray_job.py --nodes 2 --ranks-per-node 2 -m reference.train

Ray chooses the nodes and tells this program when it has them: a placement group of one bundle for each node, all on
different ones (STRICT_SPREAD). The rest is torchrun's. What follows the options is handed on to it.
"""

import argparse
import socket
import subprocess
import sys

import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy


@ray.remote
def meeting_point() -> tuple[str, int]:
    """An address of the first node, and a port that is free there."""
    with socket.socket() as found:
        found.bind(("", 0))
        return ray.util.get_node_ip_address(), found.getsockname()[1]


@ray.remote(max_retries=0)
def torchrun(arguments: list[str]) -> int:
    """Run it on the node that this task is on. Returns its exit code."""
    return subprocess.call([sys.executable, "-m", "torch.distributed.run", *arguments])


def main() -> int:
    """Returns 0, or the exit code of a torchrun that has failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--ranks-per-node", type=int, default=2)
    parser.add_argument("--gpus", action="store_true", help="a GPU for each rank")
    options, command = parser.parse_known_args()
    ray.init()
    each = {"CPU": options.ranks_per_node} | ({"GPU": options.ranks_per_node} if options.gpus else {})
    group = placement_group([each] * options.nodes, strategy="STRICT_SPREAD")
    ray.get(group.ready())

    def on(node: int) -> dict:
        strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=node)
        return {"scheduling_strategy": strategy, "num_cpus": each["CPU"], "num_gpus": each.get("GPU", 0)}

    address, port = ray.get(meeting_point.options(**on(0)).remote())
    shared = [f"--nnodes={options.nodes}", f"--nproc-per-node={options.ranks_per_node}"]
    shared += [f"--master-addr={address}", f"--master-port={port}"]
    runs = [torchrun.options(**on(k)).remote([*shared, f"--node-rank={k}", *command]) for k in range(options.nodes)]
    return max(ray.get(runs), key=abs)


if __name__ == "__main__":
    sys.exit(main())
