"""zero_bubble.v_placement: down all ranks, and back up."""

from functools import partial

import torch

from puzzles.grading.drives.zero_bubble import through_its_stages
from puzzles.grading.overlap import NETWORK, notes_of
from puzzles.grading.puzzle import POINT_TO_POINT, Budget, Claim, Measure, Puzzle, Wrong, cases, on_any_ranks
from reference.zero_bubble.answers.v import through_a_v

from .common import DOUBLE

NAMES = ("gradient of the first weight", "gradient of the second weight")
WIDTH = 4


def data_on_rank_0(case, rank):
    """x and target where they are; weights of all stages and the time of a product for the drive."""
    data = [case.normal(0, case.samples, WIDTH, name=name) for name in ("x", "target")]
    x, target = data if rank == 0 else [torch.full_like(each, torch.nan) for each in data]
    weights = [case.normal(0, WIDTH, WIDTH, name=f"weight {stage}") for stage in range(2 * case.n)]
    return {"x": x, "target": target, "weights": weights, "seconds": case.microseconds / 1e6}


def in_one_process(case, inputs):
    """All stages one after the other, by autograd."""
    given = inputs[0]
    weights = [weight.requires_grad_() for weight in given["weights"]]
    y = given["x"]
    for weight in weights:
        y = y @ weight.T
    (0.5 * (y - given["target"]) ** 2).sum().backward()
    pairs = [(rank, 2 * case.n - 1 - rank) for rank in range(case.n)]
    return [
        {"stages": list(pair), "returns": "2 tensors"}
        | {name: weights[stage].grad for name, stage in zip(NAMES, pair, strict=True)}
        for pair in pairs
    ]


def message(case):
    """Bytes of an activation, or of a gradient of one."""
    return DOUBLE * case.samples * WIDTH


def bytes_sent(case):
    """Each link between neighbours carries an activation and a gradient each way; a rank in the middle has two."""
    return 2 * min(case.n - 1, 2) * message(case)


def without_waiting_for_weights(case):
    """Microseconds: there and back, twice; rank 0 does a W at the end, and the rank that turns two."""
    n, product = case.n, case.microseconds
    one = 1e6 * NETWORK.time(0, 1, message(case)) if n > 1 else 0.0
    at_the_turn = 3 * n * product + 3 * (n - 1) * one + (2 if n == 1 else 3) * product
    return at_the_turn if n == 1 else max(at_the_turn, 4 * n * product + 4 * (n - 1) * one)


def by_multiply(case, inputs, outputs, trace):
    """Three products for each of a rank's two stages, and one less on rank 0: its data waits for no gradient."""
    claims = []
    for rank, output in zip(case.global_ranks, outputs, strict=True):
        done, asked = len(notes_of(output)), 6 - (rank == case.global_ranks[0])
        said = f"`multiply` did {done} of {asked} products on rank {rank}: use it for all of them"
        claims.append(Claim(done >= asked, said))
    return claims


PUZZLE = Puzzle(
    name="zero_bubble.v_placement",
    title="A model in the shape of a V",
    statement="""
        2n stages on n ranks, two on each. Where stages go around the ranks in a loop, the last rank has the last one,
        and rank 0 waits for all others before its first backward. And rank 0, whose stages come first each time, holds
        its activations for longest. Fold the model instead: a micro-batch goes down all ranks, and comes back up the
        same way. The rank where it turns hands it over to itself, without a message. Rank 0 has the first stage and
        the last: there it comes in, there the loss is.

        Take one micro-batch forward and backward. Stage s computes x Aᵀ with a weight A = load(s). The loss is half
        the sum of (y - target)², so the gradient of y is y - target. Backward of a stage, with u the gradient of what
        it gives, is two products:

            I    gradient of x = u A        the stage before waits for it, but no rank for that of the data
            W    gradient of A = uᵀ x       no rank waits for it

        So do W while the network carries I, or other ranks compute.

        Args:
            x, target: [B, D], on rank 0; on all other ranks NaN, in the same shape.
            load: `load(s)` is the weight of stage s, [D, D]. Load two.
            multiply: `multiply(a, b)` is a @ b. It takes its time: use it for all products.
            group: n ranks. Any n.

        Returns: two tensors: the gradients of this rank's weights, that of the lower stage number first.

        Budget: an activation and a gradient each way between neighbours, and no other message. On a modelled link, no
        time in which a rank waits for W.
        """,
    function=through_a_v,
    cases=cases(worlds=(4, 3), samples=(2,), microseconds=(40, 5))
    + cases(worlds=(2, 1), samples=(3,), microseconds=(20,))
    + cases(worlds=(8,), samples=(1,), microseconds=(10,))
    + cases(worlds=(4,), members=(0, 2, 3), samples=(2,), microseconds=(20,)),
    drawn=on_any_ranks(samples=(1, 2, 3), microseconds=(10, 20, 40)),
    inputs=data_on_rank_0,
    oracle=in_one_process,
    judge=by_multiply,
    drive=partial(through_its_stages, NAMES),
    tolerance=1e-10,
    calls=POINT_TO_POINT,
    budgets=(
        Budget(
            Measure.BYTES_SENT,
            target=bytes_sent,
            why="neighbours send each other one activation and one gradient; at the turn nothing is sent",
        ),
        Budget(
            Measure.MICROSECONDS,
            target=lambda case: without_waiting_for_weights(case) + 0.1,
            optimum=without_waiting_for_weights,
            why="send I on as soon as it is there, with isend, and do W while it travels; rank 0 needs no I of stage 0",
        ),
    ),
    hints=(
        "Which stage comes n-th, counted from 0, and on which rank? Which is the last one, and where?",
        "Rank r has the stages r and 2n - 1 - r. Forward: receive from above, or begin; multiply; send down and "
        "receive from below, or turn; multiply; send up, or take the loss.",
        "Backward goes the same way, for y of the last stage is on rank 0: down through the second stages, up through "
        "the first ones. When an I is in flight with `dist.isend`, do the W of the same stage; then receive. The rank "
        "that turns has no rank to wait for: it sends both its I first.",
    ),
    wrong=(
        Wrong(
            "stages in a loop",
            diagnosis=r"rank 0, stages\[1\]: expected 7, got 4",
            body="""
                rank, n = dist.get_rank(group), dist.get_world_size(group)
                first, second = load(rank), load(n + rank)
                inputs = []
                for weight, begins in ((first, rank == 0), (second, False)):
                    if not begins and n > 1:
                        x = torch.empty_like(x)
                        dist.recv(x, group=group, group_src=(rank - 1) % n)
                    inputs.append(x)
                    x = multiply(x, weight.T)
                    if n > 1 and not (weight is second and rank == n - 1):
                        dist.send(x, group=group, group_dst=(rank + 1) % n)
                return multiply(x.T, inputs[0]), multiply(x.T, inputs[1])
                """,
        ),
        Wrong(
            "the V stands on its head",
            diagnosis=r"rank 0, stages\[0\]: expected 0, got 3",
            edits=(("load(rank), load(2 * n - 1 - rank)", "load(n - 1 - rank), load(n + rank)"),),
        ),
        Wrong(
            "two neighbours in the model on each rank",
            diagnosis=r"rank 0, stages\[1\]: expected 7, got 1",
            edits=(("load(rank), load(2 * n - 1 - rank)", "load(2 * rank), load(2 * rank + 1)"),),
        ),
        Wrong(
            "W before I is sent on",
            diagnosis=r"right, but on a slow link it takes [\d,.]+ µs where [\d,.]+ must do.*\n.*as soon as",
            edits=(
                (
                    "        send(of_middle, rank + 1)\n        of_second = multiply(upstream.T, middle)\n",
                    "        of_second = multiply(upstream.T, middle)\n        send(of_middle, rank + 1)\n",
                ),
            ),
        ),
        Wrong(
            "all W at the end",
            diagnosis=r"right, but on a slow link it takes [\d,.]+ µs where [\d,.]+ must do.*\n.*while it travels",
            edits=(
                (
                    "        send(of_middle, rank + 1)\n        of_second = multiply(upstream.T, middle)\n",
                    "        send(of_middle, rank + 1)\n",
                ),
                ("    if rank == n - 1:\n        of_second", "    of_second"),
            ),
        ),
        Wrong(
            "sends that block",
            diagnosis=r"right, but on a slow link it takes [\d,.]+ µs where [\d,.]+ must do.*\n.*with isend",
            edits=(
                (
                    "requests.append(dist.isend(outgoing, group=group, group_dst=destination))",
                    "dist.send(outgoing, group=group, group_dst=destination)",
                ),
            ),
        ),
        Wrong(
            "products that take no time",
            diagnosis=r"right, but `multiply` did 4 of 5 products on rank 0: use it for all of them",
            edits=(
                (
                    "        send(of_middle, rank + 1)\n        of_second = multiply(upstream.T, middle)\n",
                    "        send(of_middle, rank + 1)\n        of_second = upstream.T @ middle\n",
                ),
            ),
        ),
        Wrong(
            "a gradient for the data",
            diagnosis=r"right, but on a slow link it takes [\d,.]+ µs where [\d,.]+ must do.*\n.*no I of stage 0",
            edits=(
                (
                    "    if rank > 0:\n        send(multiply(of_middle, first), rank - 1)\n",
                    "    of_x = multiply(of_middle, first)\n    if rank > 0:\n        send(of_x, rank - 1)\n",
                ),
            ),
        ),
        Wrong(
            "the loss where the micro-batch turns",
            diagnosis=r"NaN",
            edits=(("y - target if rank == 0 else receive(rank - 1)", "y - target"),),
        ),
        Wrong(
            "the gradient of the sum, not of half of it",
            diagnosis=r"off by a factor of 2 everywhere",
            edits=(("y - target if", "2 * (y - target) if"),),
        ),
        Wrong(
            "what was sent down stands for what came back up",
            diagnosis=r"gradient of the second weight\[0, 0\]: expected",
            edits=(
                ("        middle = receive(rank + 1)\n", "        came_back = receive(rank + 1)\n"),
                (
                    "    y = multiply(middle, second.T)\n",
                    "    y = multiply(middle if rank == n - 1 else came_back, BACK)\n",
                ),
                ("BACK", "second.T"),
            ),
        ),
        Wrong(
            "the requests are forgotten",
            diagnosis=r"wait\(\)",
            edits=(("    for request in requests:\n        request.wait()\n", ""),),
        ),
        Wrong(
            "receives from below before it has sent anything down",
            diagnosis=r"deadlock",
            edits=(
                (
                    "        send(middle, rank + 1)\n        middle = receive(rank + 1)\n",
                    "        outgoing, middle = middle, receive(rank + 1)\n        send(outgoing, rank + 1)\n",
                ),
            ),
        ),
    ),
)
