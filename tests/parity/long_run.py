"""Run many random plans, each against one process: `python -m tests.parity.long_run --plans 200`.

For longer than tests may take, and on more ranks. Plans are run by their number of ranks, so that ranks stay warm. The
exit code is 1 if a plan differs.
"""

import argparse
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby

import torch

from reference.cluster import Cluster, RankError

from .deal import PRECISIONS, Deal, bound_of, dealt, differences

IMPORTS = ("torch._dynamo",)  # which optimizers import: once, not once on each rank


def main() -> None:
    """Deal, run, and tell."""
    options = parsed()
    torch.set_num_threads(1)
    deals = [
        dealt(number, options.ranks, options.layers, options.seed, options.precision) for number in range(options.plans)
    ]
    began, wrong, worst = time.monotonic(), 0, (0.0, "nothing")
    for done, (number, largest, what) in enumerate(results(deals), 1):
        if largest < bound_of(deals[number]):
            worst = max(worst, (largest, f"{what} of plan {number}"))
        else:
            wrong += 1
            print(f"\nplan {number} differs: {what}\n{deals[number]}", flush=True)
        print(f"\r{done} of {len(deals)} plans run, {wrong} differ", end="", flush=True)
    print(f" from one process; at most, of the others: {worst[1]}; {time.monotonic() - began:.0f} s")
    print(summary(deals))
    raise SystemExit(wrong > 0)


def parsed() -> argparse.Namespace:
    """What the command says."""
    parser = argparse.ArgumentParser(prog="python -m tests.parity.long_run", description=__doc__.splitlines()[0])
    parser.add_argument("--plans", type=int, default=200, help="how many")
    parser.add_argument("--ranks", type=int, default=16, help="of a plan, at most")
    parser.add_argument("--layers", type=int, default=16, help="of the model")
    parser.add_argument("--seed", type=int, default=0, help="of what is drawn")
    parser.add_argument("--precision", choices=list(PRECISIONS), default="fp64", help="in which all compute")
    return parser.parse_args()


def results(deals: Sequence[Deal]) -> Iterator[tuple[int, float, str]]:
    """Number, largest difference and what differs, of each plan, in the order of their ranks."""
    in_order = sorted(range(len(deals)), key=lambda number: deals[number].ranks)
    for ranks, numbers in groupby(in_order, key=lambda number: deals[number].ranks):
        with Cluster(ranks, preload=IMPORTS) as cluster:
            for number in numbers:
                try:
                    found = differences(deals[number], cluster)
                    name = max(found, key=found.__getitem__)
                    yield number, found[name], f"{name} by {found[name]:.0e}"
                except RankError as error:
                    yield number, float("inf"), str(error)


def summary(deals: Sequence[Deal]) -> str:
    """What has been dealt."""
    forms, orders = (Counter(getattr(deal.plan, field) for deal in deals) for field in ("data_parallel", "schedule"))
    ranks = Counter(deal.ranks for deal in deals)
    return (
        f"{len(forms)} forms of data parallelism, {len(orders)} schedules, "
        f"{min(ranks)} to {max(ranks)} ranks, of which {ranks[max(ranks)]} plans on {max(ranks)}"
    )


if __name__ == "__main__":
    main()
