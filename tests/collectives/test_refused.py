"""A call that can't be done is refused on every rank, in one line, before any rank waits for a message."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.distributed as dist

from reference.cluster import Cluster, GroupError
from reference.collectives import all_reduce, all_to_all, backend, differentiable
from reference.collectives.compat import all_gather_single, reduce_scatter_single

from . import conformance as c
from .conftest import in_group, members

Group = dist.ProcessGroup


def told(calls: list[Callable[[Group], object]], group: Group) -> set[str]:
    """What these calls are refused with; "" for one that is not."""
    words = set()
    for call in calls:
        try:
            call(group)
            words.add("")
        except ValueError as error:
            words.add(str(error))
    return words


def of_root(root: int, group: Group) -> set[str]:
    """What all rooted functions say about a root."""
    cases = [c.Case(kind, algorithm, 4, root=root) for kind in c.ROOTED for algorithm in c.ALGORITHMS[kind]]
    calls = [lambda group, case=case: c.run(case, group) for case in cases]
    x = torch.ones(4, 4)
    calls += [lambda group, name=name: getattr(differentiable, name)(x, root, group) for name in c.ROOTED]
    return told(calls, group)


@pytest.mark.parametrize("root", [-1, 4])
def test_a_root_is_a_group_rank(ranks: Cluster, root: int) -> None:
    words = f"root is a group rank, 0 to 3, not {root}: see dist.get_group_rank"
    found = ranks.run(in_group, 4, lambda group: of_root(root, group))
    assert [each for each in found if each is not None] == [{words}] * 4


def of_reduction(op: dist.ReduceOp, dtype: torch.dtype, group: Group) -> set[str]:
    """What all that reduce say about a reduction."""
    cases = [c.Case(kind, algorithm, 7, dtype, op) for kind in c.REDUCING for algorithm in c.ALGORITHMS[kind]]
    return told([lambda group, case=case: c.run(case, group) for case in cases], group)


@pytest.mark.parametrize("n", [1, 4])
@pytest.mark.parametrize(
    ("op", "dtype", "words"),
    [
        (c.AVG, torch.int64, "is for floating-point or complex tensors, not for torch.int64"),
        (c.AVG, torch.bool, "is for floating-point or complex tensors, not for torch.bool"),
        (c.BITS[0], torch.float32, "is for integer or bool tensors, not for torch.float32"),
        (c.BITS[2], torch.complex64, "is for integer or bool tensors, not for torch.complex64"),
        (c.MIN, torch.complex64, "is for real tensors, not for torch.complex64"),
        (dist.ReduceOp.PREMUL_SUM, torch.float32, "op is dist.ReduceOp.SUM, AVG, "),
        ("sum", torch.float32, "not 'sum'"),
        (c.SUM, torch.float8_e4m3fn, "torch adds no tensors of torch.float8_e4m3fn"),
    ],
    ids=str,
)
def test_a_reduction_is_one_that_the_dtype_has(
    ranks: Cluster, op: dist.ReduceOp, dtype: torch.dtype, words: str, n: int
) -> None:
    found = ranks.run(in_group, n, lambda group: of_reduction(op, dtype, group))
    found = [each for each in found if each is not None]
    assert len(found) == n
    assert all(words in line for each in found for line in each)


N = 3
FITS = {  # calls that gloo refuses, and what is wrong with them
    "all_gather: other lengths": (
        lambda group: dist.all_gather([torch.ones(3 + i) for i in range(N)], torch.ones(3), group),
        "a tensor of 3 elements of torch.float32 is needed here, not of 4 of torch.float32",
    ),
    "all_gather: one too few": (
        lambda group: dist.all_gather([torch.ones(3)] * (N - 1), torch.ones(3), group),
        "a list has one tensor for each of the 3 ranks of the group, not 2",
    ),
    "all_gather_single: other length": (
        lambda group: all_gather_single(torch.ones(N + 1), torch.ones(1), group=group),
        "a tensor of 3 elements of torch.float32 is needed here, not of 4 of torch.float32",
    ),
    "all_gather_single: other dtype": (
        lambda group: all_gather_single(torch.ones(N).double(), torch.ones(1), group=group),
        "a tensor of 3 elements of torch.float32 is needed here, not of 3 of torch.float64",
    ),
    "reduce_scatter_single: other length": (
        lambda group: reduce_scatter_single(torch.ones(1), torch.ones(N + 1), group=group),
        "a tensor of 3 elements of torch.float32 is needed here, not of 4 of torch.float32",
    ),
    "reduce_scatter_single: other dtype": (
        lambda group: reduce_scatter_single(torch.ones(1), torch.ones(N).double(), group=group),
        "a tensor of 3 elements of torch.float32 is needed here, not of 3 of torch.float64",
    ),
    "all_to_all_single: other length": (
        lambda group: dist.all_to_all_single(torch.ones(2 * N), torch.ones(N), group=group),
        "a tensor of 3 elements of torch.float32 is needed here, not of 6 of torch.float32",
    ),
    "all_reduce: average of whole numbers": (
        lambda group: dist.all_reduce(torch.arange(3), c.AVG, group),
        "is for floating-point or complex tensors, not for torch.int64",
    ),
    "all_reduce: bits of fractions": (
        lambda group: dist.all_reduce(torch.ones(3), c.BITS[1], group),
        "is for integer or bool tensors, not for torch.float32",
    ),
    "all_reduce: floats of 8 bits": (
        lambda group: dist.all_reduce(torch.ones(3).to(torch.float8_e4m3fn), group=group),
        "torch adds no tensors of torch.float8_e4m3fn",
    ),
    "all_reduce: a factor before": (
        lambda group: dist.all_reduce(torch.ones(3), dist._make_nccl_premul_sum(2.0), group),
        "op is dist.ReduceOp.SUM, AVG, ",
    ),
}


ONE, SIX, DOUBLES, FOUR = torch.ones(1), torch.ones(2 * N), torch.ones(N).double(), torch.ones(N + 1)
MISFITS = [  # arguments of the functions themselves, and what is wrong with them
    ("all_gather", (ONE, SIX), "a tensor of 2 elements of torch.float32 is needed here, not of 1 of torch.float32"),
    ("all_gather", (ONE, DOUBLES), "a tensor of 1 elements of torch.float64 is needed here, not of 1 of torch.float32"),
    ("reduce_scatter", (SIX, ONE), "a tensor of 2 elements of torch.float32 is needed here, not of 1 of torch.float32"),
    ("reduce_scatter", (DOUBLES, ONE), "a tensor of 1 elements of torch.float64 is needed here, not of 1 of "),
    ("all_to_all", (SIX, ONE), "a tensor of 6 elements of torch.float32 is needed here, not of 1 of torch.float32"),
    ("all_to_all", (DOUBLES, ONE), "a tensor of 3 elements of torch.float64 is needed here, not of 1 of torch.float32"),
    ("all_to_all", (FOUR, FOUR), "3 ranks trade chunks of one length, and 3 does not divide 4: see `uneven`"),
]


@pytest.mark.parametrize(("collective", "tensors", "words"), MISFITS)
def test_tensors_that_do_not_fit_are_refused_by_every_algorithm(
    ranks: Cluster, collective: str, tensors: tuple[torch.Tensor, ...], words: str
) -> None:
    calls = [partial(algorithm, *tensors) for algorithm in c.ALGORITHMS[collective]]
    found = [each for each in ranks.run(in_group, N, lambda group: told(calls, group)) if each]
    assert len(found) == N
    assert all(words in line for each in found for line in each)


def of_own_rows(group: Group) -> set[str]:
    """What is said where a rank sends itself one row and awaits three, or awaits one of another dtype."""
    splits = [1] * N
    awaited = [3 if rank == group.rank() else 1 for rank in range(N)]
    x, more, other = torch.ones(N, 1), torch.ones(N + 2, 1), torch.ones(N, 1).double()
    calls = [partial(all_to_all.uneven, x, more, splits, awaited), partial(all_to_all.uneven, x, other, splits, splits)]
    calls += [lambda group: differentiable.all_to_all_uneven(x, splits, awaited, group)]
    return told(calls, group)


def test_rows_that_stay_are_as_many_as_are_awaited(ranks: Cluster) -> None:
    words = {
        f"a tensor of 1 elements of torch.float32 is needed here, not of {of}"
        for of in ("3 of torch.float32", "1 of torch.float64")
    }
    assert [each for each in ranks.run(in_group, N, of_own_rows) if each] == [words] * N


@pytest.mark.parametrize("whole", [None, torch.ones(2)])
@pytest.mark.parametrize("collective", ["scatter", "gather"])
def test_a_root_needs_room_for_all(ranks: Cluster, collective: str, whole: torch.Tensor | None) -> None:
    tensors = (torch.ones(3), whole)
    calls = [partial(algorithm, *tensors, 0) for algorithm in c.ALGORITHMS[collective]]
    given = "None" if whole is None else "of 2 of torch.float32"
    (found,) = [each for each in ranks.run(in_group, 1, lambda group: told(calls, group)) if each]
    assert found == {f"a tensor of 3 elements of torch.float32 is needed here, not {given}"}


def of_backend(kind: str, name: str) -> str:
    """The class and words of what a call on a group of this backend raises."""
    backend.register()
    group = dist.new_group(backend=kind)
    try:
        FITS[name][0](group)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


@pytest.mark.parametrize("name", FITS)
def test_what_gloo_refuses_the_handmade_backend_refuses_on_every_rank(
    clusters: Callable[..., Cluster], name: str
) -> None:
    assert all(clusters(N).run(of_backend, "gloo", name))
    for line in clusters(N).run(of_backend, backend.NAME, name):
        assert line.startswith("ValueError: ")
        assert FITS[name][1] in line


def test_a_list_of_uneven_pieces_is_refused(clusters: Callable[..., Cluster]) -> None:
    def uneven() -> set[str]:
        backend.register()
        group = dist.new_group(backend=backend.NAME)
        out, pieces = torch.ones(1 + dist.get_rank()), [torch.ones(1 + i) for i in range(N)]
        return told([lambda group: dist.reduce_scatter(out, pieces, group=group)], group)

    assert all("is needed here" in words for found in clusters(N).run(uneven) for words in found)


def test_what_is_refused_reaches_no_function_of_ones_own(clusters: Callable[..., Cluster]) -> None:
    def refused() -> set[str]:
        def never(x: torch.Tensor, group: Group, op: dist.ReduceOp = c.SUM) -> None:
            raise AssertionError

        backend.register({"all_reduce": never})
        group = dist.new_group(backend=backend.NAME)
        calls = [FITS[name][0] for name in FITS if name.startswith("all_reduce")]
        sparse = torch.ones(2).to_sparse()
        return told([*calls, lambda group: dist.all_reduce(sparse, group=group)], group)

    for found in clusters(N).run(refused):
        assert len(found) == 5
        assert "a collective moves dense tensors, not one of torch.sparse_coo: see Tensor.to_dense" in found


def test_who_is_no_member_is_told_so(ranks: Cluster) -> None:
    with pytest.raises(GroupError, match="this rank is not in the group") as caught:
        ranks.run(lambda: all_reduce.ring(torch.ones(2), dist.new_group(members(2))))
    assert caught.value.rank not in members(2)
