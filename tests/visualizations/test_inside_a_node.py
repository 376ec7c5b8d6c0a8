"""The same block on fast links and on slow ones."""

import pytest

from reference.models import GPTConfig
from reference.tensor_parallel.lab.simulate_layer import LayerSimulation, rings, simulate_layer, two_levels
from reference.trace import INFINIBAND_NDR, NVLINK4, Network
from reference.trace.activity import Doing
from visualizations.inside_a_node import draw, draw_step, finding, share
from visualizations.style import seconds_text

from .reading import assert_readable, drawn

CONFIG = GPTConfig(layers=1, width=4096, heads=32, kv_heads=8, hidden=14_336)
SPEED = 400e12
PRICES = {
    "NVLink": rings(Network.of(NVLINK4)),
    "nodes of 8": two_levels(Network.cluster(4, 8)),
    "InfiniBand": rings(Network.of(INFINIBAND_NDR)),
}


@pytest.fixture(scope="module")
def simulations() -> list[LayerSimulation]:
    return [simulate_layer(CONFIG, t, 1, 8192) for t in (2, 4, 8, 16)]


def test_bars_are_computing_and_what_ranks_wait(simulations: list[LayerSimulation]) -> None:
    panels = draw(simulations, PRICES, SPEED).axes
    for axes, price in zip(panels, PRICES.values(), strict=True):
        heights = iter([bar.get_height() for container in axes.containers for bar in container])
        for one, forward, of_inputs, of_weights, waits in zip(simulations, *[heights] * 4, strict=True):
            computes, waiting = one.times(price, SPEED)
            assert forward + of_inputs + of_weights == pytest.approx(computes)
            assert of_weights < forward < of_inputs  # attention has no weights, and costs twice as much in backward
            assert waits == waiting
        assert next(heights, None) is None


def test_the_share_that_waits_grows_with_ranks_and_with_slower_links(simulations: list[LayerSimulation]) -> None:
    for price in PRICES.values():
        shares = [share(one, price, SPEED) for one in simulations]
        assert shares == sorted(shares) and shares[0] < shares[-1]
    fast, both, slow = ([share(one, price, SPEED) for one in simulations] for price in PRICES.values())
    assert fast[:3] == both[:3] and fast[3] < both[3] < slow[3]
    assert all(a < b for a, b in zip(fast, slow, strict=True))


def test_the_title_compares_networks_at_the_end_of_a_node(simulations: list[LayerSimulation]) -> None:
    words = [f"{share(simulations[2], price, SPEED):.0%} on {name}" for name, price in PRICES.items()]
    assert finding(simulations, PRICES, SPEED, 8).endswith(f"8 ranks wait {', '.join(words)}")
    assert finding(simulations, PRICES, SPEED, 8).startswith("Modelled")


@pytest.mark.parametrize("panels", [1, 2, 3])
def test_it_can_be_read(monkeypatch: pytest.MonkeyPatch, simulations: list[LayerSimulation], panels: int) -> None:
    prices = dict(list(PRICES.items())[:panels])
    assert_readable(draw(simulations, prices, SPEED), monkeypatch)
    assert_readable(draw_step(simulations[2], prices, SPEED), monkeypatch)


def test_lanes_have_one_scale_and_the_same_computing(simulations: list[LayerSimulation]) -> None:
    picture = draw_step(simulations[1], PRICES, SPEED)
    lanes = [simulations[1].activities(price, SPEED) for price in PRICES.values()]
    computing = [sum(a.end - a.begin for a in lane if a.doing is not Doing.COMMUNICATION) for lane in lanes]
    assert computing == pytest.approx([simulations[1].flops / SPEED] * 3)
    assert len(picture.axes[0].patches) == sum(map(len, lanes))


def test_what_does_not_fit_into_a_node_is_shaded_where_there_are_nodes(simulations: list[LayerSimulation]) -> None:
    for nodes, shaded in (({"nodes of 8": 8}, ["nodes of 8"]), ({}, [])):
        panels = draw(simulations, PRICES, SPEED, nodes=nodes).axes
        found = [
            axes.get_title("left") for axes in panels if "more\nthan 8" in [text.get_text() for text in axes.texts]
        ]
        assert found == shaded


def test_totals_are_written_over_bars(monkeypatch: pytest.MonkeyPatch, simulations: list[LayerSimulation]) -> None:
    words = [words for words, _, _ in drawn(draw(simulations, PRICES, SPEED), monkeypatch)]
    for price in PRICES.values():
        assert seconds_text(sum(simulations[0].times(price, SPEED))) in words
    assert words.count("t, ranks that share the block") == 3
