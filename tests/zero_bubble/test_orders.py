"""Orders that split backward: they compute a step, and reach the bubble that their papers computed."""

import pytest

from reference.errors import BadInput
from reference.pipeline_parallel.orders import interleaved, one_f_one_b
from reference.pipeline_parallel.simulate import Costs, simulate
from reference.pipeline_parallel.validate import validate
from reference.zero_bubble.lab.published import LAYERS, Setting, settings
from reference.zero_bubble.orders import dual_pipe, dual_pipe_v, zb_h1, zb_h2, zb_v

from ..pipeline_parallel import torchs
from ..pipeline_parallel.pipes import SPLIT


@pytest.mark.parametrize("name", SPLIT)
def test_every_order_computes_a_step(name: str) -> None:
    """Where micro-batches come back, activations and gradients share a channel, and each may have to wait."""
    for p in range(2, 9, 2) if name == "dual_pipe" else range(1, 9):
        for m in range(1, 17):
            assert validate(SPLIT[name].make(p, m)).room <= (1 if name.startswith("zb_h") else 2)


def test_dual_pipe_takes_pairs_of_ranks() -> None:
    with pytest.raises(BadInput, match="an even number, not 3"):
        dual_pipe(3, 4)


@pytest.mark.parametrize("times", [(1.0, 1.0, 1.0), (1.0, 1.25, 0.75)])
@pytest.mark.parametrize("p", [2, 4, 6, 8])
def test_the_bubble_is_that_of_the_formula(p: int, times: tuple[float, float, float]) -> None:
    forward, of_input, of_weight = times
    saved = forward + of_input - of_weight
    bubbles = {
        "zb_h1": (p - 1) * saved,
        "zb_h2": (p - 1) * (saved - of_weight),
        "dual_pipe": (p / 2 - 1) * saved,
    }
    m = 4 * p
    for name, bubble in bubbles.items():
        found = simulate(SPLIT[name].make(p, m), Costs(*times)).longest - m * sum(times)
        assert found == pytest.approx(bubble), name


@pytest.mark.parametrize("p", [1, 2, 3, 4, 8])
def test_a_v_has_little_bubble_where_all_three_take_as_long(p: int) -> None:
    m = 3 * p
    assert simulate(zb_v(p, m), Costs(0.5, 0.5, 0.5)).longest == 3 * m
    assert simulate(zb_v(p, 2 * p - 1), Costs(0.5, 0.5, 0.5)).longest == 3 * (2 * p - 1)
    assert simulate(dual_pipe_v(p, m), Costs(0.5, 0.5, 0.5)).longest == 3 * m + (p - 1) / 2


def test_zb_v_takes_as_long_as_torchs_with_any_number_of_micro_batches() -> None:
    """The pattern needs 2p - 1 of them. Drawn for one more, it would take 2 units longer with p < m < 2p."""
    for p in range(1, 8):
        for m in range(1, 3 * p + 1):
            ours, theirs = zb_v(p, m), torchs.zb_v(p, m)
            for costs in (Costs(), Costs(message=0.5)):
                one, other = simulate(ours, costs), simulate(theirs, costs)
                assert (one.longest, one.seconds) == (other.longest, other.seconds), (p, m)
            assert validate(ours) == validate(theirs), (p, m)


def test_dual_pipe_v_is_torchs() -> None:
    """torch refuses fewer than 2p micro-batches, and ours takes any number."""
    for p in range(1, 9):
        for m in range(2 * p, 4 * p):
            assert dual_pipe_v(p, m).lines == torchs.dual_pipe_v(p, m).lines, (p, m)


@pytest.mark.parametrize("p", [2, 4, 8])
def test_ranks_hold_the_activations_of_the_table(p: int) -> None:
    m = 4 * p
    expected = {"zb_h1": p, "zb_h2": 2 * p - 1, "zb_v": 2 * p, "dual_pipe": p + 1, "dual_pipe_v": 2 * p + 1}
    for name, most in expected.items():
        assert max(validate(SPLIT[name].make(p, m)).activations) == most, name


@pytest.mark.parametrize(("name", "bound"), [("1F1B", 1e-4), ("1F1B-I", 5e-3), ("ZB-H1", 1e-4), ("ZB-H2", 1e-4)])
@pytest.mark.parametrize("setting", settings(), ids=lambda each: f"{each.model}, m={each.micro_batches}")
def test_bubble_rates_are_those_of_the_paper(setting: Setting, name: str, bound: float) -> None:
    """Tables 3, 4 and 9 of arXiv 2401.10241. Printed to four digits; the paper does not say how it interleaves."""
    p, m, costs = setting.stages, setting.micro_batches, setting.costs
    if name == "1F1B-I":  # a layer in each chunk
        order = interleaved(p, m, LAYERS)
        costs = Costs(costs.forward / LAYERS, costs.input / LAYERS, costs.weight / LAYERS, costs.message)
    else:
        order = {"1F1B": one_f_one_b, "ZB-H1": zb_h1, "ZB-H2": zb_h2}[name](p, m)
    assert simulate(order, costs).bubble_rate == pytest.approx(setting.bubble_rates[name], abs=bound)
