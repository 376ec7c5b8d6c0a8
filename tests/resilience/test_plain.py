"""The plain checkpoint: whole or not at all, without later values, loaded by all or by none."""

import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from reference.cluster import Cluster
from reference.resilience.plain import State, load, save, save_behind


def state_of(rank: int) -> State:
    return {"weight": torch.arange(4.0) + rank, "step": torch.tensor(3.0)}


@pytest.mark.parametrize("behind", [False, True], ids=["at once", "behind training"])
def test_what_was_there_when_it_was_asked_for_comes_back(eight: Cluster, tmp_path: Path, behind: bool) -> None:
    def there_and_back(folder: Path) -> bool:
        group, state = dist.group.WORLD, state_of(dist.get_rank())
        finish = save_behind(state, folder, 3, group) if behind else save(state, folder, 3, group)
        for x in state.values():
            x.add_(1000)
        if finish:
            finish()
        assert os.listdir(folder) == ["step-3"]  # on every rank, when it returns
        assert load(state, folder / "step-3", group)
        return all(
            torch.equal(x, right) for x, right in zip(state.values(), state_of(dist.get_rank()).values(), strict=True)
        )

    assert all(eight.run(there_and_back, tmp_path))


@pytest.mark.parametrize("damage", ["gone", "cut", "of another shape"])
def test_one_damaged_file_changes_nothing_on_any_rank(eight: Cluster, tmp_path: Path, damage: str) -> None:
    def refused(folder: Path) -> bool:
        group, state = dist.group.WORLD, state_of(dist.get_rank())
        save(state, folder, 3, group)
        if dist.get_rank() == 2:
            path = folder / "step-3" / "2.pt"
            match damage:
                case "gone":
                    path.unlink()
                case "cut":
                    os.truncate(path, path.stat().st_size // 2)
                case _:
                    torch.save({"weight": torch.zeros(5), "step": torch.tensor(1.0)}, path)
        for x in state.values():
            x.add_(1000)
        before = [x.clone() for x in state.values()]
        loaded = load(state, folder / "step-3", group)
        return not loaded and all(torch.equal(x, y) for x, y in zip(state.values(), before, strict=True))

    assert all(eight.run(refused, tmp_path))
