"""zero.clip_by_norm: one gradient, in pieces, is clipped as one."""

import math

import torch
import torch.distributed as dist

from puzzles.grading.drives.zero import without_padding
from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, cases, on_any_ranks
from reference.zero import cost
from reference.zero.answers.on_shards import clip_by_global_norm

from .common import ALL_GATHER, DOUBLE, cut, shard_of

RUBBISH = (math.inf, 1e3, 1e3)  # what lies in the padding of each gradient
OWN_SQUARE = "torch.linalg.vector_norm(shard[:own], dtype=torch.float64).square()"  # as the solution says it


def gradients(case):
    """The whole ones, already summed over ranks."""
    return [case.normal(0, length, name=f"gradient {i}") for i, length in enumerate(case.lengths)]


def shards_with_rubbish(case, rank):
    """This rank's shards, with padding that was not filled."""
    padded = zip(gradients(case), RUBBISH, strict=False)
    shards = [cut(gradient, case.n, padding)[rank] for gradient, padding in padded]
    return {"shards": shards, "lengths": list(case.lengths), "limit": case.limit}


def one_long_vector(case, inputs):
    """All gradients one after another: their norm, and what clipping makes of them."""
    whole = torch.cat(gradients(case))
    norm = (whole * whole).sum().sqrt()
    factor = case.limit / norm if norm > case.limit else 1.0
    clipped = [(gradient * factor).split(shard_of(len(gradient), case.n)) for gradient in gradients(case)]
    nothing = torch.empty(0, dtype=torch.float64)
    within = [[*shards, *[nothing] * (case.n - len(shards))] for shards in clipped]
    return [{"returns": norm, "shards": [shards[rank] for shards in within]} for rank in range(case.n)]


PUZZLE = Puzzle(
    name="zero.clip_by_norm",
    title="Clip by the norm of the whole gradient",
    statement="""
        Gradient clipping looks at all gradients as one long vector. If it is longer than `limit`, all of it is scaled
        to that length; if not, it stays as it is. Exactly, without the 1e-6 that torch adds to the norm. Now each rank
        has only its shards. If each clipped by the norm of what it has, every shard would be scaled by another factor,
        and the vector would point elsewhere.

        Args:
            shards: of each gradient (summed over ranks before), this rank's n-th. Scale them in place.
            lengths: how many elements each gradient has. Where n does not divide that, the shards of the last ranks
                end in padding, or are nothing but padding. It was never filled: there may be anything in it, and what
                becomes of it does not matter.
            limit: the longest that all gradients together may be.
            group: n ranks. Any n.

        Returns: the norm of all gradients before they were scaled, a scalar tensor in float64, the same on every rank.

        Budget: one number is all that ranks need to tell each other: 2(n-1) steps, at most 16 bytes sent.
        """,
    function=clip_by_global_norm,
    cases=cases(worlds=(4,), lengths=((8, 4), (7, 5, 1)), limit=(1.0, 100.0))
    + cases(worlds=(3, 2, 1, 5, 8), lengths=((7, 10, 1),), limit=(0.5,))
    + cases(worlds=(4,), members=(0, 2, 3), lengths=((4, 5),), limit=(1.0,)),
    drawn=on_any_ranks(lengths=((5, 9), (3, 14, 2), (11,)), limit=(0.3, 1.0, 50.0)),
    inputs=shards_with_rubbish,
    oracle=one_long_vector,
    drive=without_padding,
    tolerance=1e-10,
    calls=(dist.all_reduce, *ALL_GATHER),
    budgets=(
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: 16 if case.n > 1 else 0,
            optimum=lambda case: DOUBLE * max(cost.all_reduce(1, case.n, rank) for rank in range(case.n)),
            why="each rank knows the squares of its own shards: their sum is one number",
        ),
        Budget(
            Measure.STEPS,
            target=lambda case: 2 * (case.n - 1),
            why="add up the squares of all shards first, then sum over ranks once",
        ),
    ),
    hints=(
        "The norm is the root of a sum of squares. Which part of that sum can a rank compute by itself?",
        "Of a shard of s elements, rank r holds elements r·s to (r+1)·s of the padded gradient. How many of them come "
        "before `length`? None, perhaps.",
        "Add `shard[:own].double().square().sum()` over all shards to a scalar in float64, `dist.all_reduce` it, take "
        "the root. Where it is more than `limit`, scale by limit / norm.",
    ),
    wrong=(
        Wrong(
            "each clips by the norm of its own shards",
            diagnosis=r"expected -?[\d.]+, got -?[\d.]+",
            edits=(("    dist.all_reduce(square, group=group)\n", ""),),
        ),
        Wrong(
            "the sum of all ranks' norms",
            diagnosis=r"result: expected -?[\d.]+, got -?[\d.]+",
            edits=(
                (
                    "    dist.all_reduce(square, group=group)\n    norm = square.sqrt()\n",
                    "    norm = square.sqrt()\n    dist.all_reduce(norm, group=group)\n",
                ),
            ),
        ),
        Wrong(
            "padding counts",
            diagnosis=r"all_reduce\(sum\)\n *the tensor holds Inf[\s\S]*wrong with lengths=.*\(7, 5, 1\)",
            edits=(("shard[:own]", "shard"),),
        ),
        Wrong(
            "padding is multiplied by zero",
            diagnosis=r"all_reduce\(sum\)\n *the tensor holds NaN[\s\S]*wrong with lengths=.*\(7, 5, 1\)",
            edits=(("shard[:own]", "shard * (torch.arange(shard.numel()) < own)"),),
        ),
        Wrong(
            "padding is subtracted",
            diagnosis=r"all_reduce\(sum\)\n *the tensor holds NaN[\s\S]*wrong with lengths=.*\(7, 5, 1\)",
            edits=((OWN_SQUARE, "shard.square().sum() - shard[own:].square().sum()"),),
        ),
        Wrong(
            "every rank's shard is taken for the last",
            diagnosis=r"result: expected -?[\d.]+, got -?[\d.]+",
            edits=(("length - rank * shard.numel()", "length - (dist.get_world_size(group) - 1) * shard.numel()"),),
        ),
        Wrong(
            "a rank of nothing but padding counts from the end",
            diagnosis=r"result: expected -?[\d.]+, got -?[\d.]+",
            edits=(("max(0, length - rank * shard.numel())", "length - rank * shard.numel()"),),
        ),
        Wrong(
            "short gradients are made longer",
            diagnosis=r"right with limit=1, wrong with limit=100|expected -?[\d.]+, got",
            edits=(("    if norm > limit:\n", "    if True:\n"),),
        ),
        Wrong(
            "the norm is averaged over ranks",
            diagnosis=r"result: expected -?[\d.]+, got -?[\d.]+",
            edits=(("    norm = square.sqrt()", "    norm = (square / dist.get_world_size(group)).sqrt()"),),
        ),
        Wrong(
            "an all-reduce for every gradient",
            diagnosis=r"right, but (rank \d sent|it takes) [\d,]+ .* must do.*\n",
            body="""
                rank, total = dist.get_rank(group), 0.0
                for shard, length in zip(shards, lengths):
                    square = shard[: max(0, length - rank * len(shard))].double().square().sum()
                    dist.all_reduce(square, group=group)
                    total = total + square
                norm = total.sqrt()
                for shard in shards:
                    shard.mul_((limit / norm).clamp(max=1.0))
                return norm
                """,
        ),
        Wrong(
            "gathers all gradients to measure them",
            diagnosis=r"right, but rank \d sent [\d,]+ B where 16 must do.*\n.*one number",
            body="""
                n, square = dist.get_world_size(group), torch.zeros((), dtype=torch.float64)
                for shard, length in zip(shards, lengths):
                    whole = shard.new_empty(n * len(shard))
                    dist.all_gather_single(whole, shard, group=group)
                    square += whole[:length].square().sum()
                norm = square.sqrt()
                for shard in shards:
                    shard.mul_((limit / norm).clamp(max=1.0))
                return norm
                """,
        ),
    ),
)
