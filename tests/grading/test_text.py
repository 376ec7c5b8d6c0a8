"""Stubs, solutions and wrong solutions are made from one description, and stand alone."""

import ast
import dataclasses

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed import all_gather_into_tensor as gather_flat

from puzzles import catalog
from puzzles.grading import style, text
from puzzles.grading.puzzle import Puzzle, Wrong
from reference.errors import BadInput

PUZZLES = [catalog.find(name) for name in catalog.names()]
SHIFT = catalog.find("ranks.ring_shift")
SCALE = 2


def named(puzzle: Puzzle) -> str:
    return puzzle.name


def _helper(x: Tensor) -> Tensor:
    return x * SCALE


def gathers(x: Tensor, out: Tensor, group: ProcessGroup) -> None:
    """Uses a function of torch under another name."""
    gather_flat(out, x, group=group)


def doubled(x: Tensor, group: ProcessGroup) -> Tensor:
    """Uses a helper and a constant of its module."""
    return torch.add(_helper(x), dist.get_rank(group))


@pytest.mark.parametrize("puzzle", PUZZLES, ids=named)
def test_stubs_and_solutions_stand_alone_and_keep_the_rules(puzzle: Puzzle) -> None:
    for source in (text.stub(puzzle), text.solution(puzzle)):
        assert style.inspect(puzzle, style.parse(puzzle, source)) == []
        assert ast.get_docstring(ast.parse(source)).startswith(puzzle.name)
        assert max(len(line) for line in source.splitlines()) <= 120
        exec(compile(source, "file.py", "exec"), {"__name__": "file"})


@pytest.mark.parametrize("puzzle", PUZZLES, ids=named)
def test_the_stub_says_everything(puzzle: Puzzle) -> None:
    stub = ast.parse(text.stub(puzzle))
    function = next(node for node in stub.body if getattr(node, "name", "") == puzzle.entry)
    docstring = ast.get_docstring(function)
    assert docstring.startswith(puzzle.title)
    assert "Args:" in docstring or not function.args.args
    assert not puzzle.title.endswith(".")


@pytest.mark.parametrize("puzzle", PUZZLES, ids=named)
def test_a_cell_is_the_stub_without_its_imports(puzzle: Puzzle) -> None:
    magic, _, cell = text.cell(puzzle).partition("\n")
    assert magic == f"%%puzzle {puzzle.name}"
    assert text.untouched(puzzle, cell)
    exec(compile(text.with_imports(puzzle, cell), "cell", "exec"), {"__name__": "cell"})


def test_a_function_brings_what_it_uses() -> None:
    source = text.standalone(doubled)
    assert "SCALE = 2" in source and "def _helper" in source
    assert source.index("def _helper") < source.index("def doubled")
    assert "import torch.distributed as dist" in source and "from torch import Tensor" in source
    exec(source, {})


def test_what_torch_calls_otherwise_is_imported_by_torch_s_name() -> None:
    """As `reference.collectives.compat` does for versions of torch that have other names."""
    source = text.standalone(gathers)
    assert "all_gather_into_tensor as gather_flat" in source
    exec(source, {})


def test_a_function_without_a_source_is_refused() -> None:
    with pytest.raises(ValueError, match="source"):
        text.standalone(eval("lambda x: x"))


@pytest.mark.parametrize(
    "edit",
    [
        lambda stub: stub,
        lambda stub: stub + "\n# a remark\n",
        lambda stub: stub.replace("Budget:", "My budget:"),
        lambda stub: "",
        lambda stub: stub.replace("import torch\n", ""),
    ],
)
def test_a_stub_is_untouched(edit: object) -> None:
    assert text.untouched(SHIFT, edit(text.stub(SHIFT)))


@pytest.mark.parametrize(
    "source", [text.solution(SHIFT), "def ring_shift(x, group):\n    pass\n", "def ring(", "x = 1\n"]
)
def test_anything_else_is_touched(source: str) -> None:
    assert not text.untouched(SHIFT, source)


def test_only_missing_imports_are_added() -> None:
    cell = "from torch import Tensor\n\ndef ring_shift(x: Tensor, group):\n    return dist.get_rank(group)\n"
    source = text.with_imports(SHIFT, cell)
    assert source.count("Tensor") == cell.count("Tensor")
    assert "import torch.distributed as dist\n" in source
    assert "ProcessGroup" not in source and "import torch\n" not in source
    assert text.with_imports(SHIFT, "def ring_shift(:") == "def ring_shift(:"


FUTURE = {
    "alone": "from __future__ import annotations\n",
    "with a comment": "from __future__ import annotations  # ünder\n\n",
    "below a docstring": '"""What\nit is."""\nfrom __future__ import (\n    annotations,\n)\n',
    "beside another": "from __future__ import annotations; import math\n",
}


@pytest.mark.parametrize("name", FUTURE)
def test_missing_imports_stand_below_those_from_the_future(name: str) -> None:
    function = "def ring_shift(x, group):\n    return torch.empty_like(x)\n"
    cell = FUTURE[name] + function
    for source in (text.with_imports(SHIFT, cell), text.as_numbered_in_cell(SHIFT, cell)):
        assert "import torch" in source and source.startswith(cell[:20], source.startswith("\n"))
        compile(source, "cell", "exec")
    numbered = text.as_numbered_in_cell(SHIFT, cell).splitlines()
    assert numbered[1 + FUTURE[name].count("\n") :] == function.splitlines()  # the magic's line is the first


def test_an_edit_that_does_not_fit_is_an_error() -> None:
    with pytest.raises(ValueError, match="is there 0 times"):
        text.wrong(SHIFT, Wrong("never", "never", edits=(("no such text", ""),)))
    with pytest.raises(ValueError, match="exactly one"):
        Wrong("two", "two", body="pass", text="pass")


def test_a_broken_program_is_shipped_as_the_stub() -> None:
    mend = dataclasses.replace(SHIFT, body="dist.send(x, 0)\nreturn x")
    assert text.stub(mend).endswith("    dist.send(x, 0)\n    return x\n")
    assert text.untouched(mend, text.stub(mend))


def test_a_class_with_the_operators_of_numbers_keeps_the_rules() -> None:
    """Actions that can be compared, dual numbers, schedules that can be asked for an action."""
    operators = ("add", "radd", "sub", "mul", "rmul", "truediv", "matmul", "neg", "eq", "ne", "lt", "le", "gt", "ge")
    names = (*operators, "bool", "contains", "getitem", "setitem", "len", "iter", "hash", "repr")
    methods = "".join(f"    def __{name}__(self, *others):\n        return 0\n" for name in names)
    source = text.solution(SHIFT) + f"\n\nclass Number:\n{methods}"
    assert style.inspect(SHIFT, style.parse(SHIFT, source)) == []
    for name in ("getattribute", "class_getitem", "del", "reduce"):
        refused = style.inspect(SHIFT, style.parse(SHIFT, source + f"    def __{name}__(self):\n        return 0\n"))
        assert [f"__{name}__" in finding.message for finding in refused] == [True]


def test_names_are_found_and_guessed() -> None:
    assert catalog.find("ring_shift") is SHIFT
    assert catalog.select("ranks") == [name for name in catalog.names() if name.startswith("ranks.")]
    with pytest.raises(BadInput, match=r"did you mean ranks\.ring_shift"):
        catalog.find("ring_shfit")
    with pytest.raises(BadInput, match="rankwise puzzles"):
        catalog.find("qqqqqqqq")


def test_a_solution_may_ask_whether_it_is_in_a_group() -> None:
    puzzle = catalog.find("composition.sum_along")
    asks = text.solution(puzzle).replace("dist.get_rank() in members", "group is not dist.GroupMember.NON_GROUP_MEMBER")
    assert asks != text.solution(puzzle)
    assert style.inspect(puzzle, style.parse(puzzle, asks)) == []
