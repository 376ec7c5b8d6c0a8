"""What a wrong answer looks like: patterns that say more than "expected 27, got 9".

Two kinds. Patterns *between* cases: right here and wrong there, and what sets the two apart. Patterns *in* the values
of one case: off by a factor, each rank's own input, another rank's answer. Each is a small function that returns a
sentence or None; a sentence is only said where it is true of every value or case it speaks of.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from .drives import tensors_of
from .puzzle import RETURNS, Case, Inputs, short
from .values import Comparison

Judged = Sequence[tuple[Case, bool]]


def between_cases(judged: Judged) -> str | None:
    """What tells the cases that are right from those that are wrong."""
    judged = [(case, right) for case, right in judged if case.n > 1] or list(judged)
    right = [case for case, good in judged if good]
    wrong = [case for case, good in judged if not good]
    if not wrong or not right:
        return None
    patterns: tuple[Callable[..., str | None], ...] = (_group, _world_size, _remainder, _empty, _parameter)
    return next((sentence for pattern in patterns if (sentence := pattern(right, wrong))), None)


def _group(right: list[Case], wrong: list[Case]) -> str | None:
    if all(case.members for case in wrong) and not any(case.members for case in right):
        return (
            f"right where the group is the whole world, wrong in the group {list(wrong[0].members or ())}: a rank of "
            "the group is not a global rank; use group_src=, group_dst=, group_peer= or dist.get_global_rank"
        )
    return None


def _world_size(right: list[Case], wrong: list[Case]) -> str | None:
    sizes_right, sizes_wrong = sorted({case.n for case in right}), sorted({case.n for case in wrong})
    if set(sizes_right) & set(sizes_wrong):
        return None
    sentence = f"right at {_listed(sizes_right)} ranks, wrong at {_listed(sizes_wrong)}"
    if all(_power_of_two(n) for n in sizes_right) and not any(_power_of_two(n) for n in sizes_wrong):
        return f"{sentence}: it works for powers of two only"
    if not any(n % 2 for n in sizes_right) and all(n % 2 for n in sizes_wrong):
        return f"{sentence}: it works for even numbers only"
    hard_coded = len(sizes_right) == 1 and sizes_right != [2]  # with 2 ranks, left and right are the same
    return f"{sentence}: is the world size hard-coded?" if hard_coded else sentence


def _remainder(right: list[Case], wrong: list[Case]) -> str | None:
    for name in _lengths(wrong[0]):
        divides = [getattr(case, name) % case.n == 0 for case in right]
        remains = [getattr(case, name) % case.n != 0 for case in wrong]
        if all(divides) and all(remains):
            where = f"{name}={getattr(wrong[0], name)} on {wrong[0].n} ranks"
            return f"right where n divides {name}, wrong where it does not ({where}): which rank gets the remainder?"
    return None


def _empty(right: list[Case], wrong: list[Case]) -> str | None:
    for name in _lengths(wrong[0]):
        if all(getattr(case, name) == 0 for case in wrong) and all(getattr(case, name) != 0 for case in right):
            return f"wrong only where {name} is 0: an empty tensor is a tensor, too"
    return None


def _parameter(right: list[Case], wrong: list[Case]) -> str | None:
    for name, _ in wrong[0].parameters:
        good, bad = {_value(case, name) for case in right}, {_value(case, name) for case in wrong}
        if not good & bad and None not in good | bad:
            these, those = (_listed(sorted(values, key=str)) for values in (good, bad))
            return f"right with {name}={these}, wrong with {name}={those}"
    return None


def in_values(wrong: Sequence[Comparison], inputs: dict[Case, Inputs]) -> str | None:
    """What the values of the wrong cases look like. `inputs` are what the ranks were given in each case."""
    patterns: tuple[Callable[[Comparison, Inputs], str | None], ...] = (
        _unreadable, _mixed, _one_tensor, _own_input, _another_rank, _order, _tail, _replicas, _some_ranks,
    )  # fmt: skip
    for cases in (wrong, wrong[:1]):  # what is true of all of them, else of the one that is shown
        if sentence := _changed([(comparison, inputs[comparison.case]) for comparison in cases]) or _factor(cases):
            return sentence
        for pattern in patterns:
            sentences = [pattern(comparison, inputs[comparison.case]) for comparison in cases]
            if sentences and all(sentences):
                return sentences[0]
    return None


def _pairs(comparison: Comparison) -> list[tuple[int, str, Tensor, Tensor]]:
    """(group rank, name, expected, got) of the tensors that differ, without those in lists."""
    return [leaf for leaf in comparison.leaves if "[" not in leaf[1]]


def _changed(wrong: Sequence[tuple[Comparison, Inputs]]) -> str | None:
    """Nothing is wrong but arguments that must stay as they are."""
    names = set()
    for comparison, inputs in wrong:
        for rank, name, expected, _ in comparison.leaves:
            if not comparison.same(expected, tensors_of(inputs[rank]).get(name)):
                return None
            names.add(name)
    if not names:
        return None
    copy = f"{min(names).partition('[')[0]}.clone()"
    return f"the values of {' and '.join(sorted(names))} must stay as they are: work on a copy, such as {copy}"


def _unreadable(comparison: Comparison, inputs: Inputs) -> str | None:
    pairs = comparison.leaves
    if pairs and all(got.is_floating_point() and got.isnan().any() and not e.isnan().any() for _, _, e, got in pairs):
        return "it holds NaN: memory that was never written, or read before its message was there; or 0/0, or inf - inf"
    return None


def _factor(wrong: Sequence[Comparison]) -> str | None:
    """All values are off by the same factor, or by the world size. One value always is off by some factor."""
    ratios = [(comparison.case.n, _ratio(comparison)) for comparison in wrong]
    if not ratios or any(ratio is None for _, ratio in ratios):
        return None
    if all(n > 1 and ratio == n for n, ratio in ratios):
        return "off by exactly the world size, too much: summed, and not averaged, or summed where all have the same?"
    if all(n > 1 and ratio == round(1 / n, 5) for n, ratio in ratios):
        return "off by exactly the world size, too little: averaged, and not summed?"
    same = {ratio for _, ratio in ratios}
    values = sum(expected.numel() for comparison in wrong for _, _, expected, _ in comparison.leaves)
    return f"off by a factor of {same.pop():g} everywhere" if len(same) == 1 and values > 1 else None


def _ratio(comparison: Comparison) -> float | None:
    """The one number that all wrong values are of what they should be; None where there is no such number."""
    ratios = set()
    for _, _, expected, got in comparison.leaves:
        some = expected != 0  # zeros are zeros in any unit
        if not some.any() or (got[~some] != 0).any():
            return None
        each = got[some].double() / expected[some].double()
        if not torch.allclose(each, each[0].expand_as(each), rtol=1e-5):
            return None
        ratios.add(round(each[0].item(), 5))
    return ratios.pop() if len(ratios) == 1 and not ratios & {0, 1} else None


def _mixed(comparison: Comparison, inputs: Inputs) -> str | None:
    """Tensors whose sum is right although each is wrong: some ranks have added them to each other's."""
    wrong: dict[int, dict[str, tuple[Tensor, Tensor]]] = {}
    for rank, name, expected, got in _pairs(comparison):
        wrong.setdefault(rank, {})[name] = (expected, got)
    for tensors in wrong.values():
        if len(tensors) < 2 or len({expected.shape for expected, _ in tensors.values()}) > 1:
            return None
        asked, there = (sum(pair[side].double() for pair in tensors.values()) for side in (0, 1))
        if not torch.allclose(asked, there):
            return None
    names = sorted({name for tensors in wrong.values() for name in tensors})
    if not names:
        return None
    return f"{' and '.join(names)} are mixed up, their sum is right: the same calls in another order on some ranks?"


def _one_tensor(comparison: Comparison, inputs: Inputs) -> str | None:
    """A list of results that all are the last one: one tensor, kept again and again."""
    found = []
    for asked, got in zip(comparison.expected, comparison.got, strict=True):
        for name, expected in asked.items():
            there = got.get(name)
            lists = isinstance(expected, list | tuple) and isinstance(there, list | tuple)
            if not lists or len(expected) != len(there) or len(expected) < 2:
                continue
            if comparison.same(expected, there) or comparison.same(expected, [expected[-1]] * len(expected)):
                continue
            if not isinstance(expected[-1], Tensor) or not comparison.same([expected[-1]] * len(expected), there):
                return None
            found.append((name, len(expected)))
    if not found:
        return None
    name, count = found[0]
    return f"all {count} tensors in {_name(name)} hold what the last should: one tensor, kept without .clone()"


def _own_input(comparison: Comparison, inputs: Inputs) -> str | None:
    pairs = _pairs(comparison)
    for rank, _, _, got in pairs:
        own = [value for value in inputs[rank].values() if isinstance(value, Tensor) and value.shape == got.shape]
        if not any(comparison.same(value, got) for value in own):
            return None
    if not pairs:
        return None
    rank, name, *_ = pairs[0]
    return f"{_name(name)} on {_ranks(rank for rank, *_ in pairs)} still holds its own input: nothing arrived"


def _another_rank(comparison: Comparison, inputs: Inputs) -> str | None:
    found = []
    for rank, name, _, got in _pairs(comparison):
        others = [r for r, e in enumerate(comparison.expected) if r != rank and comparison.same(e.get(name), got)]
        if not others:
            return None
        found.append((rank, others[0]))
    if not found:
        return None
    rank, other = found[0]
    ranks = comparison.case.global_ranks
    fact = f"rank {ranks[rank]} holds what rank {ranks[other]} should hold"
    return f"{fact}: is the direction, or the order of the calls, swapped?"


def _order(comparison: Comparison, inputs: Inputs) -> str | None:
    pairs = _pairs(comparison)
    if pairs and all(comparison.same(*(x.flatten().sort().values for x in (e, got))) for _, _, e, got in pairs):
        return "the right values in the wrong order"
    return None


def _tail(comparison: Comparison, inputs: Inputs) -> str | None:
    n, counts = comparison.case.n, set()
    for _, _, expected, got in _pairs(comparison):
        different = comparison.wrong(expected, got).flatten().nonzero().flatten().tolist()
        length = expected.numel()
        if length < n or length % n == 0 or different != list(range(length - length % n, length)):
            return None
        counts.add((length, length % n))
    if len(counts) != 1:
        return None
    ((length, rest),) = counts
    return f"only the last {rest} of {length} elements are wrong: the remainder chunk is lost (N={length} on {n} ranks)"


def _replicas(comparison: Comparison, inputs: Inputs) -> str | None:
    n = comparison.case.n
    for name, first in comparison.expected[0].items():
        asked_alike = n > 1 and all(comparison.same(first, each.get(name)) for each in comparison.expected)
        got = [each.get(name) for each in comparison.got]
        other = next((rank for rank, each in enumerate(got) if not comparison.same(got[0], each)), None)
        if asked_alike and other is not None and len(comparison.differences) == n:
            return f"{_name(name)} must be the same on every rank: rank 0 and rank {other} differ"
    return None


def _some_ranks(comparison: Comparison, inputs: Inputs) -> str | None:
    wrong = {difference.rank for difference in comparison.differences}
    asked = zip(comparison.case.global_ranks, comparison.expected, strict=True)
    right = [rank for rank, values in asked if rank not in wrong and any(each is not None for each in values.values())]
    if not right:
        return None
    return f"right on {_ranks(right)}, wrong on {_ranks(sorted(wrong))}"


def _name(name: str) -> str:
    return "the result" if name == RETURNS else name


def _lengths(case: Case) -> list[str]:
    """The parameters that say how long a tensor is."""
    return [name for name, value in case.parameters if type(value) is int and name in _LENGTHS]


_LENGTHS = (
    "length", "rows", "columns", "numel", "batch", "tokens", "sequence", "slice", "samples", "channels", "features",
    "width", "hidden", "outputs",
)  # fmt: skip


def _value(case: Case, name: str) -> Any:
    value = dict(case.parameters).get(name)
    try:
        hash(value)
    except TypeError:
        return str(value)
    return value


def _power_of_two(n: int) -> bool:
    return n & (n - 1) == 0


def _listed(values: Sequence[Any]) -> str:
    return ", ".join(short(value) for value in values)


def _ranks(ranks: Iterable[int]) -> str:
    found = list(dict.fromkeys(ranks))
    return f"rank{'s' if len(found) > 1 else ''} {_listed(found)}"
