"""What is written out plainly to learn by is the same as what runs and simulates pipelines."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from reference.pipeline_parallel.balance import balance
from reference.pipeline_parallel.stages import balanced


@given(st.lists(st.integers(1, 20), min_size=1, max_size=12), st.data())
def test_a_limit_finds_as_good_a_cut_as_all_sums(costs: list[int], data: st.DataObject) -> None:
    stages = data.draw(st.integers(1, len(costs)))
    layers = balance(costs, stages)
    assert len(layers) == stages and min(layers) > 0 and sum(layers) == len(costs)
    ends = [sum(layers[:stage]) for stage in range(stages + 1)]
    pieces = [range(begin, end) for begin, end in itertools.pairwise(ends)]
    assert dearest(costs, pieces) == dearest(costs, balanced(costs, stages))


def dearest(costs: list[int], pieces: list[range]) -> int:
    return max(sum(costs[layer] for layer in piece) for piece in pieces)
