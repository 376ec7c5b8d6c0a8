"""One answer for all, whichever of them is slow or gone."""

import threading
import time
from pathlib import Path

import pytest
import torch.distributed as dist

from reference.errors import BadInput
from reference.resilience.quorum import StoreQuorum

PATIENCE = 1.0


def quorums(folder: Path, ranks: int, together: int = 1) -> list[StoreQuorum]:
    """Each over a store of its own on one file, as processes have it."""
    stores = [dist.FileStore(str(folder / "store"), ranks) for _ in range(ranks)]
    return [StoreQuorum(store, rank, ranks, PATIENCE, together) for rank, store in enumerate(stores)]


def gathered(all_of: list[StoreQuorum], topic: str, **options: object) -> dict[int, object]:
    """What each that is asked gets, by rank."""
    found: dict[int, object] = {}

    def ask(quorum: StoreQuorum, members: list[int] | None) -> None:
        found[quorum.rank] = quorum.gather(topic, f"from {quorum.rank}", members)

    members = options.get("members", [each.rank for each in all_of])
    threads = [threading.Thread(target=ask, args=(quorum, members)) for quorum in all_of]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return found


def test_all_that_are_here_are_heard(tmp_path: Path) -> None:
    all_of = quorums(tmp_path, 3)
    assert gathered(all_of, "step 0") == {rank: {each: f"from {each}" for each in range(3)} for rank in range(3)}
    for quorum in all_of:
        quorum.close()


def test_one_that_is_gone_is_waited_for_until_patience_ends(tmp_path: Path) -> None:
    all_of = quorums(tmp_path, 3)
    all_of[1].close()
    began = time.monotonic()
    found = gathered([all_of[0], all_of[2]], "step 0", members=[0, 1, 2])
    assert found == {rank: {0: "from 0", 2: "from 2"} for rank in (0, 2)}
    assert time.monotonic() - began > 0.9 * PATIENCE
    for quorum in (all_of[0], all_of[2]):
        quorum.close()


def test_one_that_comes_late_reads_that_it_was_not_counted(tmp_path: Path) -> None:
    all_of = quorums(tmp_path, 2)
    assert all_of[0].gather("step 0", "here", [0]) == {0: "here"}
    assert all_of[1].gather("step 0", "here, too", [0, 1]) == {0: "here"}
    for quorum in all_of:
        quorum.close()


def test_ranks_that_live_together_die_together(tmp_path: Path) -> None:
    all_of = quorums(tmp_path, 4, together=2)
    all_of[3].close()
    found = gathered(all_of[:2], "step 0", members=[0, 1, 2, 3])
    assert found[0] == {0: "from 0", 1: "from 1"} == found[1]
    for quorum in all_of[:3]:
        quorum.close()


def test_a_newcomer_does_not_decide_alone(tmp_path: Path) -> None:
    first, second = quorums(tmp_path, 2)
    first.close()
    with pytest.raises(TimeoutError, match="none of them is alive"):
        second.gather("step 0", "hello", None)
    second.close()


def test_a_patience_that_no_heart_can_meet_is_refused() -> None:
    with pytest.raises(BadInput, match="be patient"):
        StoreQuorum(dist.HashStore(), 0, 1, 0.1)
