"""expert_parallel.keep_the_routing: a layer to mend, which chooses anew when it is computed again."""

import torch
import torch.distributed as dist

from puzzles.grading.drives.expert_routing import in_two_micro_batches, last_bits, of_experts
from puzzles.grading.pool import BACKWARD
from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, case, cases, drawn
from reference.expert_parallel.answers.kept import recomputed_layer
from reference.memory.recompute import recomputed

DOUBLE, WIDTH, MICRO_BATCHES = 8, 3, 2


def width_of(case):
    """D."""
    return case.get("width", WIDTH)


def tokens_of(case, rank):
    """How many a rank has in a micro-batch; with `idle`, the first rank has none."""
    return 0 if case.get("idle", False) and rank == 0 else case.tokens + rank % 2


def a_rank(case, rank):
    """Tokens, a router, and this rank's experts. Twins are pairs of experts with equal scores, but for last bits."""
    experts, tokens, width = case.n * case.here, tokens_of(case, rank), width_of(case)
    router = case.normal(0, experts, width, name="router") / width**0.5
    for twin in range(1, 2 * case.twins, 2):
        router[twin] = router[twin - 1]
    return {
        "x": case.normal(rank, MICRO_BATCHES, tokens, width),
        "router": router,
        "experts": case.normal(rank, case.here, width, width, name="experts") / width**0.5,
        "upstream": case.normal(rank, MICRO_BATCHES, tokens, width, name="upstream"),
        "k": case.k,
        "load": torch.arange(experts),
    }


def one_process_that_forgets_nothing(case, inputs):
    """All ranks' tokens and all experts, by what is chosen in forward."""
    experts = torch.cat([each["experts"] for each in inputs]).requires_grad_()
    found, total = [], 0
    for each in inputs:
        x, router = each["x"].clone().requires_grad_(), each["router"].clone().requires_grad_()
        scores = (x @ router.T).sigmoid() + last_bits(len(experts))
        chosen = scores.topk(case.k).indices
        weights = scores.gather(-1, chosen)
        rows = x.flatten(0, 1)
        made = torch.stack([of_experts(rows, expert[None], [len(rows)]) for expert in experts], 1)
        places = chosen.flatten(0, 1)[..., None].expand(-1, -1, width_of(case))
        of_choices = made.gather(1, places).view(*chosen.shape, width_of(case))
        out = (of_choices * weights[..., None]).sum(-2)
        total = total + (out * each["upstream"]).sum()
        load = each["load"] + torch.bincount(chosen.flatten(), minlength=len(experts))
        found.append({"returns": out.detach(), "load": load, "x": x, "router": router})
    total.backward()
    own = experts.grad.chunk(case.n)
    return [
        {
            "load": each["load"],
            "returns": each["returns"],
            "router.grad": each["router"].grad,
            "x.grad": each["x"].grad,
            "experts.grad": own[rank],
        }
        for rank, each in enumerate(found)
    ]


def output_and_choices(case):
    """Bytes of a micro-batch that stay until backward."""
    most = max(tokens_of(case, rank) for rank in range(case.n))
    return DOUBLE * most * (width_of(case) + case.k)


BROKEN = """
    def run(x):
        scores = scores_of(x)
        chosen = scores.topk(k).indices
        load.add_(torch.bincount(chosen.flatten(), minlength=len(load)))
        weights = scores.gather(1, chosen)
        return compute(x, chosen, weights)

    return recomputed(run, x)
    """
LOAD = r"load\[\d\]: expected \d+, got \d+"
KEPT = r"right, but when it has returned it still holds [\d,]+ B where [\d,]+ must do.*\n.*k whole numbers"
GRADIENT = r"(x|router|experts)\.grad\[\d(, \d)+\]: expected -?[\d.e-]+, got -?[\d.e-]+"

PUZZLE = Puzzle(
    name="expert_parallel.keep_the_routing",
    title="The way it went",
    statement="""
        A layer with experts keeps nothing but its input for backward, and is computed again then. This is what is known
        of it:

            a. outputs are those of one process, on any number of ranks
            b. without recomputation, so are all gradients
            c. with it, most gradients are right; those of tokens that two experts suit nearly equally are wrong
            d. the next step's bias, which is set by how busy experts were, moves as if there were twice the tokens

        A kernel may add up in another order the next time it runs, and sums differ in their last bits. The router's do
        here, from call to call. Mend the layer: it must go the same way the second time, and count once. Micro-batches
        may go forward one after another before the first of them goes backward. The layer must still be computed again,
        and the router must learn.

        Given is `recomputed(function, *inputs)`: `function(*inputs)`, of which nothing but the inputs is kept; in
        backward it runs again. It is right.

        Args:
            x: [T, D], of this rank; T may be 0.
            scores_of: the router: `scores_of(x)` is [T, E], above 0, with parameters in it.
            compute: what experts make: `compute(x, chosen, weights)`, of [T, D], experts [T, k] and weights [T, k], is
                [T, D]. Tokens travel to other ranks in it: each rank calls it as often as all others.
            k: experts of a token: those with the best scores, as they come out the first time.
            load: [E] of int64, how many choices each expert got on this rank so far. To be added to, in place.
            group: n ranks. Any n.

        Returns: [T, D], what the experts make, weighed by their scores.

        Budget: from forward to backward, nothing of the layer's own but its output and k numbers for each token.
        """,
    function=recomputed_layer,
    body=BROKEN,
    cases=cases(worlds=(2,), tokens=(3,), here=(3,), k=(1,), twins=(3,))
    + cases(worlds=(3,), tokens=(2,), here=(2,), k=(3,), twins=(0, 2))
    + cases(worlds=(1,), tokens=(4,), here=(4,), k=(1,), twins=(2,))
    + cases(worlds=(1,), tokens=(4,), here=(4,), k=(2,), twins=(1,))
    + cases(worlds=(4,), tokens=(2,), here=(1,), k=(1,), twins=(2,))
    + cases(worlds=(3,), tokens=(2,), here=(2,), k=(1,), twins=(3,), idle=(True,))
    + cases(worlds=(4,), members=(0, 2, 3), tokens=(2,), here=(2,), k=(1,), twins=(3,)),
    drawn=(
        drawn(
            worlds=(2, 3, 4, 5),
            tokens=(1, 2, 4),
            here=(2, 3),
            k=(1, 3),
            twins=lambda so_far: range(1, so_far.n * so_far.here // 2 + 1),
        ),
    ),
    large=case(1, tokens=4300, here=4, k=3, twins=2, width=64),
    inputs=a_rank,
    oracle=one_process_that_forgets_nothing,
    drive=in_two_micro_batches,
    preload=BACKWARD,
    tolerance=1e-8,
    calls=(dist.all_to_all_single,),
    given=(recomputed,),
    budgets=(
        Budget(
            Measure.KEPT_BYTES,
            target=output_and_choices,
            why="the experts of a token are all that must be remembered: k whole numbers",
        ),
    ),
    hints=(
        "What does `run` do that has to be the same the second time, and is not? What does it do that must not be done "
        "a second time at all?",
        "The first time `run` is called, it decides. The second time, it needs the decision: `chosen`, and no more. "
        "Scores may be computed again, so that the router gets its gradient: their last bits do not matter there.",
        "Begin with `decided = []` outside of `run`. In there: `if not decided:`, append `scores.topk(k).indices` and "
        "count; then use `decided[0]` in the place of `chosen`.",
    ),
    wrong=(
        Wrong(
            "it chooses anew, and counts again, as it did",
            diagnosis=LOAD,
            body=BROKEN + "    # and most gradients are right\n",
        ),
        Wrong(
            "it counts once, and chooses anew",
            diagnosis=GRADIENT,
            body="""
                counted = []

                def run(x):
                    scores = scores_of(x)
                    chosen = scores.topk(k).indices
                    if not counted:
                        counted.append(True)
                        load.add_(torch.bincount(chosen.flatten(), minlength=len(load)))
                    weights = scores.gather(1, chosen)
                    return compute(x, chosen, weights)

                return recomputed(run, x)
                """,
        ),
        Wrong(
            "it chooses once, and counts again",
            diagnosis=LOAD,
            edits=(
                (
                    "            load.add_(torch.bincount(decided[0].flatten(), minlength=len(load)))\n",
                    "        load.add_(torch.bincount(decided[0].flatten(), minlength=len(load)))\n",
                ),
            ),
        ),
        Wrong(
            "the second run counts, which chose others",
            diagnosis=LOAD,
            body="""
                times = []

                def run(x):
                    scores = scores_of(x)
                    chosen = scores.topk(k).indices
                    times.append(chosen)
                    if len(times) == 2:
                        load.add_(torch.bincount(chosen.flatten(), minlength=len(load)))
                    weights = scores.gather(1, times[0])
                    return compute(x, times[0], weights)

                return recomputed(run, x)
                """,
        ),
        Wrong(
            "the weights are kept, too: the router learns nothing",
            diagnosis=r"router\.grad: expected a float64 tensor of shape \(\d, 3\), got None",
            body="""
                with torch.no_grad():
                    scores = scores_of(x)
                    chosen = scores.topk(k).indices
                    weights = scores.gather(1, chosen)
                load.add_(torch.bincount(chosen.flatten(), minlength=len(load)))

                def run(x):
                    return compute(x, chosen, weights)

                return recomputed(run, x)
                """,
        ),
        Wrong(
            "one place for the choices of all micro-batches",
            diagnosis=GRADIENT + "|" + LOAD + "|error",
            edits=(
                ("    decided: list[Tensor] = []\n", "    decided = _DECIDED\n    decided.clear()\n"),
                ("def recomputed_layer(", "_DECIDED = []\n\n\ndef recomputed_layer("),
            ),
        ),
        Wrong(
            "nothing is computed again",
            diagnosis=KEPT,
            edits=(("return recomputed(run, x)", "return run(x)"),),
        ),
        Wrong(
            "the router's scores stay, with their history",
            diagnosis=KEPT,
            body="""
                scores = scores_of(x)
                chosen = scores.detach().topk(k).indices
                load.add_(torch.bincount(chosen.flatten(), minlength=len(load)))
                weights = scores.gather(1, chosen)
                return recomputed(compute, x, chosen, weights)
                """,
        ),
    ),
)
