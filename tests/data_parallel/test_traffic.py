"""Each form sends what the formula says, when it says so, in one order on all ranks."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from reference.cluster import Cluster
from reference.data_parallel.buckets import in_order_of_use
from reference.data_parallel.replicated import DistributedDataParallel
from reference.memory.precision import PRECISIONS
from reference.trace import Event, Op
from reference.zero import cost

from .conftest import MOST, in_group, members
from .traffic import Traffic, between, sent, steps
from .training import BUCKET, FORMS, UNTIED, Case, Language, TwoLayers


def units(name: str, precision: str) -> list[int]:
    """Elements of what travels together in each form."""
    parameters = list(Language().model(PRECISIONS[precision].master).parameters())
    each = [parameter.numel() for parameter in parameters]
    by_bucket = [sum(p.numel() for p in bucket) for bucket in in_order_of_use(parameters, BUCKET)]
    whole = [sum(each)]
    return {"naive": each, "flat": whole, "DDP": by_bucket, "DDP, one bucket": whole, "DDP, a bucket each": each}[name]


@pytest.mark.turns(2)
@pytest.mark.parametrize("n", range(1, MOST + 1))
def test_each_form_sends_what_the_formula_says(ranks: Cluster, n: int) -> None:
    """In one or more micro-batches, since nothing is sent before the last; in the dtype of gradients."""
    precision, size = (("bf16", 4), ("fp64", 8))[n % 2]
    common = {"micro_batches": 1 + n % 3, "precision": precision, "steps": 1}
    cases = [Case(name, make, **common) for name, make in FORMS.items()]
    found = sent(ranks, n, cases)
    for case in cases:
        costs = [cost.ddp(units(case.name, case.precision), n, rank) for rank in range(n)]
        calls = len(units(case.name, case.precision)) if n > 1 else 0  # one rank has no other to tell
        assert found[str(case)] == Traffic(calls, [0] * n, [each.bytes_sent(0, size) for each in costs]), str(case)


@pytest.mark.parametrize("n", [2, 4])
def test_where_n_divides_it_is_two_n_minus_one_over_n(ranks: Cluster, n: int) -> None:
    """1740 parameters of four bytes."""
    case = Case("flat", FORMS["flat"], precision="fp32", steps=1)
    assert UNTIED.parameters == 1740
    assert sent(ranks, n, [case])[str(case)].bytes == [2 * 1740 * 4 * (n - 1) // n] * n


def test_counted_by_hand(ranks: Cluster) -> None:
    """Four ranks cut 26 elements into 7, 7, 6 and 6, and leave out two of them, one on the way up and one down."""
    case = Case("flat", FORMS["flat"], TwoLayers(), precision="fp32", steps=1)
    up_and_down = [(6 + 6 + 7, 7 + 6 + 6), (7 + 6 + 6, 7 + 7 + 6), (7 + 7 + 6, 6 + 7 + 7), (6 + 7 + 7, 6 + 6 + 7)]
    assert sent(ranks, 4, [case])[str(case)].bytes == [4 * sum(both) for both in up_and_down] == [152, 156, 160, 156]


@pytest.mark.parametrize("name", FORMS)
def test_nothing_is_sent_before_the_last_micro_batch(ranks: Cluster, name: str) -> None:
    case = Case(name, FORMS[name], micro_batches=3, steps=1)
    _, trace = ranks.trace(in_group, 2, steps, case, True)
    for rank in members(2):
        first, second, _ = between(trace.events[rank])
        assert first == second == ()
        assert sum(event.bytes for event in trace.events[rank]) == 8 * UNTIED.parameters


def until_the_first_layer(group: ProcessGroup, case: Case) -> None:
    """A step with a barrier where backward comes to the first layer: it still has to compute that one's gradient."""
    marked = partial(with_mark, case.make)
    steps(group, Case(case.name, marked, case.task, steps=1))


def with_mark(make: Callable, model: nn.Module, group: ProcessGroup, **options: object) -> object:
    def arrived(gradient: Tensor) -> None:
        dist.barrier(group)

    def passed(module: nn.Module, inputs: object, output: Tensor) -> None:
        output.register_hook(arrived)

    model.embedding.register_forward_hook(passed)
    return make(model, group, **options)


def before_and_after(events: tuple[Event, ...]) -> tuple[int, int]:
    """Elements that were launched before the barrier and after it."""
    at = next(i for i, event in enumerate(events) if event.op is Op.BARRIER)
    return tuple(sum(event.bytes for event in part) // 8 for part in (events[:at], events[at:]))


@pytest.mark.parametrize(
    ("name", "before"),
    [("naive", 0), ("flat", 0), ("DDP, one bucket", 0), ("DDP, a bucket each", 1740 - 17 * 12)],
)
def test_buckets_leave_while_backward_computes(ranks: Cluster, name: str, before: int) -> None:
    """A bucket for each parameter: all but the embedding's have left when backward comes to the embedding."""
    _, trace = ranks.trace(in_group, 2, until_the_first_layer, Case(name, FORMS[name]))
    assert [before_and_after(trace.events[rank]) for rank in members(2)] == [(before, 1740 - before)] * 2


class Fork(nn.Module):
    """Two layers side by side; backward goes first through the one that forward used last."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(3, 2, bias=False), nn.Linear(3, 5, bias=False)

    def forward(self, x: Tensor, turned: bool) -> Tensor:
        """[B, 3] -> a scalar."""
        layers = (self.other, self.one) if turned else (self.one, self.other)
        return torch.stack([layer(x).sum() for layer in layers]).sum()


def in_another_order_on_each_rank(group: ProcessGroup) -> tuple[list[str], list[float]]:
    """In which order the layers' gradients came, and their sums over ranks."""
    rank, model, order = dist.get_rank(group), Fork(), []
    for name, layer in model.named_children():
        layer.weight.register_post_accumulate_grad_hook(lambda parameter, name=name: order.append(name))
    form = DistributedDataParallel(model, group, bucket_bytes=0)
    with form.micro_batch(last=True):
        model(torch.full((1, 3), rank + 1.0), turned=rank % 2 == 1).backward()
    form.reduce_gradients()
    return order, [part.master.grad.sum().item() for part in form.parts]


def test_all_ranks_launch_in_one_order_whichever_they_finish_in(ranks: Cluster) -> None:
    results, trace = ranks.trace(in_group, 2, in_another_order_on_each_rank)
    (first, sums), (second, _) = (results[rank] for rank in members(2))
    assert first == ["other", "one"] and second == ["one", "other"]
    assert sums == [3 * (1 + 2) * 2, 3 * (1 + 2) * 5]
    assert [[event.shape for event in trace.events[rank]] for rank in members(2)] == [[(15,), (6,)]] * 2
