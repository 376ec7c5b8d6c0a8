"""INTELLECT-1's published shares of time, and the seconds behind them, from the replay of the engine's own message."""

import pytest

from reference.cluster import Cluster
from reference.decentralized.lab.intellect import GIGABITS, shares, traced


def test_shares_and_seconds_are_within_a_tenth(eight: Cluster) -> None:
    found = shares(traced(eight))
    assert [each.setting for each in found] == list(GIGABITS)
    for each in found:
        assert each.share == pytest.approx(each.published_share, rel=0.1)
        assert each.seconds == pytest.approx(each.published_seconds, rel=0.1)
