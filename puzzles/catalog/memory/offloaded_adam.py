"""memory.offloaded_adam: the optimizer's state lives on the host, and visits the device one parameter at a time."""

from math import prod

from puzzles.grading.drives.memory import with_a_host
from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, case, cases, drawn
from reference.memory.plain import offloaded_adam

SHAPES = ((4, 5), (19,), (2, 3, 3), (20,), (5,), (6, 3), (17,), (5, 4))
FLOAT = 8  # bytes


def shapes_of(case):
    """Of the parameters."""
    return case.get("shapes", SHAPES)


def largest(case):
    """Bytes of the largest parameter."""
    return FLOAT * max(prod(shape) for shape in shapes_of(case))


def parameters_and_gradients(case, rank):
    """Gradients of every step, some of them 0: there the state alone moves a parameter."""
    steps = [
        [case.normal(rank, *shape, name=f"gradient {step} {i}") for i, shape in enumerate(shapes_of(case))]
        for step in range(case.steps)
    ]
    for gradients in steps[1::3]:
        gradients[0].zero_()
    return {
        "parameters": [case.normal(rank, *shape, name=f"parameter {i}") for i, shape in enumerate(shapes_of(case))],
        "gradients": steps,
        "learning_rate": case.learning_rate,
        "beta1": case.beta1,
        "beta2": case.beta2,
        "epsilon": case.epsilon,
    }


def by_the_definition(case, inputs):
    """The moments as weighted sums over all gradients until now, without any state."""
    given = inputs[0]
    said = {}
    for i, parameter in enumerate(given["parameters"]):
        for t in range(1, case.steps + 1):
            past = [gradients[i] for gradients in given["gradients"][:t]]
            m = sum((1 - case.beta1) * case.beta1 ** (t - 1 - s) * g for s, g in enumerate(past))
            v = sum((1 - case.beta2) * case.beta2 ** (t - 1 - s) * g * g for s, g in enumerate(past))
            root = (v / (1 - case.beta2**t)).sqrt() + case.epsilon
            parameter = parameter - case.learning_rate * m / (1 - case.beta1**t) / root
        said[f"parameter {i}"] = parameter
    return [{**said, "gradients": given["gradients"]}]


PUZZLE = Puzzle(
    name="memory.offloaded_adam",
    title="Adam with its state on the host",
    statement="""
        Adam remembers two moments for each parameter: as many bytes as two more models, needed once a step and idle in
        between. Here they stay on the host. `fetch(name)` makes a new tensor on the device with what the host has under
        this name, `store(name, tensor)` copies a tensor to the host. Take one step of Adam, in place:

        m = beta1 · m + (1 - beta1) · g
        v = beta2 · v + (1 - beta2) · g²
        p = p - learning_rate · m̂ / (√v̂ + epsilon), where m̂ = m / (1 - beta1^step) and v̂ = v / (1 - beta2^step)

        Args:
            parameters: on the device.
            gradients: of the same shapes and dtype. Leave them as they are.
            fetch, store: the way to the host and back. It has m of parameters[i] as f"m{i}" and v as f"v{i}"; zeros
                before the first step.
            step: the number of this step; the first is 1.
            learning_rate, beta1, beta2, epsilon: as above.

        Returns: nothing.

        Budget: on the device, the state of one parameter at a time; and between two steps, nothing.
        """,
    function=offloaded_adam,
    cases=cases(worlds=(1,), learning_rate=(0.1,), steps=(4, 1), beta1=(0.9,), beta2=(0.99,), epsilon=(1e-8,))
    + cases(worlds=(1,), learning_rate=(0.04,), steps=(3,), beta1=(0.5,), beta2=(0.9,), epsilon=(0.3,)),
    drawn=(
        drawn(
            worlds=(1,),
            learning_rate=(0.02, 0.07),
            steps=(2, 3),
            beta1=(0.7, 0.9),
            beta2=(0.9, 0.99),
            epsilon=(1e-3, 0.1),
        ),
    ),
    large=case(1, learning_rate=0.1, steps=2, beta1=0.9, beta2=0.99, epsilon=1e-8, shapes=((65_000,),) * 24),
    inputs=parameters_and_gradients,
    oracle=by_the_definition,
    drive=with_a_host,
    tolerance=1e-10,
    budgets=(
        Budget(
            Measure.KEPT_BYTES,
            target=lambda case: 0,
            why="what waits for the next step waits on the host: store it there, and let the device forget it",
        ),
        Budget(
            Measure.PEAK_BYTES,
            target=lambda case: 8 * largest(case),
            optimum=lambda case: 2 * largest(case),
            why="fetch the state of one parameter, use it, store it, and only then fetch the next",
        ),
    ),
    hints=(
        "How much of the state does the update of one parameter need?",
        "One loop over the parameters: fetch m and v, update them, store them, update the parameter. When the loop "
        "continues with the next one, nothing of the last is needed any more.",
        "In place it takes little more than two tensors: `m.mul_(beta1).add_(gradient, alpha=1 - beta1)`, "
        "`v.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)`, at last `parameter.addcdiv_(m, root, ...)`.",
    ),
    wrong=(
        Wrong(
            "the whole state is fetched first",
            diagnosis=r"right, but it keeps alive [\d,]+ B where 1,280 must do.*\n.*only then fetch the next",
            body="""
                moments = [(fetch(f"m{i}"), fetch(f"v{i}")) for i in range(len(parameters))]
                for i, (parameter, gradient, (m, v)) in enumerate(zip(parameters, gradients, moments)):
                    m.mul_(beta1).add_(gradient, alpha=1 - beta1)
                    v.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
                    store(f"m{i}", m)
                    store(f"v{i}", v)
                    root = (v / (1 - beta2**step)).sqrt() + epsilon
                    parameter.addcdiv_(m, root, value=-learning_rate / (1 - beta1**step))
                """,
        ),
        Wrong(
            "the state stays on the device",
            diagnosis=r"right, but when it has returned it still holds [\d,]+ B where 0 must do.*\n.*waits on the host",
            text="""
import torch

STATE = {}


def offloaded_adam(
    parameters, gradients, fetch, store, step, learning_rate=1e-3, beta1=0.9, beta2=0.999, epsilon=1e-8
):
    for i, (parameter, gradient) in enumerate(zip(parameters, gradients)):
        if step == 1:
            STATE[i] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        m, v = STATE[i]
        m.mul_(beta1).add_(gradient, alpha=1 - beta1)
        v.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        root = (v / (1 - beta2**step)).sqrt_().add_(epsilon)
        parameter.addcdiv_(m, root, value=-learning_rate / (1 - beta1**step))
""",
        ),
        Wrong(
            "the second moment is not stored",
            diagnosis=r"right with steps=1, wrong with steps=(2, )?3, 4",
            edits=(('        store(f"v{i}", v)\n', ""),),
        ),
        Wrong(
            "no correction of the bias",
            diagnosis=r"parameter 0\[0, 0\]: expected",
            edits=(("v.div_(1 - beta2**step)", "v"), (" / (1 - beta1**step)", "")),
        ),
        Wrong(
            "stored after the correction, which then counts forever",
            diagnosis=r"right with steps=1, wrong with steps=(2, )?3, 4",
            edits=(
                ('        store(f"v{i}", v)\n', ""),
                (".add_(epsilon)\n", '.add_(epsilon)\n        store(f"v{i}", v)\n'),
            ),
        ),
        Wrong(
            "epsilon under the root",
            diagnosis=r"parameter 0\[0, 0\]: expected",
            edits=((".sqrt_().add_(epsilon)", ".add_(epsilon).sqrt_()"),),
        ),
        Wrong(
            "zero gradients are passed over",
            diagnosis=r"right with steps=1, wrong with steps=(2, )?3, 4",
            edits=(
                (
                    '        m = fetch(f"m{i}")',
                    '        if not gradient.any():\n            continue\n        m = fetch(f"m{i}")',
                ),
            ),
        ),
        Wrong(
            "a learning rate of one's own",
            diagnosis=r"right with learning_rate=0\.1, wrong with learning_rate=0\.04",
            edits=(("value=-learning_rate", "value=-0.1"),),
        ),
        Wrong(
            "the gradients are cleared",
            diagnosis=r"gradients\[0\]\[0\]\[0, 0\]: expected",
            edits=(('        store(f"v{i}", v)\n', '        store(f"v{i}", v)\n        gradient.zero_()\n'),),
        ),
        Wrong(
            "all parameters share one name",
            diagnosis=r"must match|size of tensor",
            edits=(
                ('m = fetch(f"m{i}")', 'm = fetch("m0")'),
                ('v = fetch(f"v{i}")', 'v = fetch("v0")'),
            ),
        ),
    ),
)
