"""A checkpoint goes from any form to any other, on any number of ranks."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch.distributed as dist
from torch import optim

from reference.cluster import Cluster
from reference.data_parallel import gather_full
from reference.errors import BadInput
from reference.memory.offload import DiskStorage, HostMemory, OffloadedOptimizer
from reference.memory.precision import PRECISIONS
from reference.zero.checkpoint import latest, load, save
from reference.zero.checkpoint_folder import complete, files

from .runs import Make, Run, assert_same, begin, begun, one_process, relay, train

EXACT = 1e-12  # in float64, of some dozens of steps whose additions are in another order
FORMS = ("naive", "flat", "ddp", "zero1", "zero2", "fsdp", "hsdp")


def test_a_run_goes_on_in_any_form_on_any_number_of_ranks(eight: Cluster, tmp_path: Path) -> None:
    runs = "naive 1, zero1 3, fsdp 5, ddp 2, hsdp 6, zero2 7, flat 4, fsdp 8, hsdp 4, zero1 8, ddp 3, zero2 1, naive 7"
    legs = [Run(kind, int(ranks)) for kind, ranks in (leg.split() for leg in runs.split(", "))]
    assert {leg.kind for leg in legs} == set(FORMS)
    assert {leg.ranks for leg in legs} == set(range(1, 9))
    assert_same(eight.run(relay, legs, tmp_path)[0], one_process(2 * len(legs)), EXACT)


@pytest.mark.parametrize("precision", ["fp64", "bf16"])
@pytest.mark.parametrize("kind", ["ddp", "zero1", "zero2", "fsdp", "hsdp"])
def test_the_same_form_goes_on_bit_by_bit(eight: Cluster, tmp_path: Path, kind: str, precision: str) -> None:
    run = Run(kind, 4 if kind == "hsdp" else 3, precision=precision)
    through, *_ = eight.run(relay, [Run(kind, run.ranks, 4, precision)], tmp_path / "through")
    in_two, *_ = eight.run(relay, [run, run], tmp_path / "in two")
    assert_same(in_two, through, 0.0)
    assert {value.dtype for value in in_two[1].values()} == {PRECISIONS[precision].master}


@pytest.mark.parametrize(
    "make",
    [
        partial(optim.SGD, lr=0.01),
        partial(optim.SGD, lr=0.01, momentum=0.9),
        partial(optim.AdamW, lr=0.01, amsgrad=True),
        partial(optim.NAdam, lr=0.01),  # has a second number beside the count of steps, in float32
        partial(optim.Adagrad, lr=0.01),  # has state before the first step
        partial(optim.RMSprop, lr=0.01, centered=True, momentum=0.5),
        partial(optim.ASGD, lr=0.01),
    ],
    ids=lambda make: f"{make.func.__name__} {list(make.keywords)[1:]}",
)
def test_any_elementwise_optimizer_goes_on(eight: Cluster, tmp_path: Path, make: Make) -> None:
    runs = [Run("naive", 2, make=make), Run("zero2", 3, make=make), Run("zero2", 3, make=make)]
    assert_same(eight.run(relay, runs, tmp_path)[0], one_process(6, make), EXACT)


@pytest.mark.parametrize("target", [HostMemory, lambda: DiskStorage("/var/tmp")], ids=["cpu", "disk"])
def test_what_is_offloaded_and_what_is_not_are_one(eight: Cluster, tmp_path: Path, target: Callable) -> None:
    offloaded = partial(Run, make=lambda masters: OffloadedOptimizer(optim.Adam, masters, target(), lr=0.01))
    runs = [Run("ddp", 2), offloaded("zero1", 3), offloaded("fsdp", 2), Run("zero1", 2)]
    assert_same(eight.run(relay, runs, tmp_path)[0], one_process(8), EXACT)


def test_masters_are_the_same_in_every_precision_that_keeps_them(eight: Cluster, tmp_path: Path) -> None:
    """`relay` compares them bit by bit."""
    runs = [Run("zero1", 3, precision="bf16"), Run("ddp", 2, precision="fp32"), Run("fsdp", 5, precision="bf16")]
    eight.run(relay, runs, tmp_path)


def test_a_run_that_goes_back_to_its_start_forgets_what_it_remembered(eight: Cluster, tmp_path: Path) -> None:
    def there_and_back(folder: Path) -> tuple | None:
        if (started := Run("zero2", 3).start(seed=0)) is None:
            return None
        _, form, optimizer, group = started
        start = save(folder, form, optimizer, 0, {}, group)
        train(*started, range(3))
        assert optimizer.state
        load(start, form, optimizer, group)
        assert not optimizer.state
        return train(*started, range(2)), gather_full(form)

    assert_same(eight.run(there_and_back, tmp_path)[0], one_process(2), EXACT)


def test_each_element_is_written_once(eight: Cluster, tmp_path: Path) -> None:
    """Eight replicas: DCP lets each of them write a share. A tensor that travels alone has about 1.3 KB around it."""
    eight.run(relay, [Run("naive", 8)], tmp_path)
    sizes = {name: (latest(tmp_path) / name).stat().st_size for name in files(latest(tmp_path)) if "distcp" in name}
    tensors = 3 * 4  # masters and two moments of four parameters
    assert len(sizes) == 8
    assert sum(sizes.values()) < tensors * 1800
    assert max(sizes.values()) < 3 * 1800


def test_the_last_checkpoints_are_kept(eight: Cluster, tmp_path: Path) -> None:
    def five_times(folder: Path) -> None:
        if started := begun(folder, steps=3):
            save(folder, *started[1:3], 4, {}, started[3], keep=3)
            save(folder, *started[1:3], 4, {}, started[3], keep=1)  # a step may be saved twice

    assert latest(tmp_path / "nothing") is None
    eight.run(begin, tmp_path, 3)
    assert [one.name for one in complete(tmp_path)] == ["000002-step-2", "000003-step-3"]
    assert latest(tmp_path) == tmp_path / "000003-step-3"
    eight.run(five_times, tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["000008-step-4"]


def test_a_folder_that_keeps_none_gets_none(eight: Cluster, tmp_path: Path) -> None:
    def keeps_none(folder: Path) -> str | None:
        if (started := begun(folder, steps=1)) is None:
            return None
        with pytest.raises(BadInput) as refusal:
            save(folder, *started[1:3], 2, {}, started[3], keep=0)
        return str(refusal.value)

    for said in eight.run(keeps_none, tmp_path)[:2]:
        assert said.startswith("step 2 was not saved: a folder keeps 1 checkpoint or more, not 0; ")
    assert os.listdir(tmp_path) == ["000001-step-1"]


def test_ranks_that_took_different_steps_save_nothing(eight: Cluster, tmp_path: Path) -> None:
    def one_too_many(folder: Path) -> str | None:
        if (started := begun(folder, steps=1)) is None:
            return None
        if dist.get_rank() == 1:
            for part in started[1].parts:
                started[2].state[part.master]["step"] += 1
        with pytest.raises(BadInput) as refusal:
            save(folder, *started[1:3], 2, {}, started[3])
        return str(refusal.value)

    first, second, *_ = eight.run(one_too_many, tmp_path)
    assert first == second
    assert first.startswith("step 2 was not saved: ranks do not agree about ")
    assert first.endswith(f"; the last checkpoint is {tmp_path / '000001-step-1'}")
    assert "ranks do not agree about " in first and "'step': (2.0, 'float32')" in first
    assert os.listdir(tmp_path) == ["000001-step-1"]
