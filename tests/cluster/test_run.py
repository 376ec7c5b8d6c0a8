"""What travels to the ranks and back: functions, arguments, results."""

import functools
import importlib.util
import os
import resource
import sys
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from reference.cluster import Cluster, ClusterError, RankError


@dataclass
class Point:
    """A class that only this file knows."""

    x: int
    y: int


class Colour(Enum):
    RED = 1


class Move(NamedTuple):
    """A tuple of a class that only this file knows."""

    name: str
    by: torch.Tensor

    def doubled(self) -> "Move":
        return self._replace(by=2 * self.by)


def rank() -> int:
    return dist.get_rank()


class Adder:
    """Callable, and a constructor that ranks may call."""

    def __init__(self, n: int = 1) -> None:
        self.n = n + dist.get_rank() if dist.is_initialized() else n

    def __call__(self, x: int) -> int:
        return x + self.n


def test_every_rank_runs_the_function_and_results_come_by_rank(clusters):
    assert clusters(4).run(rank) == [0, 1, 2, 3]


@pytest.mark.parametrize("world_size", [1, 2, 3, 5, 8])
def test_all_reduce_works_at_once(clusters, world_size):
    def total() -> float:
        x = torch.ones(3)
        dist.all_reduce(x)
        return x.sum().item()

    assert clusters(world_size).run(total) == [3.0 * world_size] * world_size


def test_thirty_two_ranks():
    def total() -> float:
        x = torch.ones(1)
        dist.all_reduce(x)
        return x.item()

    with Cluster(32) as cluster:
        assert cluster.run(total) == [32.0] * 32


def test_closures_lambdas_partials_methods_and_classes_travel(clusters):
    factor, cluster = 7, clusters(2)
    assert cluster.run(lambda x, *, y: (x + y) * factor, 1, y=2) == [21, 21]
    assert cluster.run(functools.partial(pow, 2), 5) == [32, 32]
    assert cluster.run(Adder(1), 2) == [3, 3]
    assert cluster.run(Adder(1).__call__, 2) == [3, 3]
    made = cluster.run(Adder, 10)
    assert [type(adder) for adder in made] == [Adder, Adder]
    assert [adder.n for adder in made] == [10, 11]


def test_recursive_and_nested_functions_travel(clusters):
    def factorial(n: int) -> int:
        return 1 if n == 0 else n * factorial(n - 1)

    assert clusters(2).run(factorial, 5) == [120, 120]


def test_results_keep_their_classes(clusters):
    point, colour = clusters(2).run(lambda: (Point(rank(), 1), Colour.RED))[1]
    assert isinstance(point, Point)
    assert point == Point(1, 1)
    assert colour is Colour.RED


def test_named_tuples_travel_with_their_methods_and_tensors(clusters):
    (move, size), *_ = clusters(2).run(lambda move, size: (move.doubled(), size), Move("left", torch.arange(3)), (2, 3))
    assert type(move) is Move and move.name == "left" and move.by.tolist() == [0, 2, 4] and size == (2, 3)


def test_methods_of_this_file_keep_working_after_results_have_come_back(clusters):
    method = Point.__init__
    clusters(2).run(lambda: Point(1, 2))
    assert Point.__init__ is method


def module(path: Path, source: str) -> ModuleType:
    """A module of the caller's, from a file that no rank can import by name."""
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    made = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = made
    spec.loader.exec_module(made)
    return made


def test_functions_of_files_that_ranks_cannot_import_travel(clusters, tmp_path):
    helpers = module(tmp_path / "learners_helpers.py", "SCALE = 3\ndef inner(x): return x * SCALE\n")
    outer = module(
        tmp_path / "learners_module.py", "from learners_helpers import inner\ndef f(x): return inner(x) + 1\n"
    )
    assert clusters(2).run(outer.f, 5) == [16, 16]
    helpers.SCALE = 10
    assert clusters(2).run(outer.f, 5) == [51, 51]


@pytest.mark.parametrize("folder", ["puzzles_of_mine", "my-packages"])
def test_functions_of_a_folder_that_is_called_nearly_like_one_of_ours_travel(clusters, folder):
    mine = ModuleType(f"in_{folder}")
    mine.__file__ = str(Path(__file__).resolve().parents[2] / folder / "mine.py")
    exec("def f(): return 42", vars(mine))
    sys.modules[mine.__name__] = mine
    assert clusters(2).run(mine.f) == [42, 42]


def test_an_edited_module_is_what_the_owner_has(clusters, tmp_path):
    first = module(tmp_path / "edited_module.py", "def f(): return 'before'\n")
    assert clusters(2).run(first.f) == ["before", "before"]
    second = module(tmp_path / "edited_module.py", "def f(): return 'after'\n")
    assert clusters(2).run(second.f) == ["after", "after"]


def test_modules_of_the_caller_can_be_imported_inside(clusters, tmp_path, monkeypatch):
    (tmp_path / "found_by_path.py").write_text("VALUE = 42\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)

    def look() -> tuple[int, str]:
        import found_by_path

        return found_by_path.VALUE, os.getcwd()

    assert clusters(2).run(look) == [(42, str(tmp_path))] * 2


def test_a_global_may_be_called_like_a_module_that_torch_refuses_to_pickle(clusters):
    """A function that says `torch` and `config` takes along what torch has under this name."""
    import torch.distributed.config

    notebook = {"dist": torch.distributed, "config": {"width": 3}}
    width = eval("lambda: dist.get_rank() + config['width']", notebook)
    assert clusters(2).run(width) == [3, 4]


def test_what_cannot_travel_is_said_before_any_rank_runs(clusters):
    lock = __import__("threading").Lock()
    with pytest.raises(TypeError, match="can't travel to the ranks"):
        clusters(2).run(lambda: lock)


DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool, torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.uint16,
]  # fmt: skip


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal in class, dtype, shape and every bit."""
    bits = [x.detach().resolve_conj().contiguous().reshape(-1).view(torch.uint8) for x in (a, b)]
    return type(a) is type(b) and a.dtype == b.dtype and a.shape == b.shape and torch.equal(*bits)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tensors_of_every_dtype_come_back_as_they_went(clusters, dtype):
    values = torch.arange(6).reshape(2, 3).to(dtype)
    for result in clusters(2).run(lambda x: x, values):
        assert same(result, values)


SHAPES = {
    "0-dim": torch.tensor(3.5),
    "empty": torch.empty(0, 4),
    "transposed": torch.arange(6.0).reshape(2, 3).t(),
    "strided": torch.arange(10.0)[::3],
    "view of a large one": torch.arange(1000.0)[17:19],
    "expanded": torch.ones(1, 3).expand(4, 3),
    "needs gradient": torch.ones(2, requires_grad=True),
    "result of a gradient": torch.ones(2, requires_grad=True) * 2,
    "conjugate": torch.tensor([1 + 2j]).conj(),
    "parameter": nn.Parameter(torch.ones(2)),
}


@pytest.mark.parametrize("name", SHAPES)
def test_tensors_of_every_kind_come_back_as_they_went(clusters, name):
    tensor = SHAPES[name]
    for result in clusters(2).run(lambda x: x, tensor):
        assert same(result, tensor)
        assert result.requires_grad == tensor.requires_grad
        assert result.detach().clone().add_(1) is not None  # its memory can be written


def test_sparse_and_numpy_and_containers(clusters):
    sparse = torch.eye(3).to_sparse()
    array = np.arange(6).reshape(2, 3)
    back = clusters(2).run(lambda *values: values, sparse, array, {"a": [None, ..., b"x"]})[1]
    assert torch.equal(back[0].to_dense(), torch.eye(3))
    assert np.array_equal(back[1], array)
    assert back[2] == {"a": [None, ..., b"x"]}


def test_a_model_keeps_its_tied_weights_and_its_numbers(clusters):
    model = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 5, bias=False))
    model[1].weight = model[0].weight

    def step(model: nn.Module) -> nn.Module:
        with torch.no_grad():
            model[0].weight += 1
        return model

    back = clusters(2).run(step, model)[0]
    assert back[0].weight is back[1].weight
    assert torch.equal(back[0].weight, model[0].weight + 1)
    assert isinstance(back[0].weight, nn.Parameter)


def test_large_arguments_and_results(clusters):
    x = torch.arange(8 << 20, dtype=torch.float32)  # 32 MiB
    results = clusters(4).run(lambda x: x + dist.get_rank(), x)
    assert all(torch.equal(result, x + r) for r, result in enumerate(results))


def test_many_tensors(clusters):
    tensors = [torch.full((3,), float(i)) for i in range(3000)]
    back = clusters(2).run(lambda ts: ts, tensors)[1]
    assert all(torch.equal(a, b) for a, b in zip(back, tensors, strict=True))


def test_a_call_starts_with_torch_as_new(clusters):
    def disturb() -> float:
        torch.set_default_dtype(torch.float64)
        torch.set_default_device("meta")
        torch.set_grad_enabled(False)
        dist.new_group([0])
        return torch.rand(1, device="cpu").item()

    def look() -> tuple:
        return (
            torch.rand(1, device="cpu").item(),
            torch.get_default_dtype(),
            torch.get_default_device(),
            torch.is_grad_enabled(),
            dist.new_group([0, 1]).group_name,
        )

    cluster = clusters(2)
    fresh = cluster.run(look)
    cluster.run(disturb)
    again = cluster.run(look)
    assert again == fresh


def test_a_call_starts_where_the_caller_stands(clusters):
    def wander() -> None:
        os.chdir("/")
        sys.path.insert(0, "/elsewhere")

    cluster = clusters(2)
    cluster.run(wander)
    assert cluster.run(lambda: (os.getcwd(), sys.path)) == [(os.getcwd(), sys.path)] * 2


def test_messages_that_nobody_took_do_not_reach_the_next_call(clusters):
    def speak() -> None:
        if dist.get_rank() == 0:
            dist.isend(torch.tensor([666.0]), 1)

    def listen() -> float:
        x = torch.zeros(1)
        dist.send(torch.ones(1), 1) if dist.get_rank() == 0 else dist.recv(x, 0)
        return x.item()

    cluster = clusters(2)
    cluster.run(speak)
    assert cluster.run(listen) == [0.0, 1.0]


@pytest.mark.parametrize(("ranks", "source", "tag"), [(2, 0, 6), (3, 2, 5)], ids=["another tag", "another source"])
def test_a_lost_message_and_a_lost_receive_do_not_make_up_for_each_other(clusters, ranks, source, tag):
    def lose(source: int, tag: int) -> None:
        x = torch.zeros(1)
        if dist.get_rank() == 0:
            dist.isend(torch.tensor([666.0]), 1, tag=5)
        elif dist.get_rank() == 1:
            dist.irecv(x, source, tag=tag)

    def talk(source: int, tag: int) -> list[float]:
        x, y = torch.zeros(1), torch.zeros(1)
        if dist.get_rank() == 0:
            dist.send(torch.ones(1), 1, tag=5)
        if dist.get_rank() == source:
            dist.send(torch.ones(1), 1, tag=tag)
        if dist.get_rank() == 1:
            dist.recv(x, 0, tag=5)
            dist.recv(y, source, tag=tag)
        return [x.item(), y.item()]

    cluster = clusters(ranks, timeout=30)
    cluster.run(lose, source, tag)
    assert cluster.run(talk, source, tag)[1] == [1.0, 1.0]


def test_receives_from_any_rank_take_what_was_sent(clusters):
    def talk() -> int:
        x = torch.zeros(1)
        if dist.get_rank() == 0:
            for source in (1, None, None, None):
                dist.recv(x, source)
        else:
            for _ in range(2):
                dist.send(torch.ones(1), 0)
        return os.getpid()

    cluster = clusters(3)
    assert cluster.run(talk) == cluster.run(talk), "nothing was left, so the ranks continue"


def test_a_collective_of_one_rank_does_not_reach_the_next_call(clusters):
    def alone() -> None:
        if dist.get_rank() == 0:
            dist.broadcast(torch.tensor([666.0]), 0, async_op=True)

    def together() -> float:
        x = torch.tensor([float(dist.get_rank() == 0)])
        dist.broadcast(x, 0)
        return x.item()

    cluster = clusters(2)
    cluster.run(alone)
    assert cluster.run(together) == [1.0, 1.0]


def test_trace_gives_results_and_events(clusters):
    results, trace = clusters(2).trace(lambda: dist.all_reduce(torch.ones(4)))
    assert results == [None, None]
    assert [event.op.value for event in trace.events[1]] == ["all_reduce"]


@pytest.mark.parametrize("world_size", [0, -1, 33, "4", 2.0, True])
def test_a_world_size_out_of_range_is_refused(world_size):
    with pytest.raises(ClusterError, match="1 to 32 ranks"):
        Cluster(world_size)


@pytest.mark.parametrize("timeout", [0, -1.0, float("nan"), True, "5"])
def test_a_time_limit_that_is_none_is_refused(timeout):
    with pytest.raises(ClusterError, match="above 0, or None"):
        Cluster(2, timeout=timeout)


@pytest.mark.parametrize("preload", ["torch", None, [torch]])
def test_a_preload_that_is_no_list_of_names_is_refused(preload):
    with pytest.raises(ClusterError, match="a list of module names"):
        Cluster(2, preload=preload)


def test_a_rank_has_no_ranks_of_its_own(clusters):
    with pytest.raises(RankError, match="a rank can't have ranks of its own"):
        clusters(2).run(lambda: Cluster(2))


def test_without_a_time_limit_a_call_runs():
    with Cluster(2, timeout=None) as cluster:
        assert cluster.run(rank) == [0, 1]


@pytest.mark.parametrize("preload", [[], ["numpy.random"]], ids=["imported by each rank", "imported before the fork"])
def test_random_numbers_of_a_new_rank_are_its_own(preload):
    def draw():
        import random

        import numpy as np

        return random.random(), np.random.random()

    with Cluster(3, preload=preload) as cluster:
        for drawn in zip(*cluster.run(draw), strict=True):
            assert len(set(drawn)) == 3, "ranks are forks of one process, whose state they must not share"


def test_a_rank_warms_up_before_the_first_call_and_its_owner_hears_nothing_of_it():
    with Cluster(2, watch=True, warm_up="torch.distributed:barrier") as cluster:
        results, trace = cluster.trace(lambda: len(dist.group.WORLD.recorder.calls))
        assert results == [0, 0] and trace.events == ((), ())
    with pytest.raises(ClusterError), Cluster(2, warm_up="torch.distributed:no_such_function") as cluster:
        cluster.ready()


def test_what_is_preloaded_is_there_before_a_rank_begins():
    with Cluster(2, preload=["xml.dom.minidom"]) as cluster:
        assert cluster.run(lambda: "xml.dom.minidom" in sys.modules) == [True, True]
        cluster.restart()
        assert cluster.run(lambda: "xml.dom.minidom" in sys.modules) == [True, True]


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc's allocator can be told")
def test_a_rank_keeps_the_memory_that_it_frees(clusters):
    """Else every step of training takes it anew from the kernel, page by page."""
    size, rounds = 80_000, 50
    pages_of_one = 4 * size // resource.getpagesize()

    def faults(rounds: int) -> int:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(rounds):
            [torch.ones(size) for _ in range(40)]  # 13 MB
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    ranks = clusters(2)
    ranks.run(faults, 5)
    for found in ranks.run(faults, rounds):
        assert found < rounds * pages_of_one / 10  # of 40 tensors in a round, not a tenth of one is taken anew
