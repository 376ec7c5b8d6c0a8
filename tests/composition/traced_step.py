"""A traced step of a plan, and what the formulas say of it: bytes of each rank, by the ranks that it sends them among.

Of many random plans, as `tests.parity.deal` deals them: `python -m tests.composition.traced_step --plans 150`. The exit
code is 1 if a plan differs.
"""

import argparse
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby

import torch
import torch.distributed as dist
from torch import Tensor

from reference.cluster import Cluster
from reference.collectives.communicator import Native
from reference.composition.lab.by_axis import bytes_by_group
from reference.composition.step_shape import StepShape
from reference.composition.traffic import traffic_per_step
from reference.expert_parallel.lab.watching import routes_in
from reference.trace import Trace
from reference.train import Training, summed

from ..data_parallel.traffic import cut
from ..parity.deal import Deal, dealt

Chosen = dict[int, Tensor]
"""Where the tokens of a rank go in a step, by the number of a block: [T, k]."""


def second_steps(deals: Sequence[Deal]) -> list[Chosen]:
    """Of each plan a step that tells shapes, and one that does not, with a barrier after each: what one rank chooses.

    Over the library's own collectives, which a trace counts as rings.
    """
    found = []
    for deal in deals:
        training = Training(deal.config, dist.group.WORLD, torch.device("cpu"), deal.plan, Native)
        if training.balancing:
            training.balancing.everyone = Native(dist.group.WORLD)
        take_step(training, 0)
        dist.barrier()
        with routes_in(training.model) as chosen:
            take_step(training, 1)
        dist.barrier()
        found.append({layer: torch.cat(of_micro_batches) for layer, of_micro_batches in chosen.items()})
    return found


def take_step(training: Training, step: int) -> None:
    """As the loop of `reference.train` does."""
    part = training.backward(step)
    training.update(step)
    summed(part, training.loss_group)


def traces_of(deals: Sequence[Deal], cluster: Cluster) -> Iterator[tuple[Trace, list[Chosen]]]:
    """Of each plan's second step the trace, and what each rank chose in it."""
    chosen, trace = cluster.trace(second_steps, deals)
    yield from zip(cut(trace)[1::2], map(list, zip(*chosen, strict=True)), strict=True)


def shape_of(deal: Deal, chosen: Sequence[Chosen] = ()) -> StepShape:
    """The step of a plan, in numbers."""
    model, plan = deal.config.model, deal.plan
    nothing = torch.empty(0, getattr(model, "top_k", 1), dtype=torch.int64)
    layers = {layer for of_rank in chosen for layer in of_rank}
    routes = {layer: [of_rank.get(layer, nothing) for of_rank in chosen] for layer in layers}
    windows = deal.config.batch // plan.dp_size(deal.ranks) // plan.micro_batches
    return StepShape(model, plan, deal.ranks, windows, deal.config.sequence, deal.config.precision, routes)


def told(shape: StepShape, rank: int) -> Counter[tuple[int, ...]]:
    """Bytes that the formulas say, by group."""
    found: Counter[tuple[int, ...]] = Counter()
    for one in traffic_per_step(shape, rank):
        found[one.group] += one.bytes
    return found


def differences(deal: Deal, trace: Trace, chosen: Sequence[Chosen]) -> list[str]:
    """What the formulas say otherwise than the trace, of any rank and any group: nothing."""
    shape, found = shape_of(deal, chosen), []
    for rank, sent in enumerate(bytes_by_group(trace)):
        expected = told(shape, rank)
        found += [
            f"rank {rank} among {group}: formula {expected[group]}, trace {sent[group]}"
            for group in expected | sent
            if expected[group] != sent[group]
        ]
    return found


def main() -> None:
    """Deal, run, and tell."""
    options = parsed()
    torch.set_num_threads(1)
    numbers = range(options.first, options.first + options.plans)
    deals = [dealt(number, options.ranks, options.layers, options.seed) for number in numbers]
    if options.exactly:
        deals = [deal for deal in deals if deal.ranks == options.ranks]
    deals.sort(key=lambda deal: deal.ranks)
    began, done, wrong = time.monotonic(), 0, 0
    for ranks, of_ranks in groupby(deals, key=lambda deal: deal.ranks):
        with Cluster(ranks, preload=("torch._dynamo",)) as cluster:
            for deal in of_ranks:
                ((trace, chosen),) = traces_of([deal], cluster)
                different = differences(deal, trace, chosen)
                done, wrong = done + 1, wrong + bool(different)
                if different:
                    print(f"\n{deal}\n  {len(different)} differ, such as {different[:4]}")
                print(
                    f"\r{done} of {len(deals)} plans, {wrong} differ; {time.monotonic() - began:.0f} s",
                    end="",
                    flush=True,
                )
    most = sum(deal.ranks == options.ranks for deal in deals)
    print(f"; {most} of them on {options.ranks} ranks")
    raise SystemExit(wrong > 0)


def parsed() -> argparse.Namespace:
    """What the command says."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.composition.traced_step", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--plans", type=int, default=150, help="how many")
    parser.add_argument("--first", type=int, default=0, help="number of the first")
    parser.add_argument("--ranks", type=int, default=8, help="of a plan, at most")
    parser.add_argument("--exactly", action="store_true", help="leave out plans of fewer ranks")
    parser.add_argument("--layers", type=int, default=8, help="of the model")
    parser.add_argument("--seed", type=int, default=0, help="of what is drawn")
    return parser.parse_args()


if __name__ == "__main__":
    main()
