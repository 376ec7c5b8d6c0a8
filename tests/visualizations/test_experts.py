"""What is drawn of routes and loads is what ranks send and experts get."""

import numpy as np
import pytest
import torch
from matplotlib.patches import Circle

from reference.errors import BadInput
from reference.expert_parallel.balancing import StepLoad
from reference.expert_parallel.cost import Routes
from reference.expert_parallel.placement import ExpertPlacement, in_order
from reference.models.moe_config import MoEConfig
from reference.models.routing import NOWHERE, fits
from visualizations import expert_load, expert_routes, expert_widget
from visualizations.expert_routes import Step

from .reading import assert_readable, drawn


def routes(ranks: int, experts: int, tokens: int = 8, k: int = 2, dropped: float = 0.0) -> Routes:
    generator = torch.Generator().manual_seed(ranks)
    chosen = []
    for _ in range(ranks):
        mine = torch.rand(tokens, experts, generator=generator).topk(k).indices
        chosen.append(mine.masked_fill(torch.rand(mine.shape, generator=generator) < dropped, NOWHERE))
    return Routes(tuple(chosen), experts)


@pytest.mark.parametrize(("ranks", "experts", "dropped"), [(1, 4, 0), (3, 6, 0.3), (4, 8, 0)])
def test_each_choice_is_a_dot_before_and_after_it_travels(ranks: int, experts: int, dropped: float) -> None:
    held = routes(ranks, experts, dropped=dropped)
    wanted = sorted(
        (rank, int(expert)) for rank in range(ranks) for expert in held.chosen[rank].flatten() if expert >= 0
    )
    everywhere = range(ranks)
    before = [
        (dot.home, int(dot.words)) for rank in everywhere for of in expert_routes.choice_dots(held, rank) for dot in of
    ]
    arrived = [
        (dot.home, int(dot.words)) for rank in everywhere for of in expert_routes.arrived_dots(held, rank) for dot in of
    ]
    there = [
        (dot.home, rank * held.here + place)
        for rank in everywhere
        for place, of in enumerate(expert_routes.expert_dots(held, rank))
        for dot in of
    ]
    assert before == sorted(before) and sorted(before) == sorted(arrived) == sorted(there) == wanted
    assert all(
        int(dot.words) // held.here == rank
        for rank in everywhere
        for of in expert_routes.arrived_dots(held, rank)
        for dot in of
    )


@pytest.mark.turns(3)
@pytest.mark.parametrize("step", [None, *Step])
@pytest.mark.parametrize(("ranks", "experts", "k"), [(1, 4, 1), (4, 8, 2), (6, 12, 2)])
def test_steps_can_be_read(
    monkeypatch: pytest.MonkeyPatch, ranks: int, experts: int, k: int, step: Step | None
) -> None:
    held = routes(ranks, experts, k=k)
    picture = expert_routes.draw(held) if step is None else expert_routes.draw_step(held, step)
    assert_readable(picture, monkeypatch)


def test_counts_stand_on_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    held = routes(3, 6)
    texts = [words for words, _, _ in drawn(expert_routes.draw_step(held, Step.COUNT), monkeypatch)]
    for source in range(3):
        for target in range(3):
            count = int(held.rows()[source, target])
            assert texts.count(f"to {target}: {count}") and texts.count(f"from {source}: {count}")


def test_a_player_has_a_picture_of_each_step() -> None:
    held = routes(2, 4)
    film = expert_routes.play(held)
    assert film.frames == len(Step) and film.caption(2) == "step 3 of 7"
    assert film.frame(3) == expert_routes.draw_step(held, Step.DISPATCH).png() != film.frame(4)


def test_the_title_says_what_leaves_and_who_computes_most() -> None:
    held = Routes((torch.tensor([[0, 1], [0, 3]]), torch.tensor([[0, 2]])), experts=4)
    said = "2 of 6 rows leave their rank; the busiest rank computes 4, where 3 are a fair share"
    assert expert_routes.finding(held) == said


def test_as_many_dots_as_rows_and_tokens() -> None:
    held = routes(2, 4, tokens=5)
    circles = [p for p in expert_routes.draw(held).axes[0].patches if isinstance(p, Circle)]
    assert len(circles) == 2 * 5 + 2 * (2 * 5 * 2) + 2  # tokens, rows here and there, and the legend


def steps(*counts: list[int]) -> list[StepLoad]:
    return [StepLoad(torch.tensor([of_step]), 0, 0.0) for of_step in counts]


def test_strips_show_multiples_of_an_even_share(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = {"none": steps([4, 0, 0, 0], [8, 0, 4, 4]), "bias": steps([1, 1, 1, 1], [2, 2, 2, 2])}
    picture = expert_load.draw(runs)
    assert_readable(picture, monkeypatch)
    first, second = (np.asarray(axes.images[0].get_array()) for axes in picture.axes[:2])
    assert first.tolist() == [[4, 2], [0, 0], [0, 1], [0, 1]] and (second == 1).all()
    assert expert_load.finding(runs).endswith("3.0 (none), 1.0 (bias)")


def test_many_experts_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    assert_readable(expert_load.draw({"none": steps(*[list(range(64))] * 3)}), monkeypatch)


def test_bars_of_ranks_are_as_long_as_their_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    loads = [90.0, 30.0, 20.0, 10.0]
    placements = {"in order": in_order(loads, 2, 4), "copied": ExpertPlacement(((0, 1, 2), (0, 3, 2)), tuple(loads))}
    picture = expert_load.draw_ranks(placements)
    assert_readable(picture, monkeypatch)
    wide = [patch.get_width() for patch in picture.axes[0].patches]
    assert [each / wide[0] for each in wide] == pytest.approx(
        [1, 1 / 3, 2 / 9, 1 / 9, 1 / 2, 1 / 3, 1 / 9, 1 / 2, 1 / 9, 1 / 9]
    )
    texts = [words for words, _, _ in drawn(picture, monkeypatch)]
    assert "in order: the busiest rank has 1.60 times the mean" in texts
    colours = [patch.get_facecolor() for patch in picture.axes[0].patches]
    assert colours[7] == colours[0] != colours[8], "an expert keeps the colour of where it was"


REFUSED = {
    "ranks": (lambda: expert_routes.draw(routes(7, 7)), "7 ranks are more than"),
    "no steps": (lambda: expert_load.draw({"none": []}), "nothing to draw"),
    "experts": (lambda: expert_load.draw({"a": steps([1, 1]), "b": steps([1, 1, 1])}), "as many experts"),
    "no load": (lambda: expert_load.draw_ranks({"none": in_order([0, 0], 2, 2)}), "no rank has an expert"),
    "no division": (lambda: expert_widget.explore(experts=4, ranks=8), "4 experts do not divide among 8"),
    "top_k": (lambda: expert_widget.explore(experts=4, top_k=5), "goes to 5 experts"),
}


@pytest.mark.parametrize("wrong", REFUSED)
def test_what_cannot_be_drawn_is_refused(wrong: str) -> None:
    draw, words = REFUSED[wrong]
    with pytest.raises(BadInput, match=words):
        draw()


@pytest.mark.turns(3)
@pytest.mark.parametrize("ranks", expert_widget.RANKS)
@pytest.mark.parametrize("choice", [{}, {"capacity": 1.0, "skew": 2.0}, {"experts": 64, "top_k": 8, "skew": 0.0}])
def test_every_choice_can_be_read(monkeypatch: pytest.MonkeyPatch, ranks: int, choice: dict) -> None:
    held = expert_widget.Choice(ranks=ranks, **{"experts": 16, "tokens": 64} | choice)
    assert_readable(held.draw(), monkeypatch)


def test_a_widget_drops_what_the_router_would() -> None:
    """Its one window are the tokens of all ranks."""
    choice = expert_widget.Choice(tokens=40, capacity=1.0, skew=1.5)
    config = MoEConfig(1, 8, 1, 1, 8, experts=8, top_k=2, capacity=1.0)
    whole = torch.cat(choice.wanted.chosen)[None]
    assert torch.equal(torch.cat(choice.routes.chosen)[None], whole.masked_fill(~fits(whole, config), NOWHERE))
    assert choice.dropped == pytest.approx(float((~fits(whole, config)).double().mean())) and choice.dropped > 0.2


def test_a_widget_without_skew_is_even_and_counts_what_crosses() -> None:
    choice = expert_widget.Choice(tokens=2048, skew=0.0, experts=8, top_k=2)
    assert choice.busy > 0.97 and choice.dropped == 0
    rows, copies = (size / (4 * 2048 * expert_widget.WIDTH * expert_widget.SIZE) for size in choice.crossing())
    assert rows == pytest.approx(1.0, abs=0.03)  # k (1 - 1/2)
    assert copies == pytest.approx(1 - (4 * 3) / (8 * 7), abs=0.03)  # unless both experts are on this node
