"""Does the caller look at what a call returned? `got[dist.recv(x)] = x` does, `dist.recv(x)` alone does not.

Python says so in its bytecode: an unused value is popped from the stack at once, or stored under a name that no code
loads.
"""

import dis
from functools import lru_cache
from types import CodeType, FrameType

_STORES = {"STORE_FAST", "STORE_NAME", "STORE_GLOBAL", "STORE_DEREF"}
_LOADS = {
    "LOAD_FAST",
    "LOAD_FAST_CHECK",
    "LOAD_FAST_AND_CLEAR",
    "LOAD_FAST_BORROW",
    "LOAD_NAME",
    "LOAD_GLOBAL",
    "LOAD_DEREF",
    "LOAD_CLOSURE",
    "LOAD_CLASSDEREF",
}
_DEPTH = 50  # functions that hand a value on to their callers


def result_used(frame: FrameType | None) -> bool:
    """True unless the value of the call that `frame` is in is thrown away, here or by a caller of this frame."""
    for _ in range(_DEPTH):
        if frame is None:
            return True
        fate = _fate(frame.f_code, frame.f_lasti)
        if fate != "returned":
            return fate == "used"
        frame = frame.f_back
    return True


@lru_cache(maxsize=1024)
def _fate(code: CodeType, offset: int) -> str:
    """What becomes of the value of the call at `offset`: "used", "dropped" or "returned"."""
    instructions = [each for each in dis.get_instructions(code) if each.opname != "CACHE"]
    following = [each for each in instructions if each.offset > offset]
    if not following:
        return "used"
    first = following[0]
    if first.opname == "POP_TOP":
        return "dropped"
    if first.opname == "RETURN_VALUE":
        return "returned"
    if first.opname in _STORES and not any(e.opname in _LOADS and e.argval == first.argval for e in instructions):
        return "used" if first.argval in (*code.co_cellvars, *code.co_freevars) else "dropped"
    return "used"
