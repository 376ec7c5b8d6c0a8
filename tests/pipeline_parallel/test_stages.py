"""Layers are cut so that the most expensive stage costs as little as can be, and stages together are the model."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reference.errors import BadInput
from reference.models import GPT, PRESETS, GPTConfig, create
from reference.pipeline_parallel.balance import balanced
from reference.pipeline_parallel.orders import gpipe
from reference.pipeline_parallel.stages import TiedTable, pieces_of, stage_of, stages_of


@given(st.lists(st.integers(1, 9), min_size=1, max_size=9), st.data())
def test_no_other_cut_is_better(costs: list[int], data: st.DataObject) -> None:
    stages = data.draw(st.integers(1, len(costs)))
    found = balanced(costs, stages)
    assert [layer for piece in found for layer in piece] == list(range(len(costs)))
    assert len(found) == stages and all(found)
    best = min(
        max(sum(costs[begin:end]) for begin, end in itertools.pairwise((0, *cuts, len(costs))))
        for cuts in itertools.combinations(range(1, len(costs)), stages - 1)
    )
    assert max(sum(costs[layer] for layer in piece) for piece in found) == best


def test_an_expensive_last_layer_gets_a_stage_with_less_besides() -> None:
    assert balanced([1, 1, 1, 1, 1, 3], 3)[-1] == range(5, 6)
    assert balanced([1, 1, 1, 1, 1, 1], 3)[-1] == range(4, 6)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("stages", [1, 4, 7, 11, 16])
def test_a_stage_costs_as_much_as_its_matrices(stages: int, tied: bool) -> None:
    """Every matrix multiplies once for each token, a tied table as the head alone; the embedding only looks up."""
    config = GPTConfig(16, 2048, 32, 8, 8192, vocabulary=128_256, tied=tied)  # as Llama 3.2 1B
    with torch.device("meta"):
        blocks, head = GPT(config).blocks, config.vocabulary * config.width
    costs = [sum(p.numel() for p in block.parameters()) for block in blocks]
    assert pieces_of(config, stages) == balanced([*costs[:-1], costs[-1] + head], stages)


@pytest.mark.parametrize("stages", [0, 4])
def test_more_stages_than_layers_are_refused(stages: int) -> None:
    with pytest.raises(BadInput, match=f"3 layers make 1 to 3 stages, not {stages}"):
        balanced([1, 1, 1], stages)


@pytest.mark.parametrize("cost", [0, -1, 1.5])
def test_costs_are_whole_numbers(cost: float) -> None:
    with pytest.raises(BadInput, match=f"whole numbers, at least 1, not {cost}"):
        balanced([1, cost, 1], 2)


def test_a_tied_table_belongs_to_no_stage_alone() -> None:
    with pytest.raises(BadInput, match="a tied table belongs to two stages"):
        stages_of(PRESETS["tiny"], gpipe(2, 1), 0)


@pytest.mark.parametrize("config", [PRESETS["tiny"], GPTConfig(layers=5, width=12, heads=3, kv_heads=1, hidden=7)])
def test_stages_one_after_the_other_are_the_model(config: GPTConfig) -> None:
    model, table = create(GPT, config, dtype=torch.float64), TiedTable(config).double() if config.tied else None
    named = dict(model.named_parameters())
    if table:
        table.load_state_dict({name: named[name] for name in table.state_dict()})
    x = tokens = torch.arange(20).view(2, 10)
    for piece in balanced([1] * config.layers, min(config.layers, 3)):
        stage = stage_of(config, piece, table).double()
        stage.load_state_dict({name: named[name] for name in stage.state_dict()})
        x = stage(x)
    assert torch.equal(x, model(tokens))


def test_every_parameter_is_called_as_in_the_model() -> None:
    config = PRESETS["demo"]
    with torch.device("meta"):
        whole, stages = GPT(config), [stage_of(config, piece) for piece in balanced([1] * config.layers, 3)]
    names = [name for stage in stages for name, _ in stage.named_parameters()]
    assert sorted(names) == sorted(name for name, _ in whole.named_parameters())
