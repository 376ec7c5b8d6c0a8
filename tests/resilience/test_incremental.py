"""An increment loads as a full checkpoint does, holds what has changed, and names what it lacks."""

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn, optim

from rankwise.cli import run
from reference.cluster import Cluster
from reference.data_parallel import gather_full
from reference.errors import BadInput
from reference.memory.precision import PRECISIONS
from reference.report import read_log
from reference.resilience.incremental import IncrementalCheckpoints, load
from reference.zero import FullySharded, Sharded, checkpoint
from reference.zero.checkpoint_folder import complete, files, latest

ROWS, WIDTH, TOUCHED = 512, 32, 8
FORMS = {"zero1": partial(Sharded, stage=1, bucket_bytes=4096), "fsdp": FullySharded}


class Words(nn.Module):
    """An embedding of which a step asks for a few rows, and a layer that is always used."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(ROWS, WIDTH), nn.Linear(WIDTH, 1)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.embedding(tokens)).square().mean()


def started(kind: str, ranks: int) -> tuple | None:
    group = dist.new_group(list(range(ranks)))
    if dist.get_rank() >= ranks:
        return None
    torch.manual_seed(0)
    form = FORMS[kind](model := Words().double(), group, precision=PRECISIONS["fp64"])
    masters = [part.master for part in form.parts] or [nn.Parameter(torch.zeros(0))]
    return model, form, optim.Adagrad(masters, lr=0.1), group


def step(model: Words, form: object, optimizer: object, number: int) -> None:
    """Rows that are near each other are asked for together, other ones in each step."""
    tokens = torch.arange(TOUCHED) + 37 * number % (ROWS - TOUCHED)
    with form.micro_batch(last=True):
        model(tokens).backward()
    form.reduce_gradients()
    optimizer.step()
    form.end_step()


def everything(form: object, optimizer: object) -> list[Tensor]:
    sums = gather_full(form, lambda part: optimizer.state[part.master]["sum"])
    both = [*gather_full(form).items(), *((f"sum {name}", value) for name, value in sums.items())]
    return [value for _, value in sorted(both, key=lambda each: each[0])]  # forms have them in orders of their own


def saved(folder: Path, kind: str, ranks: int, steps: int, full_every: int) -> list[Tensor] | None:
    """Save after each step. What rank 0 has in the end."""
    if (run := started(kind, ranks)) is None:
        return None
    model, form, optimizer, group = run
    increments = IncrementalCheckpoints(folder, form, optimizer, group, full_every, block=1024)
    for number in range(steps):
        step(model, form, optimizer, number)
        increments.save(number + 1, {"note": number})
    return everything(form, optimizer)


def loaded(folder: Path, kind: str, ranks: int) -> tuple | None:
    if (run := started(kind, ranks)) is None:
        return None
    _, form, optimizer, group = run
    return load(folder, form, optimizer, group), everything(form, optimizer)


def size(one: Path) -> int:
    return sum((one / name).stat().st_size for name in files(one) if "distcp" in name)


@pytest.mark.parametrize(("before", "after"), [(("zero1", 4), ("fsdp", 3)), (("fsdp", 3), ("zero1", 2))])
def test_an_increment_loads_as_a_full_one_does(
    eight: Cluster, tmp_path: Path, before: tuple[str, int], after: tuple[str, int]
) -> None:
    mine = eight.run(saved, tmp_path, *before, 4, 9)[0]
    names = [each.name for each in complete(tmp_path)]
    assert names == ["000001-step-1", "000003-step-3", "000004-step-4"]  # two are kept, and what they add to
    (number, extra), found = eight.run(loaded, tmp_path, *after)[0]
    assert (number, extra) == (4, {"note": 3})
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(mine, found, strict=True))


def test_an_increment_holds_what_has_changed(eight: Cluster, tmp_path: Path) -> None:
    """Rows of 8 tokens in each of 3 steps, of 512; in float64, of the weight and of Adagrad's sum."""
    eight.run(saved, tmp_path, "zero1", 2, 4, 9)
    full, *_, last = complete(tmp_path)
    changed = 2 * 8 * (3 * TOUCHED + WIDTH) * WIDTH  # bytes: with a block at each end of each run of rows
    assert size(full) > 2 * 8 * ROWS * WIDTH
    assert size(last) < changed * 2 < size(full) / 3


def test_a_full_one_comes_when_it_is_due_and_when_the_base_is_gone(eight: Cluster, tmp_path: Path) -> None:
    eight.run(saved, tmp_path, "zero1", 2, 4, 2)
    assert [each.name for each in complete(tmp_path)] == ["000003-step-3", "000004-step-4"]

    def loses_its_base(folder: Path) -> str | None:
        if (run := started("zero1", 2)) is None:
            return None
        model, form, optimizer, group = run
        increments = IncrementalCheckpoints(folder, form, optimizer, group)
        step(model, form, optimizer, 0)
        base = increments.save(1, {})
        dist.barrier(group)
        if dist.get_rank() == 0:
            (base / "manifest.json").unlink()
        dist.barrier(group)
        step(model, form, optimizer, 1)
        increments.save(2, {})
        return increments._base.name

    assert eight.run(loses_its_base, tmp_path / "other")[:2] == ["000002-step-2"] * 2


def gone(base: Path) -> None:
    shutil.rmtree(base)


def flipped(base: Path) -> None:
    data = bytearray((base / "__0_0.distcp").read_bytes())
    data[len(data) // 2] ^= 4
    (base / "__0_0.distcp").write_bytes(data)


def another(base: Path) -> None:
    """A checkpoint of this name, complete, and not the one that it was."""
    shutil.copytree(latest(base.parent.with_name("other")), base, dirs_exist_ok=True)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (gone, "holds only what has changed since {base}, which is not there"),
        (flipped, "{base} is damaged: __0_0.distcp does not hold what was written"),
        (another, "holds only what has changed since {base}, and that is another one now"),
    ],
)
def test_a_broken_link_is_named_and_nothing_changes(
    eight: Cluster, tmp_path: Path, spoil: Callable[[Path], None], reason: str
) -> None:
    def refused(folder: Path) -> tuple[str, bool] | None:
        if (run := started("fsdp", 3)) is None:
            return None
        model, form, optimizer, group = run
        step(model, form, optimizer, 5)
        before = everything(form, optimizer)
        with pytest.raises(BadInput) as refusal:
            load(folder, form, optimizer, group)
        same = all(torch.equal(x, y) for x, y in zip(everything(form, optimizer), before, strict=True))
        return str(refusal.value), same

    eight.run(saved, tmp_path / "run", "zero1", 2, 2, 9)
    eight.run(saved, tmp_path / "other", "zero1", 2, 1, 9)
    base, increment = complete(tmp_path / "run")
    spoil(base)
    found = eight.run(refused, increment)[:3]
    assert found[0] == found[1] == found[2]
    said, unchanged = found[0]
    assert unchanged and "\n" not in said
    assert reason.format(base=base) in said


def test_a_load_of_full_checkpoints_refuses_an_increment(eight: Cluster, tmp_path: Path) -> None:
    def refused(folder: Path) -> str | None:
        if (run := started("zero1", 2)) is None:
            return None
        with pytest.raises(BadInput) as refusal:
            checkpoint.load(folder, *run[1:])
        return str(refusal.value)

    eight.run(saved, tmp_path, "zero1", 2, 2, 9)
    assert "holds only what has changed since 000001-step-1" in eight.run(refused, tmp_path)[0]


FEW_BYTES = ["train", "--ranks", "2", "--data-parallel", "fsdp", "--batch", "4", "--sequence", "16", "--steps", "6"]


def test_the_command_line_saves_what_has_changed_and_resumes_from_it(tmp_path: Path) -> None:
    """The text has 2 bytes of 256: all other rows of the embedding stay as they are, and so do their moments."""
    text, folder = tmp_path / "text", tmp_path / "checkpoints"
    text.write_bytes(b"ab" * 4000 + b"a" * 4000)
    common = [*FEW_BYTES, "--data", str(text), "--weight-decay", "0"]
    saves = ["--save", str(folder), "--save-every", "1", "--save-full-every", "9"]
    assert run([*common, *saves, "--stop-after", "3", "--log", str(tmp_path / "log")]) == 0
    full, _, last = complete(folder)
    width, moments, rows_of_a_block = 128, 2, 16384 // (4 * 128)
    unchanged = 256 - 2 * rows_of_a_block  # rows at least: 97 and 98 are in one block, or in two
    assert size(full) - size(last) == pytest.approx((1 + moments) * 4 * width * unchanged, rel=0.2)
    assert run(["train", "--save", str(folder), "--resume", "--log", str(tmp_path / "log")]) == 0
    assert run([*common, "--log", str(tmp_path / "whole")]) == 0
    both = [[step.loss for step in read_log(tmp_path / name)[0]] for name in ("log", "whole")]
    assert both[0] == both[1] and len(both[0]) == 6


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (["--save-full-every", "3"], "--save-full-every needs --save FOLDER"),
        (["--save-full-every", "0", "--save", "FOLDER"], "1 checkpoint or more, not 0"),
        (["--save-full-every", "3", "--save", "FOLDER", "--save-in-background"], "or --no-save-in-background"),
        (["--save-full-every", "3", "--save", "FOLDER", "--elastic"], "--elastic writes checkpoints in full"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
def test_what_does_not_go_together_is_refused(
    more: list[str], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    given = [str(tmp_path) if word == "FOLDER" else word for word in more]
    assert run([*FEW_BYTES, *given]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and reason in said
