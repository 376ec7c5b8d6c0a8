"""planning.best_plan: many plans in columns, and no loop over them."""

import itertools
import math

import torch

from puzzles.grading.puzzle import Budget, Claim, Measure, Puzzle, Scale, Wrong, cases, drawn
from reference.planning.answers.columns import best_plan

ROUNDING = 1e-9  # relative: plans whose steps differ by less are equally good
COLUMNS = ("tp", "pp", "micro_batch", "recompute")


def rows_of(case):
    """The plans, in an order that says nothing."""
    choices = itertools.product(case.widths, case.depths, case.windows, (False, True))
    return sorted(choices, key=lambda row: hash((case.seed, *row)))


SIZES = (
    "ranks", "node", "batch", "layers", "seconds", "start", "stream", "state", "kept", "inputs", "memory", "intra",
    "inter",
)  # fmt: skip


def columns_and_sizes(case, rank):
    """The arguments: four columns, as many times over as the case wants, and what all plans share."""
    kinds = (torch.int64, torch.int64, torch.int64, torch.bool)
    columns = zip(COLUMNS, zip(*rows_of(case), strict=True), kinds, strict=True)
    return {name: torch.tensor(each, dtype=kind).repeat(case.copies) for name, each, kind in columns} | {
        name: getattr(case, name) for name in SIZES
    }


def refused_or_seconds(case, t, p, b, again):
    """Why a plan is none, or how long its step takes, added up piece by piece."""
    if case.ranks % (t * p):
        return f"{t} x {p} ranks do not divide {case.ranks}"
    d = case.ranks // (t * p)
    if case.layers % p:
        return f"{p} stages do not divide {case.layers} layers"
    if case.batch % (d * b):
        return f"{d} replicas with micro-batches of {b} do not divide {case.batch} windows"
    m, mine = case.batch // (d * b), 1 / t / p
    of_window = case.inputs if again else case.kept
    held = case.state * mine + sum(b * of_window * mine for _flying in range(min(p, m)))
    held += b * case.kept / case.layers / t if again else 0
    if held > case.memory:
        return f"it keeps {held / 1e9:.4g} GB on a rank of {case.memory / 1e9:.4g}"
    wire = {True: case.intra, False: case.inter}
    computing = case.seconds * mine * (4 if again else 3) / 3
    ring = 2 * case.stream / p * (1 - 1 / t) / wire[t <= case.node]
    one = b * (computing + (ring + ring / 2 if again else ring)) + case.start
    return one * m + one * (p - 1) + 2 * (1 - 1 / d) * case.state / 9 * mine / wire[t * d <= case.node]


def as_short_as_can_be(case, inputs, outputs, trace):
    """The row is a plan that fits, and none is shorter; None where there is none."""
    rows, row = rows_of(case), outputs[0]["returns"]
    tried = {each: refused_or_seconds(case, *each) for each in rows}
    best = min((each for each in tried.values() if not isinstance(each, str)), default=math.inf)
    if row is None:
        return [Claim(best == math.inf, f"None, and there is a plan that takes {best:.4g} s")]
    if type(row) is not int or not 0 <= row < len(rows) * case.copies:
        return [Claim(False, f"it must return the index of one of {len(rows) * case.copies} rows, an int, or None")]
    plan = rows[row % len(rows)]
    said = f"row {row}, ({', '.join(f'{name} {each}' for name, each in zip(COLUMNS, plan, strict=True))})"
    found = tried[plan]
    if isinstance(found, str):
        return [Claim(False, f"{said}, is no plan: {found}")]
    return [Claim(found <= best * (1 + ROUNDING), f"{said}, takes {found:.4g} s, and {best:.4g} s is possible")]


CHOICES = {"widths": ((1, 2, 4, 8, 16),), "depths": ((1, 2, 3, 4, 8, 16),), "windows": ((1, 2, 4),)}
# A window of 2048 tokens on an A100 with NVLink 3 and InfiniBand HDR: GPTs of 5.9, 18.4 and 162 billion parameters.
A100 = {"memory": (80e9,), "intra": (300e9,), "inter": (25e9,), "node": (8,), "copies": (1,), **CHOICES}
SMALL = {
    "layers": (32,),
    "seconds": (0.48,),
    "start": (0.02,),
    "stream": (2.0e9,),
    "state": (106e9,),
    "kept": (6e9,),
    "inputs": (0.5e9,),
}
MIDDLE = {
    "layers": (40,),
    "seconds": (1.5,),
    "start": (0.03,),
    "stream": (4.0e9,),
    "state": (331e9,),
    "kept": (14e9,),
    "inputs": (1e9,),
}
LARGE = {
    "layers": (64,),
    "seconds": (13.2,),
    "start": (0.05,),
    "stream": (10.7e9,),
    "state": (2.9e12,),
    "kept": (45e9,),
    "inputs": (3e9,),
}
EVEN = {
    "layers": (4,),
    "seconds": (0.0,),
    "start": (0.0,),
    "stream": (0.0,),
    "state": (0.0,),
    "kept": (0.0,),
    "inputs": (0.0,),
}

PUZZLE = Puzzle(
    name="planning.best_plan",
    title="The best of many plans",
    statement="""
        Each row of four columns is a plan: ranks that share matrices (t), stages (p), windows of a micro-batch (b), and
        whether layers are made again in backward. Which one has the shortest step? There may be a million of them, so
        compute with columns, as with numbers: t * p is a column, too, and `torch.where` chooses between two.

        d = n / (t p) ranks are replicas, and a rank computes m = B / (d b) micro-batches. A row is no plan if t p does
        not divide n, if p does not divide the layers, or if d b does not divide B.

        time      a window takes a rank seconds / (t p), four thirds of that if layers are made again. Along the tensor
                  axis stream / p bytes are all-reduced for it, half as much again if layers are made again. A
                  micro-batch takes b times both, and `start` seconds besides; a pipeline takes m + p - 1 times that.
                  Then the gradients, state / (9 t p) bytes, are all-reduced among d replicas.
        rings     an all-reduce of S bytes among k ranks takes 2 (k-1)/k · S / bandwidth. t ranks are within a node if t
                  <= node, and all of t d are, if t d <= node; otherwise it takes the slow links.
        memory    state / (t p); for each window of min(p, m) micro-batches kept / (t p), or inputs / (t p) if layers
                  are made again, and then b kept / (layers · t) besides, for the one that is.

        Args:
            tp, pp, micro_batch: [N], int64: t, p, b of each plan.
            recompute: [N], bool.
            ranks: n.
            node: ranks in a node.
            batch: B, windows of a step.
            layers: of the model.
            seconds: that one rank alone would compute for a window, forward and backward.
            start: seconds of a micro-batch, however small it is.
            stream: bytes that are all-reduced along the tensor axis for a window, all layers together.
            state: bytes of training state of the whole model.
            kept, inputs: bytes of a window's activations in all layers, and of the layers' inputs.
            memory: bytes of a rank.
            intra, inter: bytes per second within a node and between nodes.

        Returns: the row's index, an int; None if no row is a plan that fits. Where several are equally good, any of
        them will do.

        Budget: as many lines for a million plans as for one.
        """,
    function=best_plan,
    cases=cases(worlds=(1,), ranks=(64,), batch=(512, 64), **SMALL, **A100)
    + cases(worlds=(1,), ranks=(64,), batch=(512, 32), **MIDDLE, **A100)
    + cases(worlds=(1,), ranks=(256, 512), batch=(1024,), **LARGE, **A100)
    + cases(worlds=(1,), ranks=(48,), batch=(96,), **MIDDLE, **A100 | {"widths": ((1, 2),), "depths": ((2, 3, 4, 8),)})
    + cases(worlds=(1,), ranks=(64,), batch=(96,), **SMALL, **A100 | {"memory": (200e9,)})
    + cases(worlds=(1,), ranks=(32,), batch=(128,), **MIDDLE, **A100 | {"inter": (2e9,)})
    + cases(worlds=(1,), ranks=(8,), batch=(64,), **MIDDLE, **A100 | {"memory": (80e9, 50e9, 30e9)})
    + cases(worlds=(1,), ranks=(8, 16), batch=(64,), **SMALL | {"kept": (40e9,)}, **A100 | {"memory": (16e9,)})
    + cases(worlds=(1,), ranks=(1,), batch=(4,), **SMALL, **A100 | {"memory": (200e9,)})
    + cases(worlds=(1,), ranks=(8,), batch=(8,), **EVEN, **A100),
    drawn=(
        drawn(
            worlds=(1,),
            ranks=(16, 48, 64, 128, 192),
            batch=(96, 192, 768),
            layers=(24, 48, 64),
            seconds=(0.3, 1.7, 6.0),
            start=(0.0, 0.01, 0.1),
            stream=(1e9, 5e9, 20e9),
            state=(100e9, 300e9, 800e9),
            kept=(5e9, 20e9, 60e9),
            inputs=(0.3e9, 2e9),
            memory=(40e9, 80e9),
            intra=(150e9, 300e9),
            inter=(3e9, 12.5e9, 50e9),
            node=(4, 8),
            copies=(1,),
            **CHOICES,
        ),
    ),
    scale=Scale(
        cases(worlds=(1,), ranks=(64,), batch=(512,), **MIDDLE, **A100 | {"copies": (1000,)}),
        "the number of plans, but in torch",
    ),
    inputs=columns_and_sizes,
    judge=as_short_as_can_be,
    budgets=(
        Budget(
            Measure.LINES,
            target=lambda case: 60,
            optimum=lambda case: 15,
            why="arithmetic on a column is one line, however many rows it has",
        ),
    ),
    hints=(
        "Write it for one plan, with numbers. Which lines would not work if each number were a column? `if` is one: "
        "`torch.where(condition, this, that)` has both.",
        "dp = ranks // (tp * pp) is 0 where a row asks for more ranks than there are, and m = batch // (dp * "
        "micro_batch) may be 0, too: `torch.clamp(..., min=1)` keeps divisions harmless, for such rows are no plans.",
        "possible = (ranks % (tp * pp) == 0) & (layers % pp == 0) & (batch % (dp * micro_batch) == 0) & (held <= "
        "memory); None if not possible.any(); else int(torch.where(possible, step, torch.inf).argmin()).",
    ),
    wrong=(
        Wrong(
            "no plan is refused",
            diagnosis=r"is no plan: ",
            edits=(("torch.where(possible, step, torch.inf)", "step"),),
        ),
        Wrong(
            "memory does not matter",
            diagnosis=r"is no plan: it keeps [\d.]+ GB on a rank of 80",
            edits=((" & (held <= memory)", ""),),
        ),
        Wrong(
            "stages that do not divide the layers",
            diagnosis=r"is no plan: \d+ stages do not divide \d+ layers",
            edits=((" & (layers % pp == 0)", ""),),
        ),
        Wrong(
            "micro-batches that do not divide the batch",
            diagnosis=r"is no plan: \d+ replicas with micro-batches of \d do not divide \d+ windows",
            edits=((" & (batch % (dp * micro_batch) == 0)", ""),),
        ),
        Wrong(
            "the bubble is forgotten",
            diagnosis=r"takes [\d.]+ s, and [\d.]+ s is possible",
            edits=(("(m + pp - 1) * (micro_batch", "m * (micro_batch"),),
        ),
        Wrong(
            "micro-batches start at no cost",
            diagnosis=r"takes [\d.]+ s, and [\d.]+ s is possible",
            edits=((" + start)", ")"),),
        ),
        Wrong(
            "a micro-batch takes what a window takes",
            diagnosis=r"takes [\d.]+ s, and [\d.]+ s is possible",
            edits=(("(micro_batch * (computing + exchanged) + start)", "(computing + exchanged + start)"),),
        ),
        Wrong(
            "one micro-batch in flight",
            diagnosis=r"is no plan: it keeps [\d.]+ GB on a rank of \d+",
            edits=(("torch.minimum(pp, m) * micro_batch", "micro_batch"),),
        ),
        Wrong(
            "micro-batches in flight, and not their windows",
            diagnosis=r"is no plan: it keeps [\d.]+ GB on a rank of \d+",
            edits=(("torch.minimum(pp, m) * micro_batch", "torch.minimum(pp, m)"),),
        ),
        Wrong(
            "layers that are made again keep all",
            diagnosis=r"takes [\d.]+ s, and [\d.]+ s is possible|None, and there is a plan",
            edits=(("torch.where(recompute, inputs, kept)", "kept"),),
        ),
        Wrong(
            "to make layers again is free",
            diagnosis=r"takes [\d.]+ s, and [\d.]+ s is possible",
            edits=(("torch.where(recompute, 4 / 3, 1.0)", "1.0"), ("torch.where(recompute, 1.5, 1.0)", "1.0")),
        ),
        Wrong(
            "links are all alike",
            diagnosis=r"takes [\d.]+ s, and [\d.]+ s is possible",
            edits=(("torch.where(reach <= node, intra, inter)", "intra"),),
        ),
        Wrong(
            "replicas are free",
            diagnosis=r"takes [\d.]+ s, and [\d.]+ s is possible",
            edits=((" + ring(dp, tp * dp) * state / 9 / shared", ""),),
        ),
        Wrong(
            "the longest step",
            diagnosis=r"takes [\d.]+ s, and [\d.]+ s is possible",
            edits=(("torch.where(possible, step, torch.inf).argmin()", "torch.where(possible, step, -1.0).argmax()"),),
        ),
        Wrong(
            "among the possible rows, and counted there",
            diagnosis=r"is no plan: |takes [\d.]+ s, and [\d.]+ s is possible",
            edits=(("torch.where(possible, step, torch.inf).argmin()", "step[possible].argmin()"),),
        ),
        Wrong(
            "there is always a plan",
            diagnosis=r"is no plan: ",
            edits=(("    if not possible.any():\n        return None\n", ""),),
        ),
        Wrong(
            "plan after plan",
            diagnosis=r"right, but it runs [\d,]+ lines where 60 must do.*\n.*is one line, however many",
            body="""
                best, found = float("inf"), None
                plans = zip(tp.tolist(), pp.tolist(), micro_batch.tolist(), recompute.tolist())
                for row, (t, p, b, again) in enumerate(plans):
                    if ranks % (t * p) or layers % p or batch % (ranks // (t * p) * b):
                        continue
                    d = ranks // (t * p)
                    m = batch // (d * b)
                    held = (state + min(p, m) * b * (inputs if again else kept)) / (t * p)
                    held += again * b * kept / layers / t
                    one = seconds / (t * p) * (4 / 3 if again else 1)
                    one += 2 * (t - 1) / t * stream / p * (1.5 if again else 1) / (intra if t <= node else inter)
                    step = (m + p - 1) * (b * one + start)
                    step += 2 * (d - 1) / d * state / 9 / (t * p) / (intra if t * d <= node else inter)
                    if held <= memory and step < best:
                        best, found = step, row
                return found
                """,
        ),
    ),
)
