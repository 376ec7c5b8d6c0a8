"""Has a message been sent in fewer bits than the numbers have? Half the bytes, and the last digits are gone.

What is sent as bytes (`x.view(torch.uint8)`) loses nothing, so types of whole numbers are left to the comparison of
values, which has fractions and large numbers for that. So is a message of one number: it may be a flag, or a count.
"""

import torch

from reference.trace import Event

from .drives import all_tensors
from .puzzle import Case, Inputs

_FLOATS = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex128)
}


def due(inputs: Inputs) -> torch.dtype | None:
    """The narrowest dtype of floats that the ranks are given tensors in; None where they are given none."""
    found = {each.dtype for each in all_tensors(inputs) if each.is_floating_point()}
    return min(found, key=lambda dtype: dtype.itemsize, default=None)


def narrowed(inputs: Inputs, events: list[Event]) -> Event | None:
    """The first message that brings floats in fewer bits than they have."""
    floats = [event for event in events if event.dtype in _FLOATS and torch.Size(event.shape).numel() > 1]
    dtype = due(inputs) if floats else None
    if dtype is None:
        return None
    return next((event for event in floats if _FLOATS[event.dtype].itemsize < dtype.itemsize), None)


def cut(inputs: Inputs, events: list[Event]) -> Event | None:
    """The first message that brings whole numbers, as many as a tensor of floats has elements."""
    tensors = all_tensors(inputs)
    if any(not tensor.is_floating_point() for tensor in tensors) or not tensors:
        return None
    sizes = {tensor.numel() for tensor in tensors} - {0, 1}
    whole = (event for event in events if event.dtype.removeprefix("u").startswith("int"))
    return next((event for event in whole if torch.Size(event.shape).numel() in sizes), None)


def sentence(case: Case, inputs: Inputs, event: Event) -> str:
    """What to tell its sender."""
    dtype = str(due(inputs)).removeprefix("torch.")
    return f"line {event.line} sends {event.dtype} where the numbers are {dtype} ({case}): send them in their own dtype"
