"""data_parallel.gradient_hooks: each gradient leaves as soon as it is known, while the others are still computed."""

import torch.distributed as dist

from puzzles.grading.drives.data_parallel import with_hooks
from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, cases, on_any_ranks
from reference.data_parallel.plain import reduce_when_ready

from .common import STEPS, gradients_of_one_process, hidden, model_and_batches, sent, sizes_of

PUZZLE = Puzzle(
    name="data_parallel.gradient_hooks",
    title="Hooks that send gradients while backward runs",
    statement="""
        Backward goes from the last layer to the first. When it has the last layer's gradients, all other layers are
        still to come; and so far the network is idle. Let each gradient be summed over `group` as soon as it is
        known, while backward continues.

        `parameter.register_post_accumulate_grad_hook(hook)` lets autograd call `hook(parameter)` each time it has
        written `parameter.grad`. And with `async_op=True`, `dist.all_reduce` returns at once, with a request; between
        that and the return of `request.wait()` the tensor is in flight, and no code may read or write it.

        The loss is divided by the number of samples of all ranks already: gradients add up.

        Args:
            model: an `nn.Module`, the same on every rank. Each backward gives all of its parameters a gradient.
            group: n ranks. Any n.

        Returns: a function without arguments, which is called after each backward. When it returns, every `.grad` must
        be the sum over all ranks, also in the second step, when nothing may hold the gradients of the first any more.

        Budget: one message for each parameter. On a modelled link, where layers take longer than their messages, only
        the messages of the first layer may take time of their own.
        """,
    function=reduce_when_ready,
    cases=cases(worlds=(2, 3, 4, 1), widths=((24, 24, 24, 24),))
    + cases(worlds=(5,), widths=((20, 7, 30, 3),))
    + cases(worlds=(4,), members=(0, 2, 3), widths=((24, 24, 24),)),
    drawn=on_any_ranks(widths=((24, 24, 24, 24), (20, 30, 25))),
    inputs=model_and_batches,
    oracle=gradients_of_one_process,
    drive=with_hooks,
    tolerance=1e-10,
    calls=(dist.all_reduce,),
    budgets=(
        Budget(
            Measure.BYTES_SENT, target=lambda case: STEPS * sent(case), why="each gradient is summed once in each step"
        ),
        Budget(
            Measure.CALLS,
            target=lambda case: STEPS * len(sizes_of(case)),
            why="one message for each parameter and step",
        ),
        Budget(
            Measure.MICROSECONDS,
            target=lambda case: 1.1 * hidden(case, *sizes_of(case)[:2]),
            optimum=lambda case: hidden(case, *sizes_of(case)[:2]),
            why="a message must be in flight while backward continues: sent by the hook, waited for after backward",
        ),
    ),
    hints=(
        "What does a hook get, and what of it is to be summed?",
        "A hook that waits holds backward up. Let it put what `dist.all_reduce(..., async_op=True)` returns into a "
        "list, and let the function that you return wait for all that is in there.",
        "When all have been waited for, empty the list: the next step fills it again.",
    ),
    wrong=(
        Wrong(
            "sums the parameter instead of its gradient",
            diagnosis=r"step 0, layers\.0\.weight\[0, 0\]: expected",
            edits=(("dist.all_reduce(parameter.grad,", "dist.all_reduce(parameter.data,"),),
        ),
        Wrong(
            "averages the parameter instead of its gradient",
            diagnosis=r"layers\.0\.weight\.grad must be the same on every rank: rank 0 and rank 1 differ",
            edits=(
                (
                    "dist.all_reduce(parameter.grad, group=group, async_op=True)",
                    "dist.all_reduce(parameter.data, dist.ReduceOp.AVG, group=group, async_op=True)",
                ),
            ),
        ),
        Wrong(
            "gradients are averaged",
            diagnosis=r"off by exactly the world size, too little",
            edits=(("parameter.grad, group=group", "parameter.grad, dist.ReduceOp.AVG, group=group"),),
        ),
        Wrong(
            "waits in the hook",
            diagnosis=r"right, but on a slow link it takes [\d,.]+ µs where [\d,.]+ must do.*\n.*sent by the hook",
            edits=((", async_op=True)", ", async_op=True).wait()"), ("work.wait()", "pass")),
        ),
        Wrong(
            "communicates only after backward",
            diagnosis=r"right, but on a slow link it takes [\d,.]+ µs where [\d,.]+ must do.*\n.*sent by the hook",
            body="""
                def finish():
                    for parameter in model.parameters():
                        dist.all_reduce(parameter.grad, group=group)

                return finish
                """,
        ),
        Wrong(
            "no rank waits",
            diagnosis=r"wait\(\)|never waited",
            edits=(("        for work in works:\n            work.wait()\n", ""),),
        ),
        Wrong(
            "requests that are never forgotten",
            diagnosis=r"gradients held: expected 'of one step at most', got '(\d+) of \1 in 2 steps'",
            edits=(("        works.clear()\n", ""),),
        ),
        Wrong(
            "a hook before accumulation",
            diagnosis=r"layers\.0\.weight\.grad must be the same on every rank",
            edits=(
                ("def launch(parameter: nn.Parameter)", "def launch(gradient)"),
                ("dist.all_reduce(parameter.grad,", "dist.all_reduce(gradient.clone(),"),
                ("register_post_accumulate_grad_hook", "register_hook"),
            ),
        ),
        Wrong(
            "returns nothing to call",
            diagnosis=r"result: expected 'a function', got None",
            edits=(("    return finish\n", ""),),
        ),
    ),
)
