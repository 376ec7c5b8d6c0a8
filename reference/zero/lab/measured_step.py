"""What a rank really keeps of a model that ranks share: a `Gauge` that knows what is what in each form.

    history = measured_step(model, form, optimizer, loss)
    kept(history.at("step"))            # what the formulas of `reference.memory.recipe` call the training state
    history.units["blocks.0"]           # bytes that this rank has of a unit of FSDP, moment after moment

Replicas, ZeRO-1 and ZeRO-2 compute with parameters of their own; masters are state of the optimizer where they are
copies of these. FSDP keeps shards and computes with what it gathers: both are parameters.
"""

from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from os.path import commonpath

from torch import Tensor, nn
from torch.optim import Optimizer

from reference.data_parallel.gradient_sync import DataParallel, GradientSync
from reference.memory.history import History, MemoryKind
from reference.memory.lab.gauge import Gauge, Source, parameters_of, state_tensors
from reference.memory.recipe import Breakdown
from reference.zero.unit import FlatParameters


def measured_step(model: nn.Module, form: DataParallel, optimizer: Optimizer, loss: Callable[[int], Tensor]) -> History:
    """The memory of a training step: the second one, when the optimizer has its state and FSDP knows its order.

    Args:
        model: as the form has changed it.
        form: between the model and its optimizer.
        optimizer: over the masters of the form.
        loss: runs the model on this rank's part of the batch of step 0, and then of step 1.

    Returns:
        With the marks "forward", "backward" and "step".
    """

    def step(number: int, mark: Callable[[str], None]) -> None:
        mark("forward")
        with form.micro_batch(last=True):
            part = loss(number)
            mark("backward")
            part.backward()
        del part
        form.reduce_gradients()
        mark("step")
        optimizer.step()
        form.end_step()

    step(0, lambda label: None)
    with gauge_of(model, form, optimizer) as gauge:
        step(1, gauge.mark)
    return gauge.history


def gauge_of(model: nn.Module, form: GradientSync, optimizer: Optimizer) -> Gauge:
    """A gauge for any form. Of FSDP it also follows the units, by name. Arguments as for `measured_step`."""
    masters = [part.master for part in form.parts]
    own = parameters_of(model)

    def parameters() -> Iterable[Tensor]:
        return chain(own(), masters) if form.units else own()

    def state() -> Iterable[Tensor]:
        return chain(masters, state_tensors(optimizer))

    sources = {MemoryKind.PARAMETERS: parameters, MemoryKind.GRADIENTS: form.gradients, MemoryKind.OPTIMIZER: state}
    return Gauge(sources, units={name_of(unit): whole_or_shard(unit) for unit in form.units})


def kept(at: Mapping[MemoryKind, int]) -> Breakdown:
    """The training state within what is in use at one moment: all but activations and buffers."""
    return Breakdown(at[MemoryKind.PARAMETERS], at[MemoryKind.GRADIENTS], at[MemoryKind.OPTIMIZER])


def name_of(unit: FlatParameters) -> str:
    """Of the modules whose parameters a unit gathers together: "blocks.0", or "norm, head"."""
    modules = [name.rpartition(".")[0] for name in unit.names]
    shared = commonpath([module.replace(".", "/") for module in modules]).replace("/", ".")
    return shared or ", ".join(dict.fromkeys(module.partition(".")[0] for module in modules if module)) or "model"


def whole_or_shard(unit: FlatParameters) -> Source:
    """What there is of a unit's parameters: all of them while they are gathered, else this rank's shard."""
    return lambda: [unit.full if unit.whole else unit.shard]
