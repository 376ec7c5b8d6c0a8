"""Buckets are filled by backward, launched in order, and empty again afterwards."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from reference.data_parallel.buckets import Bucket, Buckets, in_order_of_use

A, B, C = range(3)


class Three(nn.Module):
    """Parameters a, b and c, of which each may be left out."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Parameter(torch.full((size,), float(size))) for size in (1, 2, 3))

    def forward(self, *used: int) -> Tensor:
        """The sum of the squares of some of them; backward goes from the last of them to the first."""
        total = torch.zeros(())
        for index in used:
            total = total + list(self.parameters())[index].square().sum()
        return total


def watched(model: Three, dtype: torch.dtype = torch.float32) -> tuple[Buckets, list[list[float]]]:
    """Buckets [c] and [b, a] of a model, and what each held when it was launched."""
    launched: list[list[float]] = []
    buckets = [Bucket([model.c], dtype, shards=2), Bucket([model.b, model.a], dtype, shards=2)]
    return Buckets(buckets, lambda bucket: launched.append(bucket.complete().tolist())), launched


def test_each_leaves_when_it_is_full() -> None:
    model = Three()
    buckets, launched = watched(model)
    buckets.expect()
    model(A).backward()
    assert launched == []  # [b, a] is half full, and [c] comes before it
    model(C).backward()
    assert launched == [[6, 6, 6, 0]]
    model(B).backward()
    assert launched == [[6, 6, 6, 0], [4, 4, 2, 0]]
    buckets.flush(last=True)
    assert len(launched) == 2


def test_none_leaves_before_those_in_front_of_it() -> None:
    model = Three()
    buckets, launched = watched(model)
    buckets.expect()
    model(A, B).backward()
    assert launched == []
    model(C).backward()
    assert [len(flat) for flat in launched] == [4, 4]


def test_nothing_leaves_before_it_is_expected_to() -> None:
    """Gradients of earlier micro-batches add up, in the dtype of the buckets."""
    model = Three().bfloat16()
    buckets, launched = watched(model, torch.float64)
    for _ in range(2):
        model(A, B, C).backward()
    assert launched == []
    buckets.expect()
    model(A, B, C).backward()
    assert launched == [[18, 18, 18, 0], [12, 12, 6, 0]]
    assert all(parameter.grad is None for parameter in model.parameters())


def test_what_was_not_used_is_zero() -> None:
    model = Three()
    buckets, launched = watched(model)
    buckets.expect()
    model(B).backward()
    buckets.flush(last=True)
    assert launched == [[0, 0, 0, 0], [4, 4, 0, 0]]


def test_what_is_closed_does_not_wait_for_what_is_missing() -> None:
    model = Three()
    buckets, launched = watched(model)
    buckets.expect()
    buckets.close([buckets.buckets[1]])
    assert launched == []
    buckets.close([buckets.buckets[0]])
    assert launched == [[0, 0, 0, 0], [0, 0, 0, 0]]


def test_a_gradient_after_its_bucket_has_left_is_an_error() -> None:
    model = Three()
    buckets, _ = watched(model)
    buckets.expect()
    model(C).backward()
    with pytest.raises(RuntimeError, match="a second backward in the last micro-batch"):
        model(C).backward()


def test_the_next_step_begins_with_nothing() -> None:
    model = Three()
    buckets, launched = watched(model)
    for _ in range(2):
        buckets.expect()
        model(A, B, C).backward()
        buckets.flush(last=True)
        for bucket in buckets.buckets:
            bucket.release()
            assert bucket.flat is None
        buckets.forget()
    assert launched[:2] == launched[2:]


def test_what_was_there_before_is_not_added() -> None:
    model = Three()
    model(C).backward()
    buckets, launched = watched(model)
    buckets.expect()
    model(A, B, C).backward()
    assert launched == [[6, 6, 6, 0], [4, 4, 2, 0]]


def test_a_gradient_goes_into_the_buckets_of_one_form() -> None:
    model = Three()
    first, second = watched(model), watched(model)
    with pytest.raises(RuntimeError, match="another form has taken this gradient"):
        model(A).backward()
    assert first[1] == second[1] == []


def test_no_parameters_make_no_buckets() -> None:
    assert in_order_of_use([], 100) == []


sizes = st.lists(st.integers(1, 40), min_size=1, max_size=12)


@given(sizes, st.integers(0, 200))
def test_buckets_are_filled_from_the_last_parameter_to_the_first(sizes: list[int], limit: int) -> None:
    parameters = [nn.Parameter(torch.empty(size)) for size in sizes]
    plan = in_order_of_use(parameters, limit)
    assert [id(parameter) for bucket in plan for parameter in bucket] == [id(p) for p in reversed(parameters)]
    filled = [sum(parameter.nbytes for parameter in bucket) for bucket in plan]
    assert all(size <= limit or len(bucket) == 1 for size, bucket in zip(filled, plan, strict=True))
    following = [bucket[0].nbytes for bucket in plan[1:]]
    assert all(size + more > limit for size, more in zip(filled, following, strict=False))  # no bucket ends too early
