"""decentralized.a_run_that_climbs: a loss that rises, round after round; to be mended."""

import torch.distributed as dist

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, cases, on_any_ranks
from reference.decentralized.answers.outer import a_run_that_climbs
from reference.decentralized.parabola import inner_step

from .common import parabola, rounds_in_one_process, with_sgd_outside


def as_it_should_be(case, inputs):
    """With torch's own outer optimizer, in one process."""
    meet = with_sgd_outside(inputs[0]["weight"], 0.7, 0.0)
    weight = rounds_in_one_process(inputs, case.rounds, case.h, meet)
    return [{"weight": weight} for _ in inputs]


PUZZLE = Puzzle(
    name="decentralized.a_run_that_climbs",
    title="A run that climbs",
    statement="""
        Two islands, H = 4, plain SGD inside and outside. Within a round the loss falls; after each meeting it is higher
        than before. On one island alone it climbs as well, so it is not the network. Two mistakes are in these lines,
        and both were in published engines: one goes uphill, and one lets the anchor move with what trains. Mend both.

        `inner_step(weight, curvature, target, rate)` is given, and right: an island's own step, in place.

        Args:
            weight: [N], equal on all ranks. Updated in place; at the end it is the last anchor.
            curvature: [N], of this island's parabola.
            target: [N], of this island's parabola.
            rate: of the inner steps.
            rounds: how many.
            inner_steps: H, the steps of a round.
            outer_rate: of the outer SGD.
            group: n ranks, an island each. Any n.

        Budget: one all-reduce of N numbers a round.
        """,
    function=a_run_that_climbs,
    body="""
        anchor = weight.clone()
        for _ in range(rounds):
            for _ in range(inner_steps):
                inner_step(weight, curvature, target, rate)
            gradient = weight - anchor
            dist.all_reduce(gradient, group=group)
            gradient /= dist.get_world_size(group)
            anchor -= outer_rate * gradient
            weight.set_(anchor)
        """,
    cases=cases(worlds=(2, 1, 3, 4), rounds=(3,), h=(4,), length=(5,))
    + cases(worlds=(5,), rounds=(2,), h=(1,), length=(3,))
    + cases(worlds=(4,), members=(0, 2, 3), rounds=(3,), h=(2,), length=(4,)),
    drawn=on_any_ranks(rounds=range(2, 5), h=range(1, 5), length=range(2, 9)),
    inputs=lambda case, rank: parabola(case, rank) | {"rounds": case.rounds, "inner_steps": case.h, "outer_rate": 0.7},
    oracle=as_it_should_be,
    tolerance=1e-9,
    calls=(dist.all_reduce,),
    given=(inner_step,),
    budgets=(
        Budget(
            Measure.CALLS,
            target=lambda case: case.rounds,
            why="both mistakes are local: no further word between islands is needed",
        ),
    ),
    hints=(
        "SGD subtracts its gradient. After `anchor -= rate * gradient`, with a rate of 1 and one island, where should "
        "the anchor be?",
        "In the second round: does `weight - anchor` have anything in it? What does `set_` do with the memory of a "
        "tensor?",
        "`gradient = anchor - weight`, and `weight.copy_(anchor)`, which copies values and not memory.",
    ),
    wrong=(
        Wrong("still uphill", diagnosis=r"weight\[\d\]: expected", edits=(("anchor - weight", "weight - anchor"),)),
        Wrong(
            "still one memory",
            diagnosis=r"weight\[\d\]: expected",
            edits=(("weight.copy_(anchor)", "weight.set_(anchor)"),),
        ),
        Wrong(
            "one memory from the beginning",
            diagnosis=r"weight\[\d\]: expected",
            edits=(("anchor = weight.clone()", "anchor = weight"),),
        ),
        Wrong(
            "two wrongs: uphill, and then added",
            diagnosis=r"weight\[\d\]: expected",
            edits=(("anchor -= outer_rate", "anchor += outer_rate"),),
        ),
        Wrong(
            "the outer step is left out",
            diagnosis=r"weight\[\d\]: expected",
            edits=(("anchor -= outer_rate * gradient", "anchor -= gradient"),),
        ),
        Wrong(
            "an average of the weights as well",
            diagnosis=r"right, but a rank makes \d+ calls where \d must do.*\n.*mistakes are local",
            edits=(
                (
                    "        weight.copy_(anchor)",
                    "        dist.all_reduce(anchor, group=group)\n"
                    "        anchor /= dist.get_world_size(group)\n"
                    "        weight.copy_(anchor)",
                ),
            ),
        ),
    ),
)
