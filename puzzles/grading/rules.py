"""What a solution's text may name. `style.py` reads texts by these rules."""

from reference.trace import Op

MAX_TEXT = 200_000  # characters

MODULES = {
    "__future__", "abc", "bisect", "collections", "collections.abc", "contextlib", "dataclasses", "enum",
    "functools", "heapq", "itertools", "math", "statistics", "time", "torch", "torch.autograd", "torch.distributed",
    "torch.linalg", "torch.nn", "torch.nn.functional", "torch.random", "typing",
}  # fmt: skip
"""What may be imported."""

ONLY = {
    "dataclasses": {"KW_ONLY", "MISSING", "InitVar", "dataclass", "field"},
    "functools": {"cache", "cached_property", "cmp_to_key", "lru_cache", "partial", "reduce", "total_ordering"},
}  # fmt: skip
"""Of some modules, all that may be used of what they define: the rest reads attributes that a string names."""

ALWAYS = {
    "GroupMember", "ProcessGroup", "ReduceOp", "Work", "get_global_rank", "get_group_rank", "get_process_group_ranks",
    "get_rank", "get_world_size", "group",
}  # fmt: skip
"""Names of torch.distributed that every puzzle allows: they say which rank is which, and send nothing."""

BUILTINS = {
    "__builtins__", "__import__", "__loader__", "__spec__", "breakpoint", "compile", "delattr", "eval", "exec",
    "getattr", "globals", "locals", "memoryview", "open", "setattr", "vars",
}  # fmt: skip
"""Built-in functions that lead out of the text."""

ATTRIBUTES = BUILTINS | {
    "ForwardRef", "ParameterDict", "ParameterList", "PyTorchFileReader", "PyTorchFileWriter", "UntypedStorage",
    "ag_frame", "attrgetter", "carrier", "classes", "compiler", "cr_frame", "dump", "f_back", "f_builtins", "f_code",
    "f_globals", "f_locals", "format", "format_map", "from_file", "frombuffer", "get_device_module", "get_type_hints",
    "gi_code", "gi_frame", "hub", "import_module", "ledger", "methodcaller", "recorder", "resize_",
    "setGroupName", "set_default_device", "set_default_dtype", "set_default_tensor_type", "set_num_threads",
    "share_memory_", "tb_frame", "tb_next", "tofile", "untyped_storage", "use_deterministic_algorithms",
}  # fmt: skip
"""Attributes of whatever object that lead out of the text, around the process group or the count of memory, or change
torch for all code. `format`, and the lists and dicts of parameters, read attributes that a string names, where no rule
sees them; an f-string shows them."""

DUNDERS = {
    "__add__", "__bool__", "__call__", "__contains__", "__enter__", "__eq__", "__exit__", "__ge__", "__getitem__",
    "__gt__", "__hash__", "__init__", "__iter__", "__le__", "__len__", "__lt__", "__matmul__", "__mul__", "__name__",
    "__ne__", "__neg__", "__next__", "__or__", "__post_init__", "__radd__", "__repr__", "__rmul__", "__setitem__",
    "__str__", "__sub__", "__truediv__",
}  # fmt: skip
"""Names with two underscores that are harmless."""

OF_THE_TAP = {"_call", "_carried", "_global_ranks", "_group_name", "_recorder"}
"""Attributes of requests and groups by which a rank reports what it does: none is a name of a text's own."""

OF_TUPLES = {"_asdict", "_fields", "_replace"}
"""Names that begin with an underscore in named tuples, such as an `Action`, where they are public."""

SETTABLE = {"data", "grad", "requires_grad"}
"""Attributes of tensors that a program may assign."""

OPERATIONS = {
    "send": {Op.SEND}, "isend": {Op.SEND}, "recv": {Op.RECV}, "irecv": {Op.RECV},
    "batch_isend_irecv": {Op.SEND, Op.RECV}, "P2POp": {Op.SEND, Op.RECV},
    "broadcast": {Op.BROADCAST}, "reduce": {Op.REDUCE}, "all_reduce": {Op.ALL_REDUCE}, "scatter": {Op.SCATTER},
    "gather": {Op.GATHER}, "all_gather": {Op.ALL_GATHER}, "all_gather_into_tensor": {Op.ALL_GATHER},
    "all_gather_single": {Op.ALL_GATHER}, "reduce_scatter": {Op.REDUCE_SCATTER},
    "reduce_scatter_tensor": {Op.REDUCE_SCATTER}, "reduce_scatter_single": {Op.REDUCE_SCATTER},
    "all_to_all": {Op.ALL_TO_ALL}, "all_to_all_single": {Op.ALL_TO_ALL}, "barrier": {Op.BARRIER},
    "broadcast_object_list": {Op.BROADCAST}, "all_gather_object": {Op.ALL_GATHER},
}  # fmt: skip
"""What a call to torch.distributed looks like in a trace."""
