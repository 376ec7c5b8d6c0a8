"""What PipeMare does against the delay, by itself."""

from itertools import pairwise

import pytest
import torch

from reference.errors import BadInput
from reference.zero_bubble.pipemare import PipeMareOptions, corrected, decay, rescheduled, velocity_after


def test_steps_grow_from_rate_over_tau_to_the_rate() -> None:
    rates = [rescheduled(0.1, 4.0, k, updates=10) for k in range(13)]
    assert rates[0] == pytest.approx(0.1 / 4)
    assert rates[5] == pytest.approx(0.1 / 2)
    assert rates[10:] == [0.1] * 3
    assert rates == sorted(rates)


def test_no_delay_makes_steps_larger() -> None:
    assert rescheduled(0.1, 0.25, 0, updates=10) == 0.1


@pytest.mark.parametrize("tau", [0.25, 1.0, 7.0])
def test_after_tau_updates_the_share_to_remember_is_left(tau: float) -> None:
    assert decay(tau, 0.135) ** tau == pytest.approx(0.135)


def test_the_share_of_the_paper_makes_the_mean_as_old_as_the_delay() -> None:
    """gamma = 1 - 2 / (tau + 1), which its theory asks for, to the power of tau goes to e^-2 = 0.135."""
    assert decay(1000.0, 0.135) == pytest.approx(1 - 2 / 1001, abs=1e-5)


def test_weights_that_move_evenly_are_corrected_to_what_forward_saw() -> None:
    begin, step, tau = torch.tensor([1.0, -2.0]).double(), torch.tensor([0.5, 0.25]).double(), 3
    weights = [begin + t * step for t in range(60)]
    velocity = torch.zeros_like(begin)
    for before, after in pairwise(weights):
        velocity = velocity_after(velocity, before, after, decay(tau, 0.135))
    assert torch.allclose(corrected(weights[-1], velocity, tau), weights[-1 - tau], rtol=0, atol=1e-10)


def test_without_a_delay_nothing_is_corrected() -> None:
    weight, velocity = torch.randn(3), torch.randn(3)
    assert torch.equal(corrected(weight, velocity, 0.0), weight)
    assert decay(0.0, 0.135) == 0.0


@pytest.mark.parametrize(("wrong", "message"), [((0, 0.1), "at least 1 update"), ((10, 1.0), "below 1")])
def test_options_that_make_no_sense_are_refused(wrong: tuple[int, float], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        PipeMareOptions(*wrong)
