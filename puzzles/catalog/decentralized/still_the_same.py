"""decentralized.still_the_same: when islands are data parallelism, and when they are not."""

import torch

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Scale, Wrong, cases, drawn
from reference.decentralized.answers.counted import same_as_data_parallelism

KINDS = ("sgd", "momentum", "adamw")
ROUNDS, RATE = 3, 0.1


def inner_optimizer(kind, weight):
    """By torch itself."""
    if kind == "adamw":
        return torch.optim.AdamW([weight], lr=RATE)
    return torch.optim.SGD([weight], lr=RATE, momentum=0.9 if kind == "momentum" else 0.0)


def trained(case, gradients, steps):
    """Weights of so many learners after `steps` steps, and after rounds if there are islands among them."""
    start = torch.linspace(-1, 1, 5, dtype=torch.float64)
    weights = [torch.nn.Parameter(start.clone()) for _ in gradients]
    optimizers = [inner_optimizer(case.inner, weight) for weight in weights]
    anchor = torch.nn.Parameter(start.clone())
    momentum = case.outer_momentum
    outer = torch.optim.SGD([anchor], lr=case.outer_rate, momentum=momentum, nesterov=momentum > 0)
    for step in range(1, steps + 1):
        for weight, optimizer, gradient in zip(weights, optimizers, gradients, strict=True):
            weight.grad = gradient(weight.detach())
            if case.clips:
                torch.nn.utils.clip_grad_norm_([weight], 0.5)
            optimizer.step()
        if len(gradients) == case.islands and step % case.inner_steps == 0 and case.meets:
            anchor.grad = anchor.detach() - torch.stack([weight.detach() for weight in weights]).mean(0)
            outer.step()
            for weight in weights:
                weight.data.copy_(anchor.detach())
    return weights[0].detach()


class Asked:
    """A case, with or without islands that meet."""

    def __init__(self, case, meets):
        self.case, self.meets = case, meets

    def __getattr__(self, name):
        return getattr(self.case, name)


def both_are_run(case, inputs):
    """Train islands, and one that has the mean of their gradients, in float64; and compare."""
    generator = torch.Generator().manual_seed(7)
    problems = [torch.randn(2, 5, generator=generator, dtype=torch.float64) for _ in range(case.islands)]
    alone = [lambda w, p=p: (p[0].abs() + 0.1) * (w - p[1]) for p in problems]
    steps = ROUNDS * case.inner_steps
    apart = trained(Asked(case, True), alone, steps)
    together = trained(Asked(case, False), [lambda w: torch.stack([of(w) for of in alone]).mean(0)], steps)
    return [bool((apart - together).abs().max() < 1e-9)]


def by_the_formulas(case, inputs):
    """The outer step must be the mean; and the mean of one step must be the step of the mean: linear, that is."""
    is_mean = case.outer_rate == 1 and case.outer_momentum == 0
    is_linear = case.inner in ("sgd", "momentum") and not case.clips
    return [is_mean and (case.islands == 1 or (case.inner_steps == 1 and is_linear))]


WORDS = {"islands": (1, 2, 5), "inner_steps": (1, 4), "inner": KINDS, "clips": (False, True)}

PUZZLE = Puzzle(
    name="decentralized.still_the_same",
    title="When islands are still data parallelism",
    statement="""
        Synchronous data parallelism takes the mean of all gradients, clips it if it clips, and lets one optimizer take
        a step. Islands do that each for itself, for `inner_steps` steps, and then an outer SGD takes a step with what
        they have changed, anchor minus the mean of their parameters. Each island keeps the state of its inner
        optimizer. When do all rounds end with the parameters that data parallelism has after as many steps, whatever
        the data are? Tell that of a configuration: what is exact, up to rounding, not what is near.

        Args:
            islands: how many, 1 or more.
            inner_steps: H, 1 or more.
            outer_rate: of the outer SGD.
            outer_momentum: of the outer SGD, Nesterov's.
            inner: "sgd", "momentum" (SGD with momentum) or "adamw".
            clips: whether gradients are clipped to a norm before an inner step.

        Returns: True where it is the same.

        Budget: a few conditions; nothing is trained.
        """,
    function=same_as_data_parallelism,
    cases=cases(worlds=(1,), **WORDS, outer_rate=(1.0,), outer_momentum=(0.0,))
    + cases(
        worlds=(1,),
        islands=(1, 2),
        inner_steps=(1,),
        inner=("sgd",),
        clips=(False,),
        outer_rate=(0.7, 1.0),
        outer_momentum=(0.0, 0.9),
    ),
    drawn=(drawn(worlds=(1,), **WORDS, outer_rate=(1.0, 0.7), outer_momentum=(0.0, 0.9)),),
    scale=Scale(
        cases(
            worlds=(1,),
            islands=(4,),
            inner_steps=(10**12,),
            inner=("sgd",),
            clips=(False,),
            outer_rate=(1.0,),
            outer_momentum=(0.0,),
        ),
        "the number of inner steps",
        oracle=by_the_formulas,
    ),
    oracle=both_are_run,
    budgets=(
        Budget(
            Measure.LINES,
            target=lambda case: 12,
            optimum=lambda case: 2,
            why="what is exact can be seen from the formulas: nothing has to be trained",
        ),
    ),
    hints=(
        "With one island: what does an outer step do with a rate of 1 and no momentum? And with a rate of 0.7?",
        "With several and H = 1: the mean of steps is the step of the mean where a step is linear in the gradient. Is "
        "it with momentum? With Adam's square root? With a norm?",
        "With H = 2 the second gradient is taken at another place on each island. One island needs a neutral outer "
        "step and nothing else; several need H = 1, no AdamW and no clipping as well.",
    ),
    wrong=(
        Wrong(
            "H = 1 is enough",
            diagnosis=r"expected False, got True",
            edits=(('inner_steps == 1 and inner != "adamw" and not clips', "inner_steps == 1"),),
        ),
        Wrong(
            "momentum is not linear",
            diagnosis=r"inner=momentum.*expected True, got False|expected True, got False",
            edits=(('inner != "adamw"', 'inner == "sgd"'),),
        ),
        Wrong(
            "one island is always its inner optimizer",
            diagnosis=r"islands=1.*expected False, got True|expected False, got True",
            body="""
                if islands == 1:
                    return True
                neutral = outer_rate == 1 and outer_momentum == 0
                return neutral and inner_steps == 1 and inner != "adamw" and not clips
                """,
        ),
        Wrong(
            "one island needs H = 1, too",
            diagnosis=r"expected True, got False",
            edits=(("islands == 1 or (", "("),),
        ),
        Wrong(
            "the outer rate does not matter",
            diagnosis=r"expected False, got True",
            edits=(("outer_rate != 1 or outer_momentum != 0", "outer_momentum != 0"),),
        ),
        Wrong(
            "counts the steps",
            diagnosis=r"right, but it runs [\d,]+ lines where 12 must do.*\n.*nothing has to be trained|seconds|time",
            body="""
                if outer_rate != 1 or outer_momentum != 0:
                    return False
                differs = False
                for step in range(64 * inner_steps):
                    differs = differs or (islands > 1 and (step % inner_steps > 0 or inner == "adamw" or clips))
                return not differs
                """,
        ),
    ),
)
