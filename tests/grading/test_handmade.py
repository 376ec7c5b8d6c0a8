"""What a learner has solved becomes the backend that PyTorch's own training runs on."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from puzzles import catalog, handmade
from puzzles.grading import text
from puzzles.grading.course import Course
from puzzles.grading.verdict import Stage
from reference.cluster import Cluster
from reference.collectives import backend
from tests.collectives.training import TRAININGS, data_parallel

Train = Callable[[dist.ProcessGroup], list[float]]


def solve(course: Course, *names: str) -> Course:
    """Enter the solution of each puzzle as an attempt that has passed."""
    for name in names:
        attempt = course.state.begin(name, text.solution(catalog.find(name)), "test")
        course.state.finish(attempt, Stage.PASSED, "", 0.0)
    return course


def on_gloo(train: Train) -> list[float]:
    return train(dist.new_group(backend="gloo"))


def on(functions: dict[str, Callable[..., None]], train: Train) -> list[float]:
    backend.register(functions)
    return train(dist.new_group(backend=backend.NAME))


def test_every_collective_of_the_backend_has_its_puzzles() -> None:
    assert handmade.PUZZLES.keys() == backend.REFERENCE.keys()
    named = {f"collectives.{each}" for puzzles in handmade.PUZZLES.values() for each in puzzles}
    assert named <= set(catalog.names())


def test_with_nothing_solved_everything_comes_from_the_reference(tmp_path: Path) -> None:
    assert handmade.functions(Course(tmp_path)) == {}


def test_what_failed_does_not_serve(tmp_path: Path) -> None:
    course = Course(tmp_path)
    attempt = course.state.begin("collectives.ring_all_reduce", "def ring(x, group): pass", "test")
    course.state.finish(attempt, Stage.VALUES, "wrong", 0.0)
    assert handmade.serving(course) == {}


def test_the_best_solved_puzzle_serves(tmp_path: Path) -> None:
    course = solve(Course(tmp_path), "collectives.naive_all_reduce", "collectives.broadcast_naive")
    assert handmade.serving(course)["all_reduce"] == "collectives.naive_all_reduce"
    solve(course, "collectives.ring_all_reduce")
    assert handmade.serving(course) == {
        "all_reduce": "collectives.ring_all_reduce",
        "broadcast": "collectives.broadcast_naive",
    }


@pytest.mark.parametrize("name", TRAININGS)
@pytest.mark.parametrize("solved", ["nothing", "everything"])
def test_torch_trains_on_what_is_solved_as_on_gloo(
    clusters: Callable[..., Cluster], tmp_path: Path, name: str, solved: str
) -> None:
    """DDP, FSDP2 and 1F1B, in float64. With nothing solved the reference serves."""
    course = Course(tmp_path)
    if solved == "everything":
        solve(course, *(each for each in catalog.names() if each.startswith("collectives.")))
        assert handmade.functions(course).keys() == backend.REFERENCE.keys()
    gloo = clusters(4).run(on_gloo, TRAININGS[name])
    ours = clusters(4).run(on, handmade.functions(course), TRAININGS[name])
    torch.testing.assert_close(torch.tensor(ours), torch.tensor(gloo), rtol=1e-10, atol=0)


def test_it_is_the_learners_text_that_ddp_runs(clusters: Callable[..., Cluster], tmp_path: Path) -> None:
    nothing, ring = Course(tmp_path / "nothing"), Course(tmp_path / "ring")
    wrong = text.solution(catalog.find("collectives.ring_all_reduce")).replace(
        "for step in range(n - 1)", "for step in ()"
    )
    attempt = ring.state.begin("collectives.ring_all_reduce", wrong, "test")
    ring.state.finish(attempt, Stage.PASSED, "", 0.0)
    right = clusters(3).run(on, handmade.functions(nothing), data_parallel)
    drifted = clusters(3).run(on, handmade.functions(ring), data_parallel)
    assert drifted[0][0] == right[0][0] and drifted[0][-1] != right[0][-1]


@pytest.mark.parametrize("op", ["SUM", "AVG", "MAX"])
def test_a_text_is_asked_for_what_its_signature_takes(
    clusters: Callable[..., Cluster], tmp_path: Path, op: str
) -> None:
    course = solve(Course(tmp_path), "collectives.ring_all_reduce")
    _, trace = clusters(3).trace(reduces, handmade.functions(course), op)
    assert {Path(event.file).name for events in trace.events for event in events} == {"ring_all_reduce.py"}
    assert trace.steps == 4


def reduces(functions: dict[str, Callable[..., None]], op: str) -> None:
    backend.register(functions)
    dist.all_reduce(torch.ones(9), getattr(dist.ReduceOp, op), dist.new_group(backend=backend.NAME))
