"""What failures cost: held by what was published, by a training that fails at random, and by order statistics."""

from itertools import pairwise

import numpy as np
import pytest

from reference.errors import BadInput
from reference.planning import stragglers
from reference.planning.answers.interval import checkpoint_interval
from reference.planning.answers.useful_time import useful_part
from reference.planning.failures import DAY, HOUR, LLAMA3, RSC1, YEAR, FailureRecord, mtbf
from reference.planning.goodput import Reliability, best_interval, by_cause, daly, first_order, goodput, young
from reference.planning.lab.random_failures import failures, imitate
from reference.planning.memory import STATE

SIZES = 2 ** np.arange(18)  # 1 to 131,072 GPUs
SLOW = Reliability(LLAMA3.gpu_mtbf, checkpoint=60, detection=600, restart=300)


def test_llama3_lost_its_gpus_every_three_hours() -> None:
    """arXiv:2407.21783, sec. 3.3.4: 419 unexpected interruptions in 54 days on 16,384 GPUs, 148 by a faulty one."""
    assert LLAMA3.failures == 419
    assert mtbf(LLAMA3.gpu_mtbf, 16_384) == pytest.approx(54 * DAY / 419)
    assert mtbf(LLAMA3.gpu_mtbf, 16_384) / HOUR == pytest.approx(3.09, abs=0.005)
    assert LLAMA3.gpu_mtbf / YEAR == pytest.approx(5.8, abs=0.05)
    assert mtbf(LLAMA3.gpu_mtbf, 131_072) / 60 == pytest.approx(23, abs=0.5)
    assert LLAMA3.share("GPU's HBM3") == pytest.approx(0.172, abs=5e-4)


def test_most_shares_of_llama3s_table_are_those_of_its_counts() -> None:
    printed = {"software bug": 12.9, "switch or cable": 8.4, "host maintenance": 7.6, "GPU's SRAM": 4.5, "SSD": 0.7}
    for cause, percent in printed.items():
        assert 100 * LLAMA3.share(cause) == pytest.approx(percent, abs=0.06)
    assert 100 * LLAMA3.share("faulty GPU") == pytest.approx(35.3, abs=0.06), "which the table prints as 30.1"


@pytest.mark.parametrize(("gpus", "hours"), [(16_384, 1.8), (131_072, 0.23)])
def test_the_rate_of_rsc1_gives_the_hours_that_were_projected(gpus: int, hours: float) -> None:
    """Kokolis et al. 2024, arXiv:2410.21680: from 6.50 failures in 1,000 node-days."""
    assert mtbf(RSC1.gpu_mtbf, gpus) / HOUR == pytest.approx(hours, rel=0.025)


@pytest.mark.parametrize(("gpus", "minutes"), [(16_384, 19), (131_072, 6.8)])
def test_youngs_interval_at_the_failures_of_llama3(gpus: int, minutes: float) -> None:
    assert young(60, mtbf(LLAMA3.gpu_mtbf, gpus)) / 60 == pytest.approx(minutes, rel=0.02)


def test_llama3s_effective_time_says_that_its_checkpoints_stopped_it_for_less_than_a_minute() -> None:
    """More than 90 % is published. A stop of a minute alone leaves less at the best interval, restarts not counted."""
    alone = goodput(Reliability(LLAMA3.gpu_mtbf, checkpoint=np.array([60.0, 50.0, 10.0])), 16_384).useful
    assert alone[0] < 0.9 < alone[1] < alone[2]


def test_the_throughput_of_llama3s_storage_leaves_a_quarter_of_an_hour_for_each_failure() -> None:
    """12 bytes of state for each of 405 billion parameters, at 2 TB/s (sec. 3.3.1): then 90 % can be reached."""
    write = 405e9 * STATE / 2e12
    minutes = np.array([0.0, 10.0, 14.0, 16.0])
    useful = goodput(Reliability(LLAMA3.gpu_mtbf, write, restart=60 * minutes), 16_384).useful
    assert write < 3 and useful[2] > 0.9 > useful[3]


def expected_effective_time(gpus: int, rate: float, down: float, write: float, interval: float) -> float:
    """Kokolis et al. 2024, their closed form: failures per second and node, in seconds."""
    return (1 - gpus / 8 * rate * (down + interval / 2)) / (1 + write / interval)


@pytest.mark.parametrize("gpus", [1024, 4096, 16_384])
def test_where_little_is_lost_the_formula_is_that_of_kokolis(gpus: int) -> None:
    for write, down, interval in ((10, 300, 1200), (60, 60, 1800), (2, 30, 300)):
        found = goodput(Reliability(RSC1.gpu_mtbf, write, restart=down), gpus, interval).useful
        published = expected_effective_time(gpus, 6.50 / 1000 / DAY, down, write, interval)
        assert found == pytest.approx(published, abs=(1 - published) ** 2)


def test_all_parts_add_up_and_none_is_negative() -> None:
    reliability = Reliability(LLAMA3.gpu_mtbf, np.array([[1.0], [60.0], [6000.0]]), 600, np.array([[0.0], [60], [9e5]]))
    for interval in (None, 10.0, 1e6, 1e12):
        parts = goodput(reliability, SIZES, interval, stretch=1.05).parts
        assert sum(parts.values()) == pytest.approx(np.ones((3, 18)))
        assert all(np.all(part >= 0) for part in parts.values())


@pytest.mark.parametrize("gpus", [64, 4096, 16_384, 131_072])
def test_a_training_that_fails_at_random_spends_its_time_as_the_formula_says(gpus: int) -> None:
    """Each part within three standard errors of 16 trainings, each of about sixty failures."""
    random = np.random.default_rng(gpus)
    expected = goodput(SLOW, gpus)
    written = int(60 * expected.mtbf / expected.interval)
    runs = [imitate(SLOW, gpus, float(expected.interval), written, random) for _ in range(16)]
    for part in ("useful", "checkpoints", "rework", "detection", "restarts"):
        found = np.array([run[part] / sum(run.values()) for run in runs])
        error = found.std(ddof=1) / np.sqrt(len(found))
        assert error < 0.01
        assert abs(found.mean() - expected.parts[part]) < 3 * error, part


def test_such_a_training_finds_what_is_wrong() -> None:
    """With the mean time of one GPU, or no restarts, or the half interval of the envelope, it is far away."""
    gpus, random = 131_072, np.random.default_rng(0)
    expected = goodput(SLOW, gpus)
    runs = [imitate(SLOW, gpus, float(expected.interval), 200, random) for _ in range(16)]
    found = np.array([run["useful"] / sum(run.values()) for run in runs])
    error = found.std(ddof=1) / np.sqrt(len(found))
    one_gpu = goodput(SLOW, 1, expected.interval).useful
    no_restarts = goodput(Reliability(LLAMA3.gpu_mtbf, 60, 600), gpus, expected.interval).useful
    envelope = 1 - first_order(SLOW, gpus, expected.interval)
    assert min(abs(found.mean() - wrong) for wrong in (one_gpu, no_restarts, envelope)) > 10 * error


def test_clocks_of_n_gpus_ring_n_times_as_often() -> None:
    rings = failures(500, 1000.0, np.random.default_rng(1))
    times = [next(rings) for _ in range(10_000)]
    assert times == sorted(times)
    gaps = np.diff([0.0, *times])
    assert gaps.mean() == pytest.approx(2.0, rel=3 / np.sqrt(len(gaps)))
    assert gaps.std() == pytest.approx(2.0, rel=0.05), "without memory, they spread as far as they last"


BETWEEN = 1000.0
CHECKPOINTS = BETWEEN * np.array([1e-8, 1e-4, 1e-2, 0.1, 0.5, 1.0, 1.9, 5.0, 60.0])


def test_no_other_interval_loses_less_than_the_best_one() -> None:
    for checkpoint in CHECKPOINTS:
        best = best_interval(checkpoint, BETWEEN)
        others = goodput(Reliability(BETWEEN, checkpoint), 1, best * np.geomspace(0.5, 2, 101)).useful
        assert others.argmax() == 50 or others[50] == pytest.approx(others.max(), rel=1e-9)
        assert others[0] < others[50] > others[-1]


def test_dalys_interval_is_nearer_to_the_best_than_youngs() -> None:
    small = CHECKPOINTS[CHECKPOINTS <= BETWEEN]
    best = best_interval(small, BETWEEN)
    off_young, off_daly = (np.abs(each(small, BETWEEN) / best - 1) for each in (young, daly))
    assert np.all(off_daly < off_young)
    order = np.sqrt(2 * small / BETWEEN)
    assert np.all(off_young < order / 2), "Young's has the first term"
    assert np.all(off_daly < order**3 / 100 + 1e-9), "and Daly's the second and the third, too"


def test_as_long_as_a_checkpoint_takes_less_than_two_mean_times_dalys_interval_loses_nothing() -> None:
    small = CHECKPOINTS[CHECKPOINTS < 2 * BETWEEN]
    each = Reliability(BETWEEN, small)
    lost = 1 - goodput(each, 1, daly(small, BETWEEN)).useful / goodput(each, 1).useful
    assert np.all(lost < 0.003)


def test_where_checkpoints_take_longer_than_failures_need_daly_trains_for_one_mean_time() -> None:
    assert daly(2 * BETWEEN, BETWEEN) == BETWEEN
    assert best_interval(1e9, 1.0) == pytest.approx(1.0)


def test_the_best_interval_does_not_depend_on_restarts_or_stragglers() -> None:
    intervals = np.geomspace(60, 6000, 400)
    places = {
        goodput(Reliability(LLAMA3.gpu_mtbf, 60, down, down), 16_384, intervals, stretch=s).useful.argmax()
        for down in (0, 60, 3600)
        for s in (1.0, 1.2)
    }
    assert len(places) == 1


def test_on_the_envelope_it_is_the_formula_as_long_as_little_is_lost() -> None:
    for gpus in (1, 64, 1024):
        interval = young(SLOW.checkpoint, mtbf(SLOW.gpu_mtbf, gpus))
        lost = first_order(SLOW, gpus, interval)
        assert 1 - goodput(SLOW, gpus, interval).useful == pytest.approx(lost, abs=2 * lost**2)


def test_goodput_falls_with_every_gpu_and_faster_with_the_wrong_interval() -> None:
    best, kept = goodput(SLOW, SIZES), goodput(SLOW, SIZES, 3600.0)
    assert np.all(np.diff(best.useful) < 0)
    assert np.all(best.useful >= kept.useful)
    assert best.useful[-1] > 2 * kept.useful[-1]


def test_lost_gpu_hours_by_part_and_by_cause() -> None:
    days = 54 * DAY
    found = goodput(SLOW, 16_384)
    hours = found.gpu_hours(days * found.useful)
    assert sum(hours.values()) == pytest.approx(16_384 * 54 * 24)
    assert hours["useful"] == pytest.approx(16_384 * 54 * 24 * found.useful)
    causes = by_cause(hours, LLAMA3)
    assert sum(causes.values()) == pytest.approx(hours["rework"] + hours["detection"] + hours["restarts"])
    assert causes["faulty GPU"] / causes["silent data corruption"] == pytest.approx(148 / 6)


def test_the_answers_of_the_puzzles_are_columns_of_one() -> None:
    for gpus in (1, 1024, 131_072):
        interval, lost = checkpoint_interval(LLAMA3.gpu_mtbf, gpus, 60, 900)
        assert interval == pytest.approx(young(60, mtbf(LLAMA3.gpu_mtbf, gpus)))
        assert lost == pytest.approx(first_order(SLOW, gpus, interval))
        assert useful_part(LLAMA3.gpu_mtbf, gpus, interval, 60, 900) == pytest.approx(
            goodput(SLOW, gpus, interval).useful
        )


def harmonic(n: int) -> float:
    return sum(1 / k for k in range(1, n + 1))


def test_the_slowest_of_n_is_what_order_statistics_say() -> None:
    ranks = np.array([1, 2, 3, 10, 1000, 131_072])
    numbers = [harmonic(int(n)) for n in ranks]
    assert stragglers.slowest(ranks, stragglers.exponential(5, 2)) == pytest.approx([5 + 2 * h for h in numbers])
    assert stragglers.slowest(ranks, lambda exceeded: 1 - exceeded) == pytest.approx(ranks / (ranks + 1))
    of_few = stragglers.slowest(np.array([1, 2, 3]), stragglers.normal(1, 0.1))
    assert of_few == pytest.approx([1, 1 + 0.1 / np.sqrt(np.pi), 1 + 0.15 / np.sqrt(np.pi)])


def test_the_slowest_of_many_normal_times_is_that_of_draws() -> None:
    random, n = np.random.default_rng(0), 4096
    largest = random.normal(1, 0.02, (2000, n)).max(axis=1)
    error = largest.std() / np.sqrt(len(largest))
    assert abs(stragglers.slowest(n, stragglers.normal(1, 0.02)) - largest.mean()) < 3 * error < 1e-3


def test_measured_times_stretch_a_step_up_to_the_largest_of_them() -> None:
    times = np.random.default_rng(0).normal(1, 0.05, 400)
    found = stragglers.stretch(SIZES, stragglers.measured(list(times)))
    assert found[0] == pytest.approx(1)
    assert all(a < b for a, b in pairwise(found[:10])) and found[-1] == pytest.approx(times.max() / times.mean(), 1e-3)
    exact = np.mean(np.random.default_rng(1).choice(times, (20_000, 64)).max(axis=1)) / times.mean()
    assert found[6] == pytest.approx(exact, rel=2e-3)


def test_stragglers_take_their_part_of_the_trained_time() -> None:
    ranks = np.array([8, 1024])
    slow = stragglers.stretch(ranks, stragglers.normal(1, 0.02))
    with_them, without = goodput(SLOW, ranks, 600.0, slow), goodput(SLOW, ranks, 600.0)
    assert with_them.useful * slow == pytest.approx(without.useful)
    assert with_them.parts["stragglers"] + with_them.useful == pytest.approx(without.useful)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: Reliability(0, 60), "mean time between failures: seconds above 0"),
        (lambda: Reliability(1e8, np.array([60, 0])), "checkpoint: seconds above 0"),
        (lambda: Reliability(1e8, 60, restart=-1), "restart takes 0 seconds or more, not -1"),
        (lambda: Reliability(1e8, 60, float("nan")), "detection takes 0 seconds or more, not nan"),
        (lambda: goodput(SLOW, 0), "1 GPU or more"),
        (lambda: goodput(SLOW, 8, 0.0), "interval: seconds above 0"),
        (lambda: goodput(SLOW, 8, stretch=0.9), "a stretch is 1 or more"),
        (lambda: young(60, float("nan")), "mean time between failures: seconds above 0"),
        (lambda: LLAMA3.share("cosmic ray"), "'cosmic ray': there are faulty GPU"),
        (lambda: FailureRecord(0, {"any": 1}, ""), "GPU-days and failures, both above 0"),
        (lambda: stragglers.slowest(0, stragglers.normal(1, 1)), "of 0 ranks"),
        (lambda: stragglers.measured([1.0]), "measure two or more"),
    ],
)
def test_numbers_that_cannot_be_are_named(wrong, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        wrong()
