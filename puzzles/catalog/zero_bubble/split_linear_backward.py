"""zero_bubble.split_linear_backward: the gradient of the input at once, that of the weight later."""

from puzzles.grading.drives.zero_bubble import in_two_halves
from puzzles.grading.puzzle import Claim, Puzzle, Wrong, cases, drawn
from reference.zero_bubble.plain import split_linear

from .common import DOUBLE

SOLUTION = """
    class SplitLinear(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight):
            ctx.save_for_backward(x)
            return x @ weight.T

        @staticmethod
        def backward(ctx, gradient):
            (x,) = ctx.saved_tensors

            def finish():
                with torch.no_grad():
                    of_weight = gradient.T @ x
                    weight.grad = of_weight if weight.grad is None else weight.grad + of_weight

            later(finish)
            return gradient @ weight if ctx.needs_input_grad[0] else None, None

    return SplitLinear.apply(x, weight)
    """

ORDER = ("F0", "F1", "I0", "F2", "I1", "I2", "W0", "W1", "W2")


def three_micro_batches(case, rank):
    """Weights of all layers; inputs and upstream gradients of each micro-batch."""
    shapes = list(zip(case.widths[1:], case.widths, strict=False))
    return {
        "weights": [case.normal(0, *shape, name=f"weight {i}") for i, shape in enumerate(shapes)],
        "batches": [case.normal(0, case.tokens, case.widths[0], name=f"x {k}") for k in range(3)],
        "upstreams": [case.normal(0, case.tokens, case.widths[-1], name=f"upstream {k}") for k in range(3)],
        "order": [(action[0], int(action[1])) for action in ORDER],
        "first": case.first,
    }


def by_autograd(case, inputs):
    """All micro-batches at once, in one backward."""
    given = inputs[0]
    weights = [weight.requires_grad_() for weight in given["weights"]]
    batches = [x.requires_grad_(not case.first) for x in given["batches"]]
    for x, upstream in zip(batches, given["upstreams"], strict=True):
        for number, weight in enumerate(weights):
            x = (x.tanh() if number else x) @ weight.T
        (x * upstream).sum().backward()
    said = {f"gradient of weight {i} before W": None for i, _ in enumerate(weights)}
    said |= {f"gradient of x {k}": x.grad for k, x in enumerate(batches)}
    return [said | {f"gradient of weight {i}": weight.grad for i, weight in enumerate(weights)}]


def each_product_in_its_half(case, inputs, outputs, trace):
    """F and W multiply once for each layer; I does, but where the gradient of the data is not needed."""
    layers, got = len(case.widths) - 1, outputs[0]
    wanted = {"F": layers, "I": layers - case.first, "W": layers}
    why = {
        "F": "forward has no use for more",
        "I": "the data waits for no gradient" if case.first else "the layer before waits for nothing but its gradient",
        "W": "W is where the weights' gradients are multiplied, once each",
    }
    claims, of_layers = [], f"{layers} layer{'s' * (layers > 1)}"
    for kind, count in wanted.items():
        yours = next((each for each in got[f"products of {kind}"] if each != count), count)
        said = f"{kind} of {of_layers} takes {yours} matrix products where {count} must do: {why[kind]}"
        claims.append(Claim(yours == count, said))
    early = f"F calls `later` {got['handed over in F']} times: there is nothing to finish until backward comes"
    claims.append(Claim(got["handed over in F"] == 0, early))
    said = f"between I and W {got['held']:,} B are held where {held(case):,} must do: W needs x and upstream, no more"
    claims.append(Claim(got["held"] <= held(case), said))
    said = "autograd records W: `weight.grad` holds x and u of all micro-batches; compute it under `torch.no_grad()`"
    return [*claims, Claim(not got["recorded"], said)]


def held(case):
    """Bytes that wait for W: what goes into each layer, and what comes back to it; and the gradients of x."""
    numbers = sum(case.widths[1:-1]) + sum(case.widths[1:]) + case.widths[0] * (not case.first)
    return 3 * case.tokens * numbers * DOUBLE


PUZZLE = Puzzle(
    name="zero_bubble.split_linear_backward",
    title="Backward in two halves",
    statement="""
        Backward of a linear layer y = x Aᵀ is two products of the same size, with u the gradient of y:

            I    gradient of x = u A        the layer before waits for it
            W    gradient of A = uᵀ x       no rank waits for it, until the optimizer steps

        Autograd computes both, and the layer before waits for both. Write a linear layer that computes the first when
        backward comes, and puts the second off. Backward calls `later(finish)` with a function of no arguments. When
        there is time, the caller will call `finish()`, and that adds the gradient to `weight.grad`, which is None at
        first.

        Use a `torch.autograd.Function`, inside this function or outside, and return what its `apply` returns. Its
        `backward(ctx, gradient)` returns one gradient for each argument of `forward` after ctx, or None. Several
        micro-batches may be between forward and backward, or between I and W.

        Args:
            x: [T, D]. Where it comes from the data it needs no gradient: then none is computed.
            weight: [F, D], A, a leaf that requires a gradient.
            later: takes a function, to be called once, later.

        Returns: [T, F], x Aᵀ, with a backward in two halves.

        Budget: one product in forward, one in I (none if x needs no gradient), one in W. Between I and W nothing is
        held but x and u, and after W neither of them.
        """,
    function=split_linear,
    answer=SOLUTION,
    cases=cases(worlds=(1,), first=(False, True), widths=((5, 7, 3, 4),), tokens=(6,))
    + cases(worlds=(1,), first=(False,), widths=((2, 3),), tokens=(2,)),
    drawn=(drawn(worlds=(1,), first=(False, True), widths=((4, 6, 2), (3, 3), (7, 2, 5, 4)), tokens=range(2, 8)),),
    inputs=three_micro_batches,
    oracle=by_autograd,
    judge=each_product_in_its_half,
    drive=in_two_halves,
    tolerance=1e-10,
    hints=(
        "Which two tensors does W need? Which of them does backward give you, and which must forward keep?",
        "In `backward`, define `finish` as a function inside: it remembers `gradient` and x. Call `later(finish)`, and "
        "return `gradient @ weight` for x and None for the weight: autograd then adds nothing to `weight.grad`.",
        "Micro-batches add up: `weight.grad = of_weight if weight.grad is None else weight.grad + of_weight`, in "
        "`finish` under `with torch.no_grad():`, for it is called where autograd records. And "
        "`ctx.needs_input_grad[0]` says whether the gradient of x is needed.",
    ),
    wrong=(
        Wrong(
            "nothing is put off",
            diagnosis=r"gradient of weight 0 before W: expected None, got a float64 tensor",
            body="return x @ weight.T",
        ),
        Wrong(
            "multiplied at once, added later",
            diagnosis=r"right, but I of 3 layers takes 6 matrix products where 3 must do: the layer before",
            edits=(
                (
                    "            def finish():\n                with torch.no_grad():\n        ",
                    "",
                ),
                (
                    "                    weight.grad = of",
                    "\n            def finish():\n                weight.grad = of",
                ),
            ),
        ),
        Wrong(
            "a gradient for the data",
            diagnosis=r"right, but I of 3 layers takes 3 matrix products where 2 must do.*the data waits",
            edits=((" if ctx.needs_input_grad[0] else None", ""),),
        ),
        Wrong(
            "the last micro-batch overwrites the others",
            diagnosis=r"gradient of weight 0\[0, 0\]: expected",
            edits=(("of_weight if weight.grad is None else weight.grad + of_weight", "of_weight"),),
        ),
        Wrong(
            "both: autograd adds it, and finish again",
            diagnosis=r"gradient of weight 0 before W: expected None, got a float64 tensor",
            edits=(("else None, None", "else None, gradient.T @ x"),),
        ),
        Wrong(
            "never handed over",
            diagnosis=r"gradient of weight 0: expected a float64 tensor.*got None",
            edits=(("            later(finish)\n", ""),),
        ),
        Wrong(
            "done as soon as it is put off",
            diagnosis=r"gradient of weight 0 before W: expected None, got a float64 tensor",
            edits=(("            later(finish)\n", "            finish()\n"),),
        ),
        Wrong(
            "y is kept, which W has no use for",
            diagnosis=r"right, but between I and W [\d,]+ B are held where [\d,]+ must do",
            edits=(
                ("ctx.save_for_backward(x)\n", "y = x @ weight.T\n            ctx.save_for_backward(x, y)\n"),
                ("            return x @ weight.T\n", "            return y\n"),
                ("(x,) = ctx.saved_tensors", "kept = x, y = ctx.saved_tensors"),
                ("of_weight = gradient.T @ x", "x, y = kept\n                    of_weight = gradient.T @ x"),
            ),
        ),
        Wrong(
            "autograd's own graph is kept, and gone through twice",
            diagnosis=r"right, but",
            body="""
                class SplitLinear(torch.autograd.Function):
                    @staticmethod
                    def forward(ctx, x, weight):
                        leaf = ctx.leaf = x.detach().requires_grad_()
                        with torch.enable_grad():
                            ctx.y = leaf @ weight.T
                        return ctx.y.detach()

                    @staticmethod
                    def backward(ctx, gradient):
                        leaf = ctx.leaf
                        with torch.enable_grad():
                            loss = (ctx.y * gradient).sum()

                        def finish():
                            (of_weight,) = torch.autograd.grad(loss, weight)
                            weight.grad = of_weight if weight.grad is None else weight.grad + of_weight

                        later(finish)
                        return torch.autograd.grad(loss, leaf, retain_graph=True)[0], None

                return SplitLinear.apply(x, weight)
                """,
        ),
        Wrong(
            "autograd records the gradient of the weight",
            diagnosis=r"right, but autograd records W: `weight\.grad` holds x and u.*no_grad",
            edits=(("with torch.no_grad():", "with torch.enable_grad():"),),
        ),
        Wrong(
            "handed over in forward already",
            diagnosis=r"right, but F calls `later` 9 times",
            body="""
                class SplitLinear(torch.autograd.Function):
                    @staticmethod
                    def forward(ctx, x, weight):
                        ctx.save_for_backward(x)
                        kept = ctx.kept = []

                        def finish():
                            gradient, x = kept
                            with torch.no_grad():
                                of_weight = gradient.T @ x
                                weight.grad = of_weight if weight.grad is None else weight.grad + of_weight

                        later(finish)
                        return x @ weight.T

                    @staticmethod
                    def backward(ctx, gradient):
                        ctx.kept += [gradient, *ctx.saved_tensors]
                        return gradient @ weight if ctx.needs_input_grad[0] else None, None

                return SplitLinear.apply(x, weight)
                """,
        ),
        Wrong(
            "multiplied at once, into a gradient of its own",
            diagnosis=r"right, but I of 3 layers takes 6 matrix products where 3 must do",
            edits=(
                ("            (x,) = ctx", "            of_weight = torch.zeros_like(weight)\n            (x,) = ctx"),
                ("saved_tensors\n", "saved_tensors\n            of_weight.addmm_(gradient.T, x)\n"),
                ("                    of_weight = gradient.T @ x\n", ""),
            ),
        ),
        Wrong(
            "the shape of the product the other way around",
            diagnosis=r"attempting to assign a gradient of size",
            edits=(("gradient.T @ x", "x.T @ gradient"),),
        ),
    ),
)
