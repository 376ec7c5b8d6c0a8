"""A checkpoint goes from any form to any other, and no crash, full disk or damaged file spoils the last good one."""

import errno
import os
import resource
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn, optim
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from reference.cluster import Cluster, RankDied
from reference.data_parallel import DataParallel, DistributedDataParallel, Replicated, flat, naive, whole
from reference.errors import BadInput
from reference.memory.offload import Folder, Memory, OffloadedOptimizer
from reference.memory.precision import PRECISIONS, LossScaler
from reference.oracle import relative_difference
from reference.zero import FullySharded, Sharded
from reference.zero.checkpoint import latest, load, require_plain, save
from reference.zero.checkpoint_folder import complete, contents, files, verify

Clusters = Callable[..., Cluster]
Make = Callable[[list[nn.Parameter]], Optimizer]
PRELOAD = ("torch._dynamo", "torch.distributed.checkpoint")
EXACT = 1e-12  # in float64, of some dozens of steps whose additions are in another order
SAMPLES = 24
ADAM = partial(optim.Adam, lr=0.01)
FORMS = ("naive", "flat", "ddp", "zero1", "zero2", "fsdp", "hsdp")


@pytest.fixture
def eight(clusters: Clusters) -> Cluster:
    return clusters(8, preload=PRELOAD)


@pytest.fixture
def two(clusters: Clusters) -> Cluster:
    return clusters(2, watch=True, preload=PRELOAD)


class Net(nn.Module):
    """Shapes that divide by nothing, a parameter of shape [], and a frozen one."""

    def __init__(self, width: int = 7) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, width), nn.Linear(width, 1, bias=False)
        self.scale, self.fixed = nn.Parameter(torch.tensor(2.0)), nn.Parameter(torch.ones(width), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(x)) * self.fixed * self.scale
        return self.last(hidden.to(self.last.weight.dtype))  # not all forms round what is frozen


def net(seed: int, **options: int) -> Net:
    torch.manual_seed(seed)
    return Net(**options).double()


def loss_of(model: nn.Module, step: int, rank: int = 0, ranks: int = 1) -> Tensor:
    """This rank's part of the loss of a step's batch."""
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(SAMPLES, 3, generator=generator, dtype=torch.float64).tensor_split(ranks)[rank]
    return (model(x.to(model.first.weight.dtype)).double() - 1).square().sum() / SAMPLES


def own(groups: Iterable[Iterable[int]]) -> ProcessGroup | None:
    """Make groups of ranks, all ranks together; the one that this rank is in."""
    made = {tuple(ranks): dist.new_group(list(ranks)) for ranks in groups}
    return next((group for ranks, group in made.items() if dist.get_rank() in ranks), None)


@dataclass(frozen=True)
class Run:
    """A new model in some form on the first ranks of a cluster."""

    kind: str
    ranks: int
    steps: int = 2
    precision: str = "fp64"
    make: Make = ADAM

    def start(self, seed: int) -> tuple[Net, DataParallel, Optimizer, ProcessGroup] | None:
        """All ranks of the cluster call this; None on those that are not part of it."""
        group, half = own([range(self.ranks)]), self.ranks // 2
        if self.kind == "hsdp":
            shards, replicas = own([range(half), range(half, 2 * half)]), own([i, half + i] for i in range(half))
        if group is None:
            return None
        precision = PRECISIONS[self.precision]
        model = net(seed).to(precision.master)
        match self.kind:
            case "naive" | "flat":
                form = Replicated(model, group, precision, naive if self.kind == "naive" else flat)
            case "ddp":
                form = DistributedDataParallel(model, group, precision, bucket_bytes=100)
            case "zero1" | "zero2":
                form = Sharded(model, group, int(self.kind[-1]), precision, bucket_bytes=100)
            case "fsdp":
                form = FullySharded(model, group, precision)
            case "hsdp":
                form = FullySharded(model, shards, precision, replicas=replicas)
        masters = [part.master for part in form.parts] or [nn.Parameter(torch.zeros(0))]  # a rank may have nothing
        return model, form, self.make(masters), group


def train(
    model: Net, form: DataParallel, optimizer: Optimizer, group: ProcessGroup, steps: Iterable[int]
) -> list[float]:
    """The losses of these steps."""
    losses = []
    for step in steps:
        with form.micro_batch(last=True):
            loss = loss_of(model, step, dist.get_rank(group), dist.get_world_size(group))
            loss.backward()
        form.collect()
        optimizer.step()
        form.publish()
        total = loss.detach()
        dist.all_reduce(total, group=group)
        losses.append(total.item())
    return losses


def extra(step: int) -> dict[str, Any]:
    return {"sampler": {"consumed": SAMPLES * step}, "scaler": LossScaler().state_dict(), "note": [None, True, 0.1]}


def relay(runs: list[Run], folder: Path) -> tuple[list[float], dict[str, Tensor]] | None:
    """Each run goes on from what the one before it has saved, with a new model that had other weights."""
    losses, masters = [], {}
    for number, run in enumerate(runs):
        taken = sum(before.steps for before in runs[:number])
        if (started := run.start(seed=number)) is None:
            continue
        model, form, optimizer, group = started
        if number:
            assert load(folder, form, optimizer, group) == (taken, extra(taken))
            now = whole(form)
            assert dist.get_rank() or all(torch.equal(now[name], value) for name, value in masters.items())
        losses += train(model, form, optimizer, group, range(taken, taken + run.steps))
        save(folder, form, optimizer, taken + run.steps, extra(taken + run.steps), group)
        masters = whole(form)
    return losses, masters


def one_process(steps: int, make: Make = ADAM) -> tuple[list[float], dict[str, Tensor]]:
    model, losses = net(seed=0), []
    optimizer = make([parameter for parameter in model.parameters() if parameter.requires_grad])
    for step in range(steps):
        loss = loss_of(model, step)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}


def assert_same(mine: tuple, oracle: tuple, bound: float) -> None:
    assert relative_difference(mine[0], oracle[0]) <= bound
    assert mine[1].keys() == oracle[1].keys()
    assert all(relative_difference(mine[1][name], value) <= bound for name, value in oracle[1].items())


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


@pytest.mark.parametrize("home", [Memory, lambda: Folder("/var/tmp")], ids=["cpu", "disk"])
def test_what_is_offloaded_and_what_is_not_are_one(eight: Cluster, tmp_path: Path, home: Callable) -> None:
    offloaded = partial(Run, make=lambda masters: OffloadedOptimizer(optim.Adam, masters, home(), lr=0.01))
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
        return train(*started, range(2)), whole(form)

    assert_same(eight.run(there_and_back, tmp_path)[0], one_process(2), EXACT)


def test_each_element_is_written_once(eight: Cluster, tmp_path: Path) -> None:
    """Eight replicas: DCP lets each of them write a share. A tensor that travels alone has about 1.3 KB around it."""
    eight.run(relay, [Run("naive", 8)], tmp_path)
    sizes = {name: (latest(tmp_path) / name).stat().st_size for name in files(latest(tmp_path)) if "distcp" in name}
    tensors = 3 * 4  # masters and two moments of four parameters
    assert len(sizes) == 8
    assert sum(sizes.values()) < tensors * 1800
    assert max(sizes.values()) < 3 * 1800


def begun(folder: Path, steps: int) -> tuple[Net, DataParallel, Optimizer, ProcessGroup] | None:
    """A run of ZeRO-1 on two ranks that has saved after each of its steps."""
    if started := Run("zero1", 2).start(seed=0):
        for step in range(steps):
            train(*started, [step])
            save(folder, *started[1:3], step + 1, {}, started[3])
    return started


def begin(folder: Path, steps: int) -> None:
    begun(folder, steps)


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
    assert "ranks do not agree about " in first and "'step': (2.0, 'float32')" in first
    assert os.listdir(tmp_path) == ["000001-step-1"]


def test_every_byte_is_on_the_disk_before_a_checkpoint_has_its_name(eight: Cluster, tmp_path: Path) -> None:
    """What a power cut would show, and no test can."""

    def order(folder: Path) -> list[tuple[str, str]] | None:
        if (started := begun(folder, steps=1)) is None:
            return None
        seen, fsync, rename = [], os.fsync, os.rename

        def noted_fsync(file: int) -> None:
            fsync(file)
            seen.append(("fsync", Path(os.readlink(f"/proc/self/fd/{file}")).name))

        def noted_rename(source: Path, target: Path) -> None:
            rename(source, target)
            seen.append(("rename", Path(target).name))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "fsync", noted_fsync)
            patch.setattr(os, "rename", noted_rename)
            save(folder, *started[1:3], 2, {}, started[3])
        return seen

    first, second, *_ = eight.run(order, tmp_path)
    assert first == [
        ("fsync", "__0_0.distcp"),
        ("fsync", ".metadata.tmp"),
        ("rename", ".metadata"),
        ("fsync", "manifest.json"),
        ("fsync", "SHA256SUMS"),
        ("fsync", ".000002-partial"),
        ("rename", "000002-step-2"),
        ("fsync", tmp_path.name),
    ]
    assert second == [("fsync", "__1_0.distcp")]


def refusals(places: list[Path], run: Run) -> list[tuple[str, bool]] | None:
    """For each place: why it could not be loaded, and whether everything is as it was before that."""
    if (started := run.start(seed=5)) is None:
        return None
    model, form, optimizer, group = started
    train(model, form, optimizer, group, [0])

    def everything() -> list[Tensor]:
        state = [x for values in optimizer.state.values() for x in values.values()]
        return [x.detach().clone() for x in [*whole(form).values(), *state, loss_of(model, 0)]]

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


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"x")


@pytest.mark.parametrize("spoil", [Path.unlink, cut, flip, lengthen])
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
        assert place.name in refusal.partition("damaged")[2] or (place.name == "SHA256SUMS" and spoil in (cut, flip))


def test_the_one_before_a_damaged_one_is_found(eight: Cluster, tmp_path: Path) -> None:
    eight.run(begin, tmp_path, 2)
    first, second = complete(tmp_path)
    flip(second / "__1_0.distcp")  # has its length: nobody sees that without reading it
    ((refusal, _),) = eight.run(refusals, [tmp_path], Run("zero1", 1))[0]
    assert refusal == f"{second} is damaged: __1_0.distcp does not hold what was written; try {first}"
    cut(second / "__1_0.distcp")
    assert latest(tmp_path) == first
    (second / "manifest.json").unlink()
    assert latest(tmp_path) == first


class Wider(Run):
    """The same run of another model."""

    def start(self, seed: int) -> tuple | None:
        if started := super().start(seed):
            *_, group = started
            model = net(seed, width=8)
            form = Replicated(model, group, PRECISIONS["fp64"])
            return model, form, ADAM([part.master for part in form.parts]), group
        return None


def test_another_model_is_refused_by_its_first_difference(eight: Cluster, tmp_path: Path) -> None:
    eight.run(begin, tmp_path, 1)
    one = latest(tmp_path)
    cases = {
        Wider("naive", 2): f"{one} is of another model: first.bias is float64 [7] there and float64 [8] here",
        Run(
            "fsdp", 3, precision="fp32"
        ): f"{one} is of another model: first.bias is float64 [7] there and float32 [7] here",
        Run("zero1", 3, make=partial(optim.SGD, lr=0.1)): f"{one} was saved with Adam, and this is SGD",
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


@pytest.mark.parametrize("bad", [torch.zeros(2), (1, 2), {1: 2}, b"x", {"a": [0, {"b": {3}}]}], ids=str)
def test_what_would_not_come_back_from_text_is_refused(bad: Any) -> None:
    with pytest.raises(BadInput, match=r"extra(\['a'\]\[1\]\['b'\])? is \w+: take None, bool, int"):
        require_plain(bad)


def failures(folder: Path, culprit: int) -> list[tuple[int, list[str], list[str]]] | None:
    """Let the disk be full at one moment after the other: at each call to the file system that names the folder.

    Returns:
        For each moment how many ranks heard of it, what they heard, and what is in the folder afterwards.
    """
    if (started := begun(folder, steps=2)) is None:
        return None
    _, form, optimizer, group = started
    left = -1  # calls until the disk is full; negative: it is not

    def audit(event: str, arguments: tuple) -> None:
        nonlocal left
        if left >= 0 and event.startswith(("open", "os.", "shutil.")) and str(folder) in str(arguments):
            left -= 1
            if left < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    sys.addaudithook(audit)
    found = []
    for moment in range(100):
        left, error = moment if dist.get_rank() == culprit else -1, ""
        try:
            save(folder, form, optimizer, 3 + moment, {}, group)
        except BadInput as caught:
            error = str(caught)
        over, left = left >= 0, -1
        everyone: list = [None, None]
        dist.all_gather_object(everyone, (error, over), group=group)
        found.append((sum(bool(each) for each, _ in everyone), [each for each, _ in everyone], os.listdir(folder)))
        if any(over for _, over in everyone):
            return found
    raise AssertionError("so many calls?")


@pytest.mark.parametrize("culprit", [0, 1])
def test_a_full_disk_at_any_moment_leaves_the_last_checkpoints(eight: Cluster, tmp_path: Path, culprit: int) -> None:
    moments = eight.run(failures, tmp_path, culprit)[0]
    assert len(moments) > (20, 3)[culprit]  # the last is the one in which nothing happened
    before = {"000001-step-1", "000002-step-2"}
    refused = 0
    for heard, errors, names in moments[:-1]:
        assert heard in (0, 2) and len(set(errors)) == 1
        if heard:
            refused += 1
            assert f"rank {culprit}: [Errno 28] No space left on device" in errors[0] and "\n" not in errors[0]
        good = {name for name in names if not name.startswith(".")}
        assert len(good) >= 2
        assert good >= before or not heard or "was saved, but an old one" in errors[0]
        before = good
    assert refused > len(moments) // 2
    assert moments[-1][0] == 0
    for checkpoint in complete(tmp_path):
        verify(checkpoint, files(checkpoint))


def test_a_file_that_may_not_grow_any_further_is_a_full_disk(eight: Cluster, tmp_path: Path) -> None:
    """The kernel itself stops the write, in the middle of what torch.save writes."""

    def limited(folder: Path) -> str | None:
        if (started := begun(folder, steps=1)) is None:
            return None
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        if dist.get_rank() == 1:
            resource.setrlimit(resource.RLIMIT_FSIZE, (3000, limits[1]))
        try:
            with pytest.raises(BadInput) as refusal:
                save(folder, *started[1:3], 2, {}, started[3])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        return str(refusal.value)

    first, second, *_ = eight.run(limited, tmp_path)
    one = tmp_path / "000001-step-1"
    assert first == second == f"step 2 was not saved: rank 1: [Errno 27] File too large; the last checkpoint is {one}"
    assert os.listdir(tmp_path) == [one.name]  # what was written of the other has made room


KILLS = {
    "before anything is written": (0, "os.mkdir", ".000003-partial"),
    "before the elements": (0, "open", "__0_0.distcp"),
    "before the elements of another rank": (1, "open", "__1_0.distcp"),
    "before .metadata has its name": (0, "os.rename", ".metadata.tmp"),
    "before the manifest": (0, "open", ".000003-partial/manifest.json"),
    "before the checksums": (0, "open", "SHA256SUMS"),
    "before it has its name": (0, "os.rename", "000003-step-3"),
}


@pytest.mark.parametrize("moment", KILLS)
def test_a_rank_killed_while_it_saves_leaves_the_last_checkpoint(two: Cluster, tmp_path: Path, moment: str) -> None:
    victim, event, name = KILLS[moment]
    with pytest.raises(RankDied):
        two.run(killed, tmp_path, victim, event, name)
    assert latest(tmp_path).name == "000002-step-2"
    two.run(goes_on, tmp_path, 2)
    number = 3 if event == "os.mkdir" else 4  # one that was begun is not used again
    assert sorted(os.listdir(tmp_path)) == ["000002-step-2", f"00000{number}-step-3"]


def test_a_rank_killed_while_it_deletes_leaves_the_new_checkpoint(two: Cluster, tmp_path: Path) -> None:
    with pytest.raises(RankDied):
        two.run(killed, tmp_path, 0, "os.rmdir", "000001-step-1")
    assert [one.name for one in complete(tmp_path)] == ["000002-step-2", "000003-step-3"]
    two.run(goes_on, tmp_path, 3)
    assert sorted(os.listdir(tmp_path)) == ["000003-step-3", "000004-step-4"]


def killed(folder: Path, victim: int, event: str, name: str) -> None:
    started = begun(folder, steps=2)

    def audit(now: str, arguments: tuple) -> None:
        if now == event and name in str(arguments) and dist.get_rank() == victim:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(audit)
    save(folder, *started[1:3], 3, {}, started[3])


def goes_on(folder: Path, step: int) -> None:
    _, form, optimizer, group = Run("fsdp", 2).start(seed=9)
    assert load(folder, form, optimizer, group) == (step, {})
    save(folder, form, optimizer, step + 1, {}, group)


def test_a_job_killed_at_any_moment_leaves_its_last_checkpoint(two: Cluster, tmp_path: Path) -> None:
    def kill_all(pids: list[int]) -> None:
        wait_until(lambda: latest(tmp_path) is not None)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)

    two.run(dist.get_rank)  # the ranks are up
    killer = threading.Thread(target=kill_all, args=(two.pids,))
    killer.start()
    with pytest.raises(RankDied):
        two.run(begin, tmp_path, 1000)
    killer.join()
    last = latest(tmp_path)
    verify(last, files(last))
    two.run(goes_on, tmp_path, contents(last)["step"])


def wait_until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not happened() and time.monotonic() < deadline:
        time.sleep(0.01)
