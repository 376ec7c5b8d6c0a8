"""What cannot be loaded, or saved, is refused in one line, before anything has changed."""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim

from reference.cluster import Cluster
from reference.data_parallel import Replicated, gather_full
from reference.errors import BadInput
from reference.memory.offload import HostMemory, OffloadedOptimizer
from reference.memory.precision import PRECISIONS
from reference.zero import checkpoint_folder
from reference.zero.checkpoint import latest, load, require_plain
from reference.zero.checkpoint_folder import complete

from .runs import ADAM, Net, Run, begin, loss_of, net, train


def refusals(places: list[Path], run: Run) -> list[tuple[str, bool]] | None:
    """For each place: why it could not be loaded, and whether everything is as it was before that."""
    if (started := run.start(seed=5)) is None:
        return None
    model, form, optimizer, group = started
    train(model, form, optimizer, group, [0])

    def everything() -> list[Tensor]:
        state = [x for values in optimizer.state.values() for x in values.values()]
        return [x.detach().clone() for x in [*gather_full(form).values(), *state, loss_of(model, 0)]]

    found = []
    for place in places:
        before = everything()
        with pytest.raises(BadInput) as refusal:
            load(place, form, optimizer, group)
        same = all(torch.equal(x, y) for x, y in zip(everything(), before, strict=True))
        found.append((str(refusal.value), same))
    return found


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size * 2 // 3)


def flip(path: Path) -> None:
    """One bit, in the middle."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def flip_first(path: Path) -> None:
    """One bit, at the beginning."""
    data = path.read_bytes()
    path.write_bytes(bytes([data[0] ^ 1]) + data[1:])


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"x")


def empty(path: Path) -> None:
    os.truncate(path, 0)


def shorten(path: Path) -> None:
    """By the last two bytes: the very last may be the end of a line, which says nothing."""
    os.truncate(path, path.stat().st_size - 2)


@pytest.mark.parametrize("spoil", [Path.unlink, empty, cut, shorten, flip, flip_first, lengthen])
def test_a_damaged_checkpoint_is_refused_before_anything_changes(
    eight: Cluster, tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    eight.run(begin, tmp_path / "good", 1)
    names = os.listdir(latest(tmp_path / "good"))
    assert sorted(names) == [".metadata", "SHA256SUMS", "__0_0.distcp", "__1_0.distcp", "manifest.json"]
    places = [tmp_path / name for name in names]
    for place in places:
        shutil.copytree(tmp_path / "good", place)
        spoil(latest(place) / place.name)
    results = [result for result in eight.run(refusals, places, Run("fsdp", 3)) if result]
    assert results[0] == results[1] == results[2]  # the same words on every rank
    for place, (refusal, unchanged) in zip(places, results[0], strict=True):
        assert unchanged
        assert refusal.startswith(str(place)) and "is damaged: " in refusal and "\n" not in refusal
        assert place.name in refusal.partition("damaged")[2] or place.name == "SHA256SUMS"


def test_the_one_before_a_damaged_one_is_found(eight: Cluster, tmp_path: Path) -> None:
    eight.run(begin, tmp_path, 2)
    first, second = complete(tmp_path)
    flip(second / "__1_0.distcp")  # has its length: to see that, one must read it
    ((refusal, _),) = eight.run(refusals, [tmp_path], Run("zero1", 1))[0]
    wrong = "__1_0.distcp does not hold what was written"
    assert refusal == f"{second} is damaged: {wrong}; move it elsewhere, and {first} is the newest"
    cut(second / "__1_0.distcp")
    assert latest(tmp_path) == first
    (second / "manifest.json").unlink()
    assert latest(tmp_path) == first


def wider(seed: int) -> Net:
    return net(seed, width=8)


def with_a_bias(seed: int) -> Net:
    model = net(seed)
    model.last = nn.Linear(7, 1).double()
    return model


def without_a_bias(seed: int) -> Net:
    model = net(seed)
    model.first.bias = None
    return model


@dataclass(frozen=True)
class Other(Run):
    """The same run of another model."""

    model: Callable[[int], Net] = wider

    def start(self, seed: int) -> tuple | None:
        if started := super().start(seed):
            *_, group = started
            model = self.model(seed)
            form = Replicated(model, group, PRECISIONS["fp64"])
            return model, form, ADAM([part.master for part in form.parts]), group
        return None


def offloaded(masters: list[nn.Parameter], **options: Any) -> OffloadedOptimizer:
    return OffloadedOptimizer(optim.Adam, masters, HostMemory(), **options)


def test_another_model_is_refused_by_its_first_difference(eight: Cluster, tmp_path: Path) -> None:
    eight.run(begin, tmp_path, 1)
    one = latest(tmp_path)
    lacks = "was saved with Adam that kept exp_avg, exp_avg_sq; this one needs max_exp_avg_sq"
    cases = {
        Other("naive", 2): f"{one} is of another model: first.bias is float64 [7] there and float64 [8] here",
        Other(
            "naive", 2, model=with_a_bias
        ): f"{one} is of another model: this model has last.bias, float64 [1], and it has not",
        Other(
            "naive", 2, model=without_a_bias
        ): f"{one} is of another model: it has first.bias, float64 [7], and this model has not",
        Run(
            "fsdp", 3, precision="fp32"
        ): f"{one} is of another model: first.bias is float64 [7] there and float32 [7] here",
        Run("zero1", 3, make=partial(optim.SGD, lr=0.1)): f"{one} was saved with Adam, and this is SGD",
        Run("zero1", 3, make=partial(optim.Adam, amsgrad=True)): f"{one} {lacks}",
        Run("naive", 2, make=partial(offloaded, amsgrad=True)): f"{one} {lacks}",
    }
    for run, expected in cases.items():
        assert [result for result in eight.run(refusals, [tmp_path], run) if result] == [[(expected, True)]] * run.ranks


def test_a_folder_without_a_checkpoint_is_refused(eight: Cluster, tmp_path: Path) -> None:
    (tmp_path / ".000001-partial").mkdir()
    places = [tmp_path, tmp_path / "nowhere", tmp_path / "000007-step-3"]
    results = eight.run(refusals, places, Run("ddp", 2))
    assert results[0] == results[1]
    assert [refusal for refusal, _ in results[0]] == [
        f"there is no checkpoint in {tmp_path}",
        f"there is no checkpoint in {tmp_path / 'nowhere'}",
        f"there is no checkpoint in {tmp_path / '000007-step-3'}",
    ]


def test_another_format_is_refused_by_its_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr(checkpoint_folder, "FORMAT", 1)  # a parameter was a flat tensor
        old = checkpoint_folder.finish(checkpoint_folder.begin(tmp_path), 7, {}, {})
    with pytest.raises(BadInput, match=f"^{old} has format 1, and this program reads format 3$"):
        checkpoint_folder.contents(old)
    assert latest(tmp_path) is None


@pytest.mark.parametrize("bad", [torch.zeros(2), (1, 2), {1: 2}, b"x", {"a": [0, {"b": {3}}]}], ids=str)
def test_what_would_not_come_back_from_text_is_refused(bad: Any) -> None:
    with pytest.raises(BadInput, match=r"extra(\['a'\]\[1\]\['b'\])? is \w+: take None, bool, int"):
        require_plain(bad)
