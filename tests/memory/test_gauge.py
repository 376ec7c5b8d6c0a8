"""The gauge against programs whose bytes are counted by hand, against formulas, and on ranks."""

import gc
import itertools
import pickle
import time
from _thread import start_new_thread

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.optim import AdamW

from reference.memory.history import KINDS, History, MemoryKind
from reference.memory.lab.gauge import CUDA_GRAIN, Gauge, gradients, parameters_of, state_tensors
from reference.memory.lab.storages import LiveBytes
from reference.memory.recipe import RECIPES, Stage, state_bytes
from reference.models import GPT, GPTConfig, create, preset, token_loss

NOTHING = dict.fromkeys(KINDS, 0)


def test_a_program_counted_by_hand():
    """Each tensor has 100 numbers of 4 bytes."""
    weight, x = nn.Parameter(torch.ones(100)), torch.ones(100)
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
    sources = {
        MemoryKind.PARAMETERS: lambda: [weight],
        MemoryKind.GRADIENTS: lambda: gradients([weight]),
        MemoryKind.OPTIMIZER: lambda: state_tensors(optimizer),
    }
    with (gauge := Gauge(sources)):
        gauge.mark("forward")
        loss = ((weight * x).exp() + 1).sum()
        gauge.mark("backward")
        loss.backward()
        gauge.mark("step")
        optimizer.step()
        gauge.mark("zero")
        optimizer.zero_grad()
        del loss
    history = gauge.history
    assert without_repetitions(history.usage) == [
        # parameters, gradients, optimizer state, activations, buffers
        (400, 0, 0, 0, 0),
        (400, 0, 0, 400, 0),  # weight * x, of which backward will need x, and that was there before
        (400, 0, 0, 800, 0),  # exp, whose result it will need; then + 1, while the product is given back
        (400, 0, 0, 804, 0),  # the sum
        (400, 0, 0, 404, 0),  # forward is over: exp's result waits for backward
        (400, 0, 0, 408, 0),  # the one that backward begins with
        (400, 0, 0, 408, 400),  # gradient of the product
        (400, 400, 0, 8, 400),  # of the weight: a gradient from its birth, before it hangs on weight.grad
        (400, 400, 0, 8, 0),
        (400, 400, 0, 4, 0),  # backward is over: the loss is left
        (400, 400, 400, 4, 0),  # the momentum
        (400, 0, 400, 4, 0),  # zero_grad
        (400, 0, 400, 0, 0),
    ]
    assert history.at("backward") == NOTHING | {MemoryKind.PARAMETERS: 400, MemoryKind.ACTIVATIONS: 404}
    assert history.peak == 1208 and history.at_peak[MemoryKind.BUFFERS] == 400
    assert history.peak_of(MemoryKind.OPTIMIZER) == 400


def without_repetitions(usage: np.ndarray) -> list[tuple[int, ...]]:
    """The rows that differ from the one before."""
    return [row for row, _ in itertools.groupby(map(tuple, usage.tolist()))]


def adam_step(config: GPTConfig, device: str = "cpu") -> Gauge:
    """The second step of AdamW: its state is there from the beginning."""
    model = create(GPT, config, device=device)
    optimizer = AdamW(model.parameters())
    tokens = torch.zeros(2, 16, dtype=torch.int64, device=device)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    with (gauge := Gauge.of(model, optimizer)):
        gauge.mark("forward")
        loss = token_loss(model(tokens), tokens, tokens.numel())
        gauge.mark("backward")
        loss.backward()
        gauge.mark("step")
        optimizer.step()
        gauge.mark("end")
    return gauge


@pytest.mark.parametrize("tied", [False, True])
def test_the_state_of_adam_is_16_bytes_a_parameter(tied):
    """2 %: a count of steps for each tensor."""
    config = GPTConfig(layers=2, width=64, heads=4, kv_heads=2, hidden=176, tied=tied)
    history = adam_step(config).history
    at_step, formula = history.at("step"), state_bytes(config.parameters, RECIPES["fp32 Adam"], Stage.DDP, 1)
    assert at_step[MemoryKind.PARAMETERS] == formula.parameters
    assert at_step[MemoryKind.GRADIENTS] == formula.gradients
    assert formula.optimizer <= at_step[MemoryKind.OPTIMIZER] <= 1.02 * formula.optimizer
    assert history.at("forward")[MemoryKind.OPTIMIZER] == at_step[MemoryKind.OPTIMIZER]


def test_a_gradient_is_never_copied_because_someone_watches():
    """Autograd hands a gradient over if nothing else holds it, and copies it otherwise: 400 bytes more."""
    weight = nn.Parameter(torch.ones(100))
    with (gauge := Gauge({})):
        (weight * 2).sum().backward()
    assert weight.grad is not None
    assert sum(gauge.history.usage[-1]) == 400


def test_a_model_of_8_billion_parameters_is_measured_without_memory():
    """On the meta device, where attention has the kernel that keeps S x S numbers."""
    model = create(GPT, preset("llama3-8b"), device="meta", dtype=torch.bfloat16)
    tokens = torch.zeros(1, 512, dtype=torch.int64, device="meta")
    with (gauge := Gauge.of(model, torch.optim.SGD(model.parameters()))):
        model(tokens)
        gauge.mark("done")
    assert gauge.history.at("done")[MemoryKind.PARAMETERS] == 2 * preset("llama3-8b").parameters


def test_views_are_free_and_new_storages_are_not():
    x = torch.ones(100)
    with (gauge := Gauge({})), torch.no_grad():
        kept = [x.view(10, 10).t(), x[3:], x.detach()]
        gauge.mark("views")
        kept += [x + 1, torch.zeros(7, dtype=torch.int64), torch.tensor([1.0, 2.0])]
        gauge.mark("new")
    assert gauge.history.at("views") == NOTHING
    assert gauge.history.at("new") == NOTHING | {MemoryKind.BUFFERS: 400 + 56 + 8}


def test_what_was_there_before_counts_where_a_source_names_it():
    named, unnamed = torch.ones(100), torch.ones(100)
    with (gauge := Gauge({MemoryKind.BUFFERS: lambda: [named]})):
        named.add_(unnamed)
        gauge.mark("end")
    assert gauge.history.at("end") == NOTHING | {MemoryKind.BUFFERS: 400}


def test_an_address_that_is_used_again_is_another_storage():
    before = [torch.ones(1000) for _ in range(50)]
    with (gauge := Gauge({})), torch.no_grad():
        for tensor in before:
            tensor.add_(1)  # seen as coming from outside
        before.clear()
        del tensor
        gc.collect()
        after = [torch.ones(1000) for _ in range(50)]
        gauge.mark("end")
    assert len(after) * 4000 == gauge.history.at("end")[MemoryKind.BUFFERS]


def test_a_storage_that_changes_its_size_is_followed():
    """FSDP frees what it gathered by taking the memory from under the parameter."""
    weight = nn.Parameter(torch.ones(100))
    with (gauge := Gauge({MemoryKind.PARAMETERS: lambda: [weight]}, units={"weight": lambda: [weight]})):
        gauge.mark("gathered")
        weight.untyped_storage().resize_(0)
        gauge.mark("freed")
        weight.untyped_storage().resize_(400)
        gauge.mark("gathered again")
    history = gauge.history
    sizes = [history.at(mark.label)[MemoryKind.PARAMETERS] for mark in history.marks]
    assert sizes == [400, 0, 400]
    assert [history.units["weight"][mark.moment] for mark in history.marks] == sizes


def test_a_result_that_makes_its_storage_grow_is_followed():
    given = torch.empty(0)
    with (gauge := Gauge({})), torch.no_grad():
        made = torch.empty(0)
        for out in (made, given):  # what was there before counts nothing
            torch.stack([torch.ones(100)] * 3, out=out)
        gauge.mark("stacked")
        made.resize_(1000)
        gauge.mark("resized")
    assert [sum(gauge.history.at(label).values()) for label in ("stacked", "resized")] == [1200, 4000]


def test_a_tensor_of_several_kinds_is_of_the_first():
    """The optimizer updates the model's own parameters: they are no master copies."""
    weight = nn.Parameter(torch.ones(100))
    with (gauge := Gauge({MemoryKind.OPTIMIZER: lambda: [weight], MemoryKind.PARAMETERS: lambda: [weight]})):
        gauge.mark("now")
    assert gauge.history.at("now") == NOTHING | {MemoryKind.PARAMETERS: 400}


def test_a_parameter_that_is_gathered_and_dropped_is_a_parameter_while_it_lives():
    module = nn.Linear(10, 10, bias=False)
    with (gauge := Gauge.of(module, torch.optim.SGD(module.parameters()))), torch.no_grad():
        gauge.mark("own")
        whole = torch.ones(20, 10)
        module.weight.data = whole
        module(torch.ones(10))
        gauge.mark("gathered")
        module.weight.data = torch.ones(1)
        del whole
        gauge.mark("dropped")
    kinds = [gauge.history.at(mark.label)[MemoryKind.PARAMETERS] for mark in gauge.history.marks]
    assert kinds == [400, 800, 4]


def test_the_grain_rounds_each_storage_up():
    with (gauge := Gauge({}, grain=CUDA_GRAIN)), torch.no_grad():
        kept = [torch.zeros(1), torch.zeros(128), torch.zeros(129)]
        gauge.mark("end")
    assert len(kept) == 3
    assert gauge.history.at("end")[MemoryKind.BUFFERS] == 512 + 512 + 1024


def test_only_one_device_counts_where_one_is_named():
    with (gauge := Gauge({}, device="meta")), torch.no_grad():
        kept = [torch.zeros(100), torch.zeros(100, device="meta")]
        gauge.mark("end")
    assert len(kept) == 2 and gauge.history.at("end")[MemoryKind.BUFFERS] == 400


def test_two_measurements_are_equal():
    config = preset("tiny")
    first, second = adam_step(config).history, adam_step(config).history
    assert (first.usage == second.usage).all() and first.marks == second.marks


def test_what_ends_after_the_measurement_is_not_heard():
    with (gauge := Gauge({})), torch.no_grad():
        kept = torch.ones(100)
    before = gauge.history.usage.copy()
    del kept
    assert (gauge.history.usage == before).all()


def test_what_a_thread_of_torch_asks_for_is_seen():
    """Where no line of Python has called it, as in backward on a GPU."""
    live = LiveBytes()
    start_new_thread(live.__torch_dispatch__, (torch.ops.aten.exp.default, (torch.Tensor,), (torch.ones(100),)))
    deadline = time.monotonic() + 10
    while not live.peak and time.monotonic() < deadline:
        time.sleep(0.01)
    assert live.peak == 400


def test_phases_and_their_peaks():
    history = adam_step(preset("tiny")).history
    assert [mark.label for mark in history.marks] == ["forward", "backward", "step", "end"]
    assert history.peak == max(history.during(mark.label).peak for mark in history.marks)
    assert history.peak == history.during("backward").peak
    assert sum(history.at_peak.values()) == history.peak
    with pytest.raises(KeyError, match="no mark is called 'nap'; there are forward, backward, step, end"):
        history.at("nap")


def on_a_rank():
    return adam_step(preset("tiny")).history


@pytest.mark.parametrize("watch", [False, True])
def test_ranks_measure_what_one_process_measures(clusters, watch):
    """And say so: a history travels. What a watched cluster makes for itself is not the program's."""
    here = on_a_rank()
    for history in clusters(2, watch=watch).run(on_a_rank):
        assert (history.usage == here.usage).all() and history.marks == here.marks


def step_of_fsdp2(config: GPTConfig) -> History:
    """The second step of torch's own FSDP; parameters are DTensors, and live in storages whose size changes."""
    model = create(GPT, config)
    mesh = DeviceMesh("cpu", torch.arange(dist.get_world_size()))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer, tokens = AdamW(model.parameters()), torch.zeros(1, 4, dtype=torch.int64)
    units = {f"block {i}": parameters_of(block) for i, block in enumerate(model.blocks)}
    for _ in range(2):
        with (gauge := Gauge.of(model, optimizer, units=units)):
            loss = token_loss(model(tokens), tokens, tokens.numel())
            loss.backward()
            gauge.mark("step")
            optimizer.step()
            optimizer.zero_grad()
            gauge.mark("end")
    return gauge.history


def test_torch_fsdp_is_measured_as_it_gathers_and_frees(clusters):
    """Half of everything on each of two ranks; 2 %: steps of Adam, and rows that do not divide."""
    config = GPTConfig(layers=4, width=32, heads=4, kv_heads=2, hidden=96)
    history = clusters(2).run(step_of_fsdp2, config)[0]
    half = state_bytes(config.parameters, RECIPES["fp32 Adam"], Stage.ZERO3, ranks=2)
    now = history.at("step")
    assert now[MemoryKind.PARAMETERS] == pytest.approx(half.parameters, rel=0.02)
    assert now[MemoryKind.GRADIENTS] == pytest.approx(half.gradients, rel=0.02)
    assert now[MemoryKind.OPTIMIZER] == pytest.approx(half.optimizer, rel=0.02)
    assert history.peak_of(MemoryKind.PARAMETERS) < half.parameters + 4 * config.parameters  # never all of it at once
    for sizes in history.units.values():
        assert sizes.max() == pytest.approx(2 * sizes.min(), rel=0.02)


def test_a_history_can_be_pickled():
    history = on_a_rank()
    again = pickle.loads(pickle.dumps(history))
    assert (again.usage == history.usage).all() and again.marks == history.marks


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_allocator_of_cuda_agrees():
    """To the byte while only tensors are alive; libraries keep workspaces from their first call on."""
    adam_step(preset("tiny"), device="cuda")  # warms up
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    with (gauge := Gauge({}, device="cuda", grain=CUDA_GRAIN)), torch.no_grad():
        kept = [torch.zeros(n, device="cuda") for n in (1, 128, 129, 10**6)]
        kept.append(kept[-1] * 2)
        gauge.mark("end")
    assert sum(gauge.history.at("end").values()) == torch.cuda.memory_allocated() - before
