"""What one rank can see of a call before it is made: the peer, the tensors, the numbers, the thread."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from ...trace import Op
from ...trace.calls import Call, dtype_name
from ...trace.events import APART
from ..errors import NumericsError, PeerError, RankError, TensorError, ThreadError
from .order import Order, Stamp
from .posted_calls import elements_text, text_of
from .raw import dense, floats, stretch

_SUMS = ("sum", "avg", "product")


def at(call: Call, rank: int, error: type[RankError], kind: str, *details: str) -> RankError:
    """An error at the line of a call."""
    return error(kind, *details, rank=rank, file=call.file, line=call.line, call=text_of(call))


def check(call: Call, rank: int) -> None:
    """Raises the first thing that is wrong with a call, as a RankError."""
    for look in (_peer, _layout, _device, _dtypes, _contiguous, _overlap, _count, _sizes, _numbers):
        for error in look(call, rank):
            raise error


def _peer(call: Call, rank: int) -> Iterator[RankError]:
    """The other side is a rank of the group, and not oneself."""
    if call.root is not None and call.peer is None:
        last = len(call.group) - 1
        yield at(call, rank, PeerError, "peer out of range", f"there is no rank {call.root}: ranks are 0..{last}")
    if call.op.point_to_point and call.peer == rank:
        who = "dst" if call.op is Op.SEND else "src"
        what = f"{who} is yourself: a rank can't {'send to' if call.op is Op.SEND else 'receive from'} itself"
        yield at(call, rank, PeerError, "peer is oneself", what, f"copy the tensor instead, or check {who}")


def _layout(call: Call, rank: int) -> Iterator[RankError]:
    """Tensors are dense; gloo adds up sparse ones of one kind, too."""
    for tensor in (*call.inputs, *call.outputs):
        added = call.op is Op.ALL_REDUCE and tensor.layout is torch.sparse_coo
        if tensor.layout is torch.jagged:
            yield at(call, rank, TensorError, "layout", "a nested tensor can't travel: send its values() and offsets()")
        elif tensor.layout is not torch.strided and not added:
            yield at(call, rank, TensorError, "layout", "a sparse tensor can't travel: send its indices and values")


def _device(call: Call, rank: int) -> Iterator[RankError]:
    """Tensors hold numbers that gloo can reach, and knows."""
    for tensor in (*call.inputs, *call.outputs):
        if tensor.device.type != "cpu":
            what = f"the tensor is on {tensor.device.type!r}, these ranks communicate on 'cpu'"
            yield at(call, rank, TensorError, "device", what)
        elif call.reduce == "avg" and not (tensor.is_floating_point() or tensor.is_complex()):
            what = f"avg of {dtype_name(tensor.dtype)} has no exact result: use SUM, then divide"
            yield at(call, rank, TensorError, "dtype", what)
        elif tensor.is_floating_point() and tensor.element_size() == 1 and not call.op.point_to_point:
            what = f"gloo has no collectives of {dtype_name(tensor.dtype)}"
            fix = "convert it: x.half(); what is not summed can travel as x.view(torch.uint8)"
            yield at(call, rank, TensorError, "dtype", what, fix)


_IN_PLACE = (Op.ALL_REDUCE, Op.BROADCAST, Op.REDUCE)


def _dtypes(call: Call, rank: int) -> Iterator[RankError]:
    """What comes out has the dtype of what goes in."""
    for part in _parts(call):
        ends = [sorted({dtype_name(t.dtype) for t in side}) for side in (part.inputs, part.outputs)]
        if len({*ends[0], *ends[1]}) > 1:
            what = "the input is {}, the output is {}".format(*map(" and ".join, ends))
            yield at(call, rank, TensorError, "dtypes differ", what)


def _parts(call: Call) -> list[Call]:
    """The calls that a coalesced one stands for; any other itself."""
    several = len(call.inputs) == len(call.outputs) > 1
    if not several or call.op not in (Op.ALL_GATHER, Op.REDUCE_SCATTER):
        return [call]
    pairs = zip(call.inputs, call.outputs, strict=True)
    return [replace(call, inputs=[taken], outputs=[given]) for taken, given in pairs]


def _contiguous(call: Call, rank: int) -> Iterator[RankError]:
    """Buffers lie in memory in one piece."""
    for role, tensors in (("receive", call.outputs), ("send", call.inputs)):
        for tensor in tensors:
            if not (
                tensor.layout is not torch.strided or tensor.is_contiguous() or (call.op in _IN_PLACE and dense(tensor))
            ):
                what = f"the {role} buffer of shape {list(tensor.shape)} has strides {list(tensor.stride())}"
                fix = "receive into a contiguous buffer and copy_ it back" if role == "receive" else "send a copy"
                yield at(call, rank, TensorError, "not contiguous", what, f"call .contiguous(): {fix}")


def _overlap(call: Call, rank: int) -> Iterator[RankError]:
    """Output buffers are different memory."""
    if len(call.outputs) < 2 and call.op is not Op.ALL_TO_ALL:
        return
    outputs = [t for t in call.outputs if t.layout is torch.strided and t.numel()]
    if len(outputs) != len({t.data_ptr() for t in outputs}):
        what = "the output list holds the same tensor more than once: [t] * n makes one buffer, not n"
        yield at(call, rank, TensorError, "same tensor", what, "make each: [torch.empty_like(x) for _ in range(n)]")
    given = sorted(map(stretch, outputs))
    if any(start < end for (_, end), (start, _) in pairwise(given)):
        what = "tensors of the output list share memory: what arrives in one overwrites another"
        yield at(call, rank, TensorError, "same memory", what, "give each a part of its own: whole.chunk(n)")
    taken = [stretch(t) for t in call.inputs if t.numel()] if call.op is Op.ALL_TO_ALL else []
    if any(first < end and start < last for first, last in taken for start, end in given):
        what = "the output shares memory with the input: what arrives overwrites what is still to be sent"
        yield at(call, rank, TensorError, "same memory", what, "receive into a tensor of its own: torch.empty_like(x)")


def _count(call: Call, rank: int) -> Iterator[RankError]:
    """Lists have one tensor for each rank."""
    n = len(call.group)
    lists = {Op.SCATTER: ("scatter_list", call.inputs), Op.GATHER: ("gather_list", call.outputs)}
    if call.op in lists and call.peer == rank:
        name, tensors = lists[call.op]
        if len(tensors) != n:
            yield at(call, rank, TensorError, "list length", f"{name} has {len(tensors)} tensors, the group {n} ranks")


def _sizes(call: Call, rank: int) -> Iterator[RankError]:
    """The output holds exactly what will arrive."""
    for part in _parts(call):
        yield from _sizes_of(part, rank)


def _sizes_of(call: Call, rank: int) -> Iterator[RankError]:
    """As `_sizes`, for a call that is not coalesced."""
    n = len(call.group)
    have = sum(t.numel() for t in call.outputs)
    brought = sum(t.numel() for t in call.inputs)
    if call.op is Op.ALL_GATHER:
        sizes = [t.numel() for t in call.outputs]
        if len(sizes) == n and len(set(sizes)) > 1:
            by_rank = ", ".join(f"rank {r} has {size}" for r, size in zip(call.group, sizes, strict=True))
            what = f"all_gather wants equal pieces; sizes by rank: {by_rank}"
            yield at(call, rank, TensorError, "uneven pieces", what, "pad them, or use all_to_all_single with splits")
        yield from _output(call, rank, have, brought * n, f"{n} ranks bring {elements_text(brought)} each")
    elif call.op is Op.GATHER and call.outputs:
        yield from _output(call, rank, have, brought * n, f"{n} ranks bring {elements_text(brought)} each")
    elif call.op is Op.REDUCE_SCATTER and len(call.inputs) > len(call.outputs):  # a list of pieces, of any sizes
        if len(call.inputs) != n:
            what = f"input_list has {len(call.inputs)} tensors, the group {n} ranks"
            yield at(call, rank, TensorError, "list length", what)
        else:
            mine = call.group.index(rank)
            yield from _output(call, rank, have, call.inputs[mine].numel(), f"the size of input_list[{mine}]")
    elif call.op is Op.REDUCE_SCATTER:
        if brought % n:
            yield at(call, rank, TensorError, "does not divide", f"{brought} elements do not divide by {n} ranks: pad")
        else:
            yield from _output(call, rank, have, brought // n, f"each of {n} ranks gets {brought // n}")
    elif call.op is Op.ALL_TO_ALL:
        for name, splits, total in (("input", call.splits, brought), ("output", call.out_splits, have)):
            if len(splits) != n:
                yield at(call, rank, TensorError, "splits", f"{name} splits: {len(splits)} numbers for {n} ranks")
            elif sum(splits) != total:
                what = f"{name} splits add up to {sum(splits) // call.width}, the {name} has {total // call.width} rows"
                yield at(call, rank, TensorError, "splits", what)


def _output(call: Call, rank: int, have: int, want: int, why: str) -> Iterator[RankError]:
    if have != want:
        if call.op is Op.ALL_GATHER and len(call.outputs) > 1 and len(call.outputs) != len(call.group):
            what = f"the output list has {len(call.outputs)} tensors, the group {len(call.group)} ranks"
        else:
            what = f"the output has {elements_text(have)}, {want} will arrive: {why}"
        yield at(call, rank, TensorError, "output size", what)


def _numbers(call: Call, rank: int) -> Iterator[RankError]:
    """No NaN enters a communication, and no infinity a sum."""
    for tensor in call.inputs:
        if tensor.layout is not torch.strided or not tensor.numel():
            continue
        if not (tensor.is_floating_point() or tensor.is_complex()):
            continue
        bad = _nonfinite(tensor, infinities=call.reduce in _SUMS)
        if bad:
            yield at(call, rank, NumericsError, "not a number", f"the tensor holds {bad} before this call")


def check_result(call: Call, rank: int) -> None:
    """Raises NumericsError where a reduction of finite numbers gave an infinity."""
    if call.reduce not in _SUMS:
        return
    for tensor in call.outputs:
        floating = tensor.layout is torch.strided and (tensor.is_floating_point() or tensor.is_complex())
        if floating and (bad := _nonfinite(tensor, infinities=True)):
            what = f"the {call.reduce} overflowed: finite numbers went in, {bad} came out in {tensor.dtype}"
            raise at(call, rank, NumericsError, "overflow", what)


def _nonfinite(tensor: Tensor, *, infinities: bool) -> str:
    """The first NaN (or infinity) of a tensor and its place, "" where there is none."""
    numbers = floats(tensor)
    if numbers is not None and not (~np.isfinite(numbers) if infinities else np.isnan(numbers)).any():
        return ""
    with torch.no_grad():
        flat = tensor.detach().reshape(-1)
        good = torch.isfinite(flat) if infinities else ~torch.isnan(flat)
        if bool(good.all()):
            return ""
        index = int((~good).to(torch.uint8).argmax())
        name = "NaN" if bool(torch.isnan(flat[index])) else "Inf"
        return f"{name} at index {index} ({int((~good).sum())} of {flat.numel()} elements)"


class ThreadOrder:
    """Collectives on one group, and messages of one tag, come from one thread or from threads that wait for each other.

    Whether they do is what `Order` knows; that one was long done when the other began is luck.
    """

    def __init__(self, order: Order) -> None:
        self._order = order
        self._last: dict[tuple, dict[threading.Thread, Stamp]] = {}

    def check(self, call: Call, rank: int) -> None:
        """Raises ThreadError where the order of two threads' calls is a race."""
        me = threading.current_thread()
        if isinstance(me, threading._DummyThread):
            return
        message = call.op.point_to_point
        of = (call.op, call.peer, call.tag) if message else ()
        last = self._last.setdefault((call.group_name, *of), {})
        before = next((other for other, when in last.items() if not self._order.knows(when)), None)
        last[me] = self._order.stamp()
        if before is None:
            return
        tagged = message and call.tag < APART  # else it is of a handmade collective
        both = f"both {_said(call)}" if tagged else "both use this group"
        what = f"thread {me.name!r} and thread {before.name!r} {both}: their order is a race"
        fix = "give each thread its own tag" if tagged else "give each thread its own group (dist.new_group)"
        raise at(call, rank, ThreadError, "threads", what, fix)


def _said(call: Call) -> str:
    """What a message is to its sender or receiver."""
    whom = "any rank" if call.peer is None else f"rank {call.peer}"
    return f"{'send to' if call.op is Op.SEND else 'receive from'} {whom} with tag {call.tag}"
