"""Budgets against bills that were published, and scaling laws against the tables of their papers."""

import numpy as np
import pytest

from reference.errors import BadInput
from reference.planning.answers.compute_optimal import compute_optimal
from reference.planning.budget import affordable_flops, bill, board_watts
from reference.planning.hardware import Gpu, gpu, gpus
from reference.planning.scaling_law import BESIROGLU, HOFFMANN, HOFFMANN_PRINTED, ScalingLaw, by_tokens_for_each

GOPHER = 5.76e23  # FLOPs: Hoffmann et al. 2022, table 3
LAWS = [HOFFMANN, HOFFMANN_PRINTED, BESIROGLU]

# Hoffmann et al. 2022, table 3 (approach 1): parameters, FLOPs, tokens.
TABLE_3 = np.array([
    (400e6, 1.92e19, 8.0e9), (1e9, 1.21e20, 20.2e9), (10e9, 1.23e22, 205.1e9), (67e9, 5.76e23, 1.5e12),
    (175e9, 3.85e24, 3.7e12), (280e9, 9.90e24, 5.9e12), (520e9, 3.43e25, 11.0e12), (1e12, 1.27e26, 21.2e12),
    (10e12, 1.30e28, 216.2e12),
])  # fmt: skip

# Their table A3 (approach 3), but for the FLOPs of 175 billion: printed are 1.26e24, and 6 N D are ten times that.
TABLE_A3 = np.array([
    (400e6, 2.21e19, 9.2e9), (1e9, 1.62e20, 27.1e9), (10e9, 2.46e22, 410.1e9), (67e9, 1.71e24, 4.1e12),
    (175e9, 1.26e25, 12.0e12), (280e9, 3.52e25, 20.1e12), (520e9, 1.36e26, 43.5e12), (1e12, 5.65e26, 94.1e12),
    (10e12, 8.55e28, 1425.5e12),
])  # fmt: skip


@pytest.mark.parametrize("table", [TABLE_3, TABLE_A3], ids=["table 3", "table A3"])
def test_the_tables_count_six_flops_for_each_parameter_and_token(table: np.ndarray) -> None:
    parameters, flops, tokens = table.T
    assert 6 * parameters * tokens == pytest.approx(flops, rel=0.05), "tokens have two digits in the middle rows"


def test_twenty_tokens_for_each_parameter_is_the_first_approach() -> None:
    parameters, flops, tokens = TABLE_3.T
    rule = by_tokens_for_each(flops)
    assert rule.parameters == pytest.approx(parameters, rel=0.05)
    assert rule.tokens == pytest.approx(tokens, rel=0.08)
    assert 6 * rule.parameters * rule.tokens == pytest.approx(flops)


def test_the_third_approach_says_forty_billion_for_gophers_budget() -> None:
    """Their figure 4. Printed constants have too few digits for that, which Besiroglu et al. 2024 point out."""
    assert HOFFMANN.optimum(GOPHER).parameters == pytest.approx(40e9, rel=0.02)
    assert HOFFMANN_PRINTED.optimum(GOPHER).parameters == pytest.approx(32e9, rel=0.02)


def test_exponents_are_those_of_table_2() -> None:
    for law, exponent in ((HOFFMANN, 0.46), (BESIROGLU, 0.513)):
        sizes = law.optimum(np.array([1e20, 1e24])).parameters
        assert np.log10(sizes[1] / sizes[0]) / 4 == pytest.approx(exponent, abs=0.005)


def test_four_digits_give_the_tokens_of_table_a3_and_two_digits_up_to_twice_as_many() -> None:
    parameters, _, tokens = TABLE_A3.T
    found = HOFFMANN.tokens_of(parameters) / tokens
    assert np.all((found > 1.06) & (found < 1.2))
    printed = HOFFMANN_PRINTED.tokens_of(parameters) / tokens
    assert np.all(np.diff(printed[[0, 2, 4, 8]]) > 0) and printed[0] > 1.5 and 2 < printed[-1] < 2.3


def test_the_new_fit_agrees_with_about_twenty_tokens_for_each() -> None:
    flops = np.geomspace(1e18, 1e25, 15)
    best = BESIROGLU.optimum(flops)
    assert np.all((best.tokens / best.parameters > 17) & (best.tokens / best.parameters < 26))
    assert BESIROGLU.waste(flops, by_tokens_for_each(flops).parameters).max() < 1.01


def test_chinchilla_is_better_than_gopher_for_the_same_budget() -> None:
    """70 billion parameters on 1.4 trillion tokens, and 280 billion on 300 billion: sec. 4."""
    for law in LAWS:
        assert law.loss(70e9, 1.4e12) < law.loss(280e9, 300e9)
        assert law.waste(6 * 70e9 * 1.4e12, 70e9) < 1.2 < 2 < law.waste(6 * 280e9 * 300e9, 280e9)
    assert HOFFMANN_PRINTED.loss(280e9, 300e9) == pytest.approx(1.993, abs=5e-4)
    assert HOFFMANN_PRINTED.loss(70e9, 1.4e12) == pytest.approx(1.937, abs=5e-4)


@pytest.mark.parametrize("law", LAWS, ids=["Hoffmann", "printed", "Besiroglu"])
def test_no_other_size_has_less_loss_for_the_same_flops(law: ScalingLaw) -> None:
    flops = np.array([1e18, 1e22, 1e26])
    best = law.optimum(flops)
    assert 6 * best.parameters * best.tokens == pytest.approx(flops)
    sizes = best.parameters * np.geomspace(0.1, 10, 201)[:, None]
    losses = law.loss(sizes, flops / (6 * sizes))
    assert np.all(losses.argmin(axis=0) == 100)
    assert law.least_flops(losses[100]) == pytest.approx(flops)
    waste = law.waste(flops, sizes)
    assert waste[100] == pytest.approx(np.ones(3)) and np.all(waste >= 1 - 1e-12) and np.all(waste[[0, -1]] > 1.5)
    assert law.tokens_of(best.parameters) == pytest.approx(best.tokens)


def test_the_answer_of_the_puzzle_is_the_optimum() -> None:
    for law in LAWS:
        best = law.optimum(GOPHER)
        assert compute_optimal(GOPHER, (law.A, law.alpha), (law.B, law.beta)) == pytest.approx(
            (best.parameters, best.tokens)
        )


def test_the_bill_of_deepseek_v3() -> None:
    """arXiv:2412.19437, table 1: 180K H800-hours and 3.7 days on 2048 for each trillion tokens, 14.8 of them, 2 $."""
    per_second = 1e12 / (180e3 * 3600 / 2048)
    each = bill(1e12, per_second, 2048, price=2, watts=700)
    assert each.gpu_hours == pytest.approx(180e3) and each.days == pytest.approx(3.7, abs=0.05)
    whole = bill(14.8e12, per_second, 2048, price=2, watts=700)
    assert whole.gpu_hours == pytest.approx(2664e3) and whole.money == pytest.approx(5.328e6)
    assert whole.days < 60, "less than two months"


def test_the_flops_and_hours_of_llama_3_405b() -> None:
    """3.8e25 FLOPs for 15.6 trillion tokens (arXiv:2407.21783), 30.84 million H100-hours (its model card).

    While it ran, it made 380 to 430 TFLOP/s on a GPU, of which failures, checkpoints and longer windows took a part.
    """
    flops = 6 * 405e9 * 15.6e12
    assert flops == pytest.approx(3.8e25, rel=0.005)
    fast, slow = (bill(15.6e12, 16_384 * rate / (6 * 405e9), 16_384, price=1, watts=700) for rate in (430e12, 380e12))
    assert fast.gpu_hours < slow.gpu_hours < 30.84e6
    assert 0.79 < fast.gpu_hours / 30.84e6 < slow.gpu_hours / 30.84e6 < 0.9
    assert affordable_flops(30.84e6, 1.0, 400e12, slow.gpu_hours / 30.84e6 * 380 / 400) == pytest.approx(flops)


def test_a_bill_has_columns() -> None:
    n = np.array([512, 1024, 16_384])
    useful = np.array([1.0, 0.9, 0.8])
    found = bill(1e12, 1e4 * n, n, price=2.5, watts=board_watts(gpu("h100")), goodput=useful, overhead=1.3)
    hours = 1e12 / 1e4 / 3600 / useful
    assert found.gpu_hours == pytest.approx(hours)
    assert found.days * 24 * n == pytest.approx(found.gpu_hours)
    assert found.money == pytest.approx(2.5 * hours)
    assert found.megawatt_hours == pytest.approx(hours * 700 * 1.3 / 1e6)


def test_every_gpu_of_the_table_has_its_watts() -> None:
    watts = {name: board_watts(each) for name, each in gpus().items()}
    assert watts["a100"] == 400 and watts["h100"] == 700
    assert min(watts.values()) >= 300


def test_more_money_buys_more_flops_and_a_larger_model() -> None:
    flops = affordable_flops(np.array([1e5, 1e6, 1e7]), 2.0, 400e12, 0.9)
    assert flops == pytest.approx(np.array([1e5, 1e6, 1e7]) / 2 * 3600 * 400e12 * 0.9)
    best = BESIROGLU.optimum(flops)
    assert np.all(np.diff(best.parameters) > 0) and np.all(np.diff(best.tokens) > 0)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: bill(1e12, 0, 8, price=2, watts=700), "are above 0"),
        (lambda: bill(1e12, 1e6, 8, price=2, watts=700, goodput=1.2), "at most 1"),
        (lambda: bill(1e12, 1e6, 8, price=2, watts=700, overhead=0.3), "at least 1"),
        (lambda: affordable_flops(1e6, 0.0, 4e14), "a price above 0"),
        (lambda: board_watts(Gpu("mine", 1, 1, 1, 1, 1, 1, 1)), "no watts of 'mine'"),
        (lambda: HOFFMANN.optimum(-1), "above 0 and finite"),
        (lambda: HOFFMANN.loss(1e9, [1e9, 0]), "above 0 and finite"),
        (lambda: HOFFMANN.least_flops(1.5), "no budget reaches a loss of 1.5: 1.6934 stays"),
        (lambda: ScalingLaw(1.7, 400, 400, 0.3, 0.0, ""), "above 0"),
        (lambda: by_tokens_for_each(1e20, 0), "above 0 and finite"),
    ],
)
def test_budgets_that_cannot_be_are_named(wrong, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        wrong()
