"""State and activations that live elsewhere change nothing but where memory is used."""

import errno
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest
import torch
from torch import Tensor, UntypedStorage, nn
from torch.optim import Optimizer

from reference.errors import BadInput
from reference.memory.activation_offload import offload_activations
from reference.memory.lab.storages import LiveBytes
from reference.memory.offload import OffloadedOptimizer, offload_values
from reference.memory.offload_targets import DiskStorage, HostMemory, Offload, OffloadTarget, offload_target
from reference.memory.recompute import Recompute, recompute
from reference.models import GPT, PRESETS, create, token_loss

TOKENS = torch.randint(256, (2, 16), generator=torch.Generator().manual_seed(0))

OPTIMIZERS: dict[str, tuple[Callable[..., Optimizer], dict]] = {
    "SGD": (torch.optim.SGD, {"lr": 0.1}),
    "SGD with momentum": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "Adam": (torch.optim.Adam, {"lr": 1e-2, "weight_decay": 0.1}),
    "AdamW with amsgrad": (torch.optim.AdamW, {"lr": 1e-2, "amsgrad": True}),
    "Adagrad": (torch.optim.Adagrad, {"lr": 1e-2}),
    "RMSprop": (torch.optim.RMSprop, {"lr": 1e-3, "momentum": 0.5, "centered": True}),
    "Adamax": (torch.optim.Adamax, {"lr": 1e-2}),
    "Adafactor": (torch.optim.Adafactor, {"lr": 1e-2}),
}


@pytest.fixture(params=[Offload.CPU, Offload.DISK])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> OffloadTarget:
    return offload_target(request.param, tmp_path)


def mapped(x: Tensor) -> bool:
    """True if the pages of a tensor are those of a file."""
    return x.untyped_storage().filename is not None


def backward(model: nn.Module) -> None:
    token_loss(model(TOKENS), TOKENS, TOKENS.numel()).backward()


def train(model: GPT, optimizer: Optimizer, steps: int = 5, first: int = 0) -> None:
    for step in range(first, first + steps):
        for group in optimizer.param_groups:
            group["lr"] = group.setdefault("initial", group["lr"]) / (1 + step)
        backward(model)
        optimizer.step()
        optimizer.zero_grad()


def same(mine: nn.Module, oracle: nn.Module) -> bool:
    return all(map(torch.equal, mine.parameters(), oracle.parameters()))


def tiny(dtype: torch.dtype = torch.float32) -> GPT:
    return create(GPT, PRESETS["tiny"], dtype=dtype)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_are_bitwise_those_of_the_optimizer_itself(name: str, target: OffloadTarget):
    optimizer_class, options = OPTIMIZERS[name]
    mine, oracle = tiny(), tiny()
    train(mine, OffloadedOptimizer(optimizer_class, mine.parameters(), target, **options))
    train(oracle, optimizer_class(oracle.parameters(), **options))
    assert same(mine, oracle)


def groups_of(model: nn.Module) -> list[dict]:
    """Matrices decay, vectors do not."""
    matrices, vectors = ([p for p in model.parameters() if (p.dim() > 1) is matrix] for matrix in (True, False))
    return [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0, "amsgrad": True}]


def test_groups_have_options_of_their_own(target: OffloadTarget):
    mine, oracle = tiny(), tiny()
    train(mine, OffloadedOptimizer(torch.optim.AdamW, groups_of(mine), target, lr=1e-2))
    train(oracle, torch.optim.AdamW(groups_of(oracle), lr=1e-2))
    assert same(mine, oracle)


def test_a_scheduler_sets_the_learning_rate(target: OffloadTarget):
    parameter = nn.Parameter(torch.ones(3))
    optimizer = OffloadedOptimizer(torch.optim.SGD, [parameter], target, lr=1.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
    for _ in range(3):
        parameter.grad = torch.ones(3)
        optimizer.step()
        schedule.step()
    assert parameter.tolist() == [1 - 1 - 0.5 - 0.25] * 3


def test_who_has_no_gradient_is_left_alone(target: OffloadTarget):
    used, unused = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    optimizer = OffloadedOptimizer(torch.optim.Adam, [used, unused], target, weight_decay=1.0)
    used.grad = torch.ones(2)
    optimizer.step()
    assert used.tolist() != [1, 1]
    assert unused.tolist() == [1, 1]
    assert list(optimizer.state) == [used]


def test_moments_live_in_files(tmp_path: Path):
    model = tiny()
    optimizer = OffloadedOptimizer(torch.optim.Adam, model.parameters(), DiskStorage(tmp_path))
    train(model, optimizer, steps=2)
    assert set(optimizer.state) == set(model.parameters())
    for state in optimizer.state.values():
        assert {name for name, x in state.items() if mapped(x)} == {"exp_avg", "exp_avg_sq"}


def test_masters_may_live_in_files_too(tmp_path: Path):
    mine, oracle = tiny(), tiny()
    folder = DiskStorage(tmp_path)
    offload_values(mine.parameters(), folder)
    assert all(mapped(p) for p in mine.parameters())
    train(mine, OffloadedOptimizer(torch.optim.Adam, mine.parameters(), folder))
    train(oracle, torch.optim.Adam(oracle.parameters()))
    assert same(mine, oracle)
    assert all(mapped(p) for p in mine.parameters())


def test_training_goes_on_from_a_saved_state_with_or_without_offload(target: OffloadTarget, tmp_path: Path):
    model, oracle = tiny(), tiny()
    optimizer = OffloadedOptimizer(torch.optim.Adam, model.parameters(), target, lr=1e-2)
    train(model, optimizer, steps=3)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "saved.pt")
    train(oracle, torch.optim.Adam(oracle.parameters(), lr=1e-2), steps=5)

    makers = (torch.optim.Adam, lambda parameters: OffloadedOptimizer(torch.optim.Adam, parameters, target))
    for make in makers:
        saved = torch.load(tmp_path / "saved.pt")
        resumed = create(GPT, PRESETS["tiny"], seed=7)
        optimizer = make(resumed.parameters())
        resumed.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        train(resumed, optimizer, steps=2, first=3)
        assert same(resumed, oracle)


def test_a_loaded_state_is_a_copy_and_lives_at_home(tmp_path: Path):
    model = tiny()
    plain = torch.optim.Adam(model.parameters())
    train(model, plain, steps=1)
    optimizer = OffloadedOptimizer(torch.optim.Adam, model.parameters(), DiskStorage(tmp_path))
    optimizer.load_state_dict(plain.state_dict())
    for parameter, state in optimizer.state.items():
        assert mapped(state["exp_avg"])
        assert torch.equal(state["exp_avg"], plain.state[parameter]["exp_avg"])
        assert state["step"] is not plain.state[parameter]["step"]


def test_its_own_state_may_be_loaded_again(target: OffloadTarget):
    """As it is given out, without a copy in between."""
    parameter = nn.Parameter(torch.ones(3))
    optimizer = OffloadedOptimizer(torch.optim.Adam, [parameter], target)
    parameter.grad = torch.ones(3)
    optimizer.step()
    before = {name: value.clone() for name, value in optimizer.state[parameter].items()}
    optimizer.load_state_dict(optimizer.state_dict())
    assert before.keys() == optimizer.state[parameter].keys() == {"step", "exp_avg", "exp_avg_sq"}
    assert all(torch.equal(optimizer.state[parameter][name], value) for name, value in before.items())


def test_a_state_of_another_model_is_refused(target: OffloadTarget):
    optimizer = OffloadedOptimizer(torch.optim.Adam, tiny().parameters(), target)
    other = torch.optim.Adam([nn.Parameter(torch.ones(3))])
    with pytest.raises(ValueError, match="size of optimizer's group"):
        optimizer.load_state_dict(other.state_dict())


def test_a_moment_of_another_shape_is_refused(target: OffloadTarget):
    one, three = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(3))
    other = torch.optim.Adam([one])
    one.grad = torch.ones(1)
    other.step()
    optimizer = OffloadedOptimizer(torch.optim.Adam, [three], target)
    with pytest.raises(BadInput, match=r"parameter 0 must have shape \(3,\), and not \(1,\)"):
        optimizer.load_state_dict(other.state_dict())


def test_matrices_alone_may_have_an_optimizer_for_matrices(target: OffloadTarget):
    mine, right = (nn.Parameter(torch.arange(12.0).view(3, 4)) for _ in range(2))
    optimizers = OffloadedOptimizer(torch.optim.Muon, [mine], target), torch.optim.Muon([right])
    for _ in range(3):
        for parameter, optimizer in zip((mine, right), optimizers, strict=True):
            parameter.grad = parameter.detach().cos()
            optimizer.step()
    assert torch.equal(mine, right)


class AllAtOnce(torch.optim.SGD):
    """A caller's own, of which no list knows."""

    def step(self, gradients: list[Tensor]) -> None:
        raise NotImplementedError


@pytest.mark.parametrize("kind", [torch.optim.LBFGS, torch.optim.SparseAdam, AllAtOnce])
def test_who_does_not_treat_each_parameter_by_itself_is_refused(target: OffloadTarget, kind: type[Optimizer]):
    with pytest.raises(BadInput, match=f"^{kind.__name__} does not step from one dense gradient at a time, as AdamW"):
        OffloadedOptimizer(kind, [nn.Parameter(torch.ones(1))], target)


def test_a_closure_makes_the_gradients(target: OffloadTarget):
    parameter = nn.Parameter(torch.ones(3))
    optimizer = OffloadedOptimizer(torch.optim.SGD, [parameter], target, lr=0.25)

    def closure() -> Tensor:
        loss = parameter.square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 3
    assert parameter.tolist() == [0.5] * 3


class Resident(LiveBytes):
    """Files do not count."""

    def used(self, key: int, storage: UntypedStorage) -> None:
        if not storage.filename:
            super().used(key, storage)


def test_one_parameter_at_a_time_needs_memory_for_its_update(tmp_path: Path):
    parameters = [nn.Parameter(torch.ones(1000)) for _ in range(20)]
    optimizer = OffloadedOptimizer(torch.optim.Adam, parameters, DiskStorage(tmp_path))
    for parameter in parameters:
        parameter.grad = torch.ones(1000)
    with Resident() as resident:
        optimizer.step()
        optimizer.step()
    assert resident.peak < 6 * 4000  # two moments before they have moved, and what the formula needs
    assert resident.live < 20 * 100  # counts of steps


def files_in(folder: Path) -> list[str]:
    return [str(path) for path in folder.rglob("*")]


def open_files(folder: Path) -> int:
    """Mappings of files that were in a folder, with a name or without."""
    return Path("/proc/self/maps").read_text().count(str(folder))


def test_files_have_no_name_and_go_with_their_tensors(tmp_path: Path):
    parameter = nn.Parameter(torch.ones(1000))
    optimizer = OffloadedOptimizer(torch.optim.Adam, [parameter], DiskStorage(tmp_path))
    assert files_in(tmp_path) == []
    assert open_files(tmp_path) == 2
    del optimizer
    assert open_files(tmp_path) == 0


KILLED = """
import os, signal, sys, torch
from reference.memory.offload_targets import DiskStorage
x = DiskStorage(sys.argv[1]).allocate(torch.ones(1 << 16)).fill_(1)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_process_that_is_killed_leaves_nothing(tmp_path: Path):
    process = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], timeout=60)
    assert process.returncode == -9
    assert files_in(tmp_path) == []


@contextmanager
def small_disk(monkeypatch: pytest.MonkeyPatch, bytes_left: int) -> Iterator[None]:
    """Within it, files find so much room and no more."""
    reserve = os.posix_fallocate
    left = [bytes_left]

    def reserve_if_there_is_room(file: int, begin: int, length: int) -> None:
        left[0] -= length
        if left[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        reserve(file, begin, length)

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", reserve_if_there_is_room)
        yield


def test_a_full_disk_is_known_before_the_first_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    model, before = tiny(), tiny()
    with (
        small_disk(monkeypatch, 100_000),
        pytest.raises(BadInput, match=r"no room for [\d,]+ bytes in .*: the disk is full; choose another folder"),
    ):
        OffloadedOptimizer(torch.optim.Adam, model.parameters(), DiskStorage(tmp_path))
    assert same(model, before)
    assert open_files(tmp_path) == 0


def test_more_than_any_disk_holds_is_refused_by_the_disk_itself(tmp_path: Path):
    with pytest.raises(BadInput, match=r"no room for [\d,]+ bytes"):
        DiskStorage(tmp_path).allocate(torch.empty(1 << 60, dtype=torch.uint8, device="meta"))


def test_a_process_without_addresses_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def no_addresses(*_: object, **__: object) -> None:
        raise RuntimeError("unable to mmap 400 bytes: Cannot allocate memory (12)")

    monkeypatch.setattr(torch, "from_file", no_addresses)
    with pytest.raises(BadInput, match="no addresses are left to map a file to"):
        DiskStorage(tmp_path).allocate(torch.empty(100))


@pytest.mark.parametrize("missing", ["nowhere", "file"])
def test_a_folder_that_is_none_is_refused(tmp_path: Path, missing: str):
    (tmp_path / "file").touch()
    with pytest.raises(BadInput, match="is not a folder"):
        DiskStorage(tmp_path / missing)


def test_an_empty_tensor_has_room_anywhere(target: OffloadTarget):
    assert target.allocate(torch.empty(0, 3)).shape == (0, 3)


# Activations


def gradients(model: nn.Module) -> list[Tensor]:
    return [parameter.grad for parameter in model.parameters()]


@pytest.mark.parametrize("how", Recompute)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_gradients_are_bitwise_those_without_offload(how: Recompute, dtype: torch.dtype, target: OffloadTarget):
    mine, oracle = tiny(dtype), tiny(dtype)
    for model in (mine, oracle):
        recompute(model, how)
    with offload_activations(target, small=0):
        loss = token_loss(mine(TOKENS), TOKENS, TOKENS.numel())
    loss.backward()
    backward(oracle)
    assert all(map(torch.equal, gradients(mine), gradients(oracle)))


class Packing:
    """A target that counts what comes."""

    def __init__(self) -> None:
        self.rooms: list[int] = []

    def allocate(self, x: Tensor) -> Tensor:
        self.rooms.append(x.nbytes)
        return HostMemory().allocate(x)


def test_a_tensor_that_is_saved_twice_travels_once():
    target, x = Packing(), torch.randn(64, requires_grad=True)
    with offload_activations(target, small=0):
        y = x * 1
        (y.square() + y.view(8, 8).t().exp().sum() + y[:5].sin().sum()).sum()
    # y for square and sin, y's 64 exponentials, and x * 1 saves nothing of x
    assert target.rooms == [256, 256]


def test_a_tensor_that_was_written_to_in_between_travels_again():
    target, x = Packing(), torch.ones(64, requires_grad=True)
    with offload_activations(target, small=0):
        y = x * 2
        first = y.square()  # of 2
        y += 1
        loss = (first + y.square()).sum()  # of 3
    loss.backward()
    assert x.grad.tolist() == [2 * (2 * 2 + 2 * 3)] * 64
    assert target.rooms == [256, 256]


def gates(x: Tensor) -> Tensor:
    """As in a recurrent cell: parts of one tensor, each written to, and each with writes counted by itself."""
    forget, new = (x * 1).unsafe_chunk(2, 1)
    return forget.sigmoid_() * new.tanh_()


def imaginary(x: Tensor) -> Tensor:
    """Saves numbers whose conjugation, and a sign, are no more than a mark on the tensor."""
    x = torch.complex(x, x + 1)
    return x.detach().conj() * x + x.detach().conj().imag * x


def swapped(x: Tensor) -> Tensor:
    """Saves a sparse matrix, which has no one storage."""
    return torch.sparse.mm(torch.eye(4, dtype=x.dtype).flip(0).to_sparse(), x).square()


def gradients_with(target: OffloadTarget | None, loss: Callable[[], Tensor], of: list[Tensor]) -> tuple[Tensor, ...]:
    with offload_activations(target, small=0) if target else nullcontext():
        y = loss()
    return torch.autograd.grad(y, of)


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
def test_recurrent_layers_have_the_same_gradients(kind: type[nn.RNNBase]):
    layer, x = kind(4, 3).double(), torch.linspace(-1, 1, 40, dtype=torch.float64).view(5, 2, 4)
    found, expected = (
        gradients_with(target, lambda: layer(x)[0].square().sum(), [*layer.parameters()])
        for target in (HostMemory(), None)
    )
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("function", [gates, imaginary, swapped])
def test_tensors_of_every_kind_have_the_same_gradients(function: Callable[[Tensor], Tensor]):
    x = torch.linspace(-1, 1, 16, dtype=torch.float64).view(4, 4).requires_grad_()
    found, expected = (gradients_with(target, lambda: function(x).abs().sum(), [x]) for target in (HostMemory(), None))
    assert torch.equal(found[0], expected[0])


def test_a_small_tensor_that_was_written_to_is_no_longer_what_backward_needs():
    x = torch.ones(4, requires_grad=True)
    with offload_activations(HostMemory()):
        y = x * 2
        loss = y.square().sum()
        y += 1
    with pytest.raises(RuntimeError, match="a tensor that backward needs was written to"):
        loss.backward()


def test_parameters_and_small_tensors_stay():
    target, linear = Packing(), nn.Linear(64, 32)
    x = torch.randn(8, 64, requires_grad=True) * 1
    with offload_activations(target, small=2000):
        linear(x).exp().sum().backward()  # the exponentials are 1 KB, the weight is 8 KB
    assert target.rooms == [x.nbytes]


def test_meta_tensors_stay(target: OffloadTarget):
    model = create(GPT, PRESETS["tiny"], device="meta")
    tokens = TOKENS.to("meta")
    with offload_activations(target, small=0):
        loss = token_loss(model(tokens), tokens, tokens.numel())
    loss.backward()
    assert all(gradient.is_meta for gradient in gradients(model))


def resident_after_forward(model: GPT, target: OffloadTarget | None) -> int:
    with Resident() as resident:
        if target is None:
            loss = token_loss(model(TOKENS), TOKENS, TOKENS.numel())
        else:
            with offload_activations(target, small=1024):
                loss = token_loss(model(TOKENS), TOKENS, TOKENS.numel())
        held = resident.live
        loss.backward()
    return held


def test_between_forward_and_backward_activations_are_in_files(tmp_path: Path):
    kept, offloaded = resident_after_forward(tiny(), None), resident_after_forward(tiny(), DiskStorage(tmp_path))
    assert kept > 200_000
    assert offloaded < 30_000  # tensors of less than 1 KB, such as a root mean square for each token
    assert open_files(tmp_path) == 0  # backward is over


def test_files_of_activations_go_when_the_loss_is_dropped_without_backward(tmp_path: Path):
    with offload_activations(DiskStorage(tmp_path), small=0):
        loss = token_loss(tiny()(TOKENS), TOKENS, TOKENS.numel())
    assert open_files(tmp_path) > 10
    del loss
    assert open_files(tmp_path) == 0


def test_backward_may_be_run_twice(target: OffloadTarget):
    x = torch.linspace(0, 1, 64, requires_grad=True)
    with offload_activations(target, small=0):
        loss = x.exp().sum()
    loss.backward(retain_graph=True)
    loss.backward()
    assert torch.equal(x.grad, 2 * x.detach().exp())


def test_a_full_disk_stops_forward_and_harms_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    model, before = tiny(), tiny()
    with (
        small_disk(monkeypatch, 100_000),
        pytest.raises(BadInput, match="the disk is full"),
        offload_activations(DiskStorage(tmp_path), small=0),
    ):
        model(TOKENS)
    assert same(model, before)
    assert open_files(tmp_path) == 0
    backward(model)
    backward(before)
    assert all(map(torch.equal, gradients(model), gradients(before)))  # nothing is left of the attempt
