"""Goodput under a few failures: the parts are all of the time, and what was lost was done again."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reference.cluster import Cluster, RankDied
from reference.planning.goodput import goodput
from reference.resilience.lab import measured_goodput as lab
from reference.resilience.lab import watched
from reference.resilience.lab.history import Deed, TrainingHistory

FEW = watched.Conditions(between=1.5, pace=0.03, steps=40, seed=3)


def of(history: TrainingHistory, deed: Deed, rank: int = 0) -> list[int]:
    """The steps of a rank's stretches of one kind."""
    return [each.step for each in history.stretches if each.deed is deed and each.rank == rank]


def test_from_disk_each_step_counts_once() -> None:
    with Cluster(lab.RANKS, timeout=100, preload=watched.PRELOAD) as cluster:
        history = watched.from_disk(cluster, 8, FEW).history
    assert len(history.deaths) >= 1
    assert sorted(of(history, Deed.STEP) + of(history, Deed.AGAIN)) == list(range(1, 41))
    assert {*of(history, Deed.AGAIN)} <= {*of(history, Deed.LOST)}
    assert sum(history.parts().values()) == pytest.approx(history.seconds)
    row = lab.summary("from disk", 8, [history], FEW)
    assert (row.failures, row.seconds) == (len(history.deaths), pytest.approx(history.seconds))
    assert 0 < row.useful < 1 and row.checkpoint > 0 and row.down > 0


def test_a_run_whose_ranks_die_after_their_last_checkpoint_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    with Cluster(lab.RANKS, timeout=100, preload=watched.PRELOAD) as cluster:
        starts, run = [], cluster.run

        def dies_at_the_end(*given: Any) -> Any:
            starts.append(result := run(*given))
            assert len(starts) < 3, "no start takes a step, and one follows the other"
            if len(starts) == 1:
                raise RankDied("SIGKILL", "by this test", rank=0)
            return result

        monkeypatch.setattr(cluster, "run", dies_at_the_end)
        history = watched.from_disk(cluster, 8, replace(FEW, between=None)).history
    assert of(history, Deed.STEP) == list(range(1, 41)) and not of(history, Deed.AGAIN)


def test_elastic_trains_on_without_those_who_die() -> None:
    conditions = replace(FEW, between=None, dies={9: 2, 23: 0})
    with Cluster(6, timeout=100, preload=watched.PRELOAD) as cluster:
        died, calm = (
            watched.elastic(cluster, each, train_on=4) for each in (conditions, replace(conditions, dies=None))
        )
    history = died.history
    assert [rank for _, rank in history.deaths] == [2, 0]
    assert history.ranks == [0, 1, 2, 3, 4, 5]  # two spares have come
    assert {each.step for each in history.stretches if each.deed in (Deed.STEP, Deed.AGAIN)} == {*range(1, 41)}
    again = {each.step for each in history.stretches if each.deed is Deed.AGAIN}
    assert len(again) <= 2 * len(history.deaths)  # one is under way, and the copy of the one before may be
    assert died.losses == pytest.approx(calm.losses, abs=1e-12)
    assert (calm.history.deaths, calm.history.ranks) == ([], [0, 1, 2, 3])


def test_where_nobody_dies_nothing_is_lost() -> None:
    with Cluster(lab.RANKS, timeout=100, preload=watched.PRELOAD) as cluster:
        history = watched.from_disk(cluster, 10, replace(FEW, between=None, steps=20)).history
    assert of(history, Deed.STEP) == list(range(1, 21))
    assert of(history, Deed.SAVE) == [10, 20]
    row = lab.summary("from disk", 10, [history], FEW)
    assert (row.failures, row.down, row.rework) == (0, 0, 0)


ROW = lab.MeasuredGoodput("from disk", 10, 0.05, 0.2, 0.5, 3.0, 4, 40.0, 0.8, 0.1, 0.04)


def test_rows_come_back_from_a_file(tmp_path: Path) -> None:
    rows = [ROW, replace(ROW, way="elastic", every=1, checkpoint=0.0)]
    lab.write(rows, tmp_path / "rows.csv")
    assert lab.read(tmp_path / "rows.csv") == rows


def test_the_formula_is_given_means() -> None:
    other = replace(ROW, checkpoint=0.4, down=1.0, failures=12)
    costs = lab.costs([ROW, other, replace(ROW, way="elastic", down=9.0)])
    assert (costs.gpu_mtbf, costs.checkpoint, costs.restart) == pytest.approx((3.0, 0.3, 0.875))
    assert 0 < float(goodput(costs, 1, ROW.interval).useful) < 1
