"""All that strategies say to other ranks goes through a communicator: they call no collective, and choose none."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOORS = ("reference/parallelize.py", "reference/tensor_parallel/linear.py")  # all strategies are imported from here
CARRIERS = ("collectives", "cluster", "trace", "process_group.py")
SAYING = {
    "all_gather", "all_gather_into_tensor", "all_gather_object", "all_gather_single", "all_reduce", "all_to_all",
    "all_to_all_single", "barrier", "batch_isend_irecv", "broadcast", "gather", "irecv", "isend", "recv", "reduce",
    "reduce_scatter", "reduce_scatter_single", "reduce_scatter_tensor", "scatter", "send",
}  # fmt: skip
SAY_IT_THEMSELVES = {
    "reference/data_parallel/replicated.py: native": "what a learner's `naive` and `flat` are given to sum with",
    "reference/groups.py: connect": "uses each group once, so that NCCL connects its ranks, before there is a strategy",
    "reference/pipeline_parallel/channels.py: channels_of": "the same, for each channel of a pipeline",
    "reference/data_parallel/norm.py: gradient_norm": "one number about a step, which must be exact on all ranks",
    "reference/memory/loss_scaling.py: _by_all": "the same: whether gradients are finite",
    "reference/data_parallel/full_parameters.py: _of_all_ranks": "Python objects, for a checkpoint",
}
MAY_IMPORT = {"communicator", "default", "relay", "differentiable", "compat"}
"""Of reference.collectives; the last two for `Conjugate` and `device_of`."""


def imported(path: Path) -> Iterator[str]:
    """All that a file imports, each name with the module that it may be in, or be."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = path.relative_to(ROOT).parts[: -node.level] if node.level else ()
            module = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{module}.{alias.name}" for alias in node.names)


def files_of(name: str) -> list[Path]:
    """Where a name of `reference` may come from: a module, what holds the module, and the folder's `__init__`."""
    parts = name.split(".")
    places = [ROOT.joinpath(*parts[:length]) for length in range(1, len(parts) + 1)] if parts[0] == "reference" else []
    found = [path for place in places for path in (place.with_suffix(".py"), place / "__init__.py")]
    return [path for path in found if path.is_file()]


def strategies() -> list[Path]:
    """What is imported from the doors, and from there, but for what carries messages."""
    found: set[Path] = set()
    left = [ROOT / door for door in DOORS]
    while left:
        path = left.pop()
        if path not in found and path.relative_to(ROOT / "reference").parts[0] not in CARRIERS:
            found.add(path)
            left += [file for name in imported(path) for file in files_of(name)]
    return sorted(found)


def said_by(path: Path) -> Iterator[str]:
    """`file: function` for each call of torch's own collectives and messages."""
    for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(function, ast.FunctionDef):
            for node in ast.walk(function):
                if isinstance(node, ast.Attribute) and node.attr in SAYING and ast.unparse(node.value) == "dist":
                    yield f"{path.relative_to(ROOT)}: {function.name}"


def test_the_strategies_are_found() -> None:
    names = {str(path.relative_to(ROOT / "reference")) for path in strategies()}
    assert names >= {
        "data_parallel/replicated.py", "zero/unit.py", "zero/shards.py", "zero/sharded.py", "tensor_parallel/region.py",
        "tensor_parallel/vocabulary.py", "sequence_parallel/region.py", "sequence_parallel/fast/ring.py", "on_mesh.py",
        "pipeline_parallel/messages.py", "pipeline_parallel/run.py", "zero/fully_sharded.py",
    }  # fmt: skip


def test_a_strategy_calls_no_collective_of_torch() -> None:
    found = {said for path in strategies() for said in said_by(path)}
    assert found == set(SAY_IT_THEMSELVES)


@pytest.mark.parametrize("path", strategies(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_strategy_imports_no_collective(path: Path) -> None:
    chosen = {name.split(".")[2] for name in imported(path) if name.startswith("reference.collectives.")}
    assert chosen <= MAY_IMPORT


def test_a_file_that_says_it_itself_is_seen() -> None:
    """Answers to puzzles, which call torch's collectives as a learner does."""
    answers = ROOT / "reference" / "ranks" / "plain.py"
    assert set(said_by(answers)) == {
        f"reference/ranks/plain.py: {name}" for name in ("hand_over", "ring_shift", "swap")
    }
