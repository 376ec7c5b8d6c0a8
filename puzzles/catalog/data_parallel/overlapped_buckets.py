"""data_parallel.overlapped_buckets: few messages, and all but the last of them hidden."""

import torch.distributed as dist

from puzzles.grading.drives.data_parallel import with_hooks
from puzzles.grading.puzzle import Budget, Claim, Measure, Puzzle, Wrong, cases, on_any_ranks
from reference.data_parallel.plain import reduce_in_buckets

from .common import STEPS, gradients_of_one_process, hidden, model_and_batches, sent, sizes_of


def buckets_of(case):
    """The parameters of each bucket, by number, in the order in which backward fills them."""
    sizes, buckets = sizes_of(case), [[]]
    for number in reversed(range(len(sizes))):
        if buckets[-1] and sum(sizes[each] for each in [*buckets[-1], number]) > case.bucket_bytes:
            buckets.append([])
        buckets[-1].append(number)
    return buckets


def best(case):
    """Microseconds where only those messages have nothing to hide behind that wait for the first layer."""
    sizes = sizes_of(case)
    return hidden(case, *(sum(sizes[each] for each in bucket) for bucket in buckets_of(case) if {0, 1} & {*bucket}))


def no_bucket_holds_too_much(case, inputs, outputs, trace):
    """A message of more than fits into a bucket is a parameter that is larger."""
    sent = {event.bytes for events in trace.events for event in events}
    too_large = [size for size in sent - {*sizes_of(case)} if size > case.bucket_bytes]
    fact = f"a message has {max(too_large, default=0):,} B where bucket_bytes={case.bucket_bytes:,}"
    return [Claim(not too_large, f"{fact}: what does not fit begins a new bucket")]


AFTERWARDS = """
    def finish():
        parameters = list(model.parameters())
        flat = torch.cat([each.grad.flatten() for each in parameters])
        dist.all_reduce(flat, group=group)
        for parameter, summed in zip(parameters, flat.split([each.numel() for each in parameters])):
            parameter.grad.copy_(summed.view_as(parameter))

    return finish
    """

PUZZLE = Puzzle(
    name="data_parallel.overlapped_buckets",
    title="Buckets that travel while backward runs",
    statement="""
        A message for each gradient hides well, and costs a latency each; one message for all has one latency, and
        nothing to hide behind. In between lie buckets: gradients of several parameters that travel together, as soon
        as the last of them is known. This is what PyTorch's DistributedDataParallel does.

        Backward goes from the last parameter to the first. So put parameters into buckets in that order: from the last
        to the first, a new bucket where the next one does not fit. When all gradients of a bucket are there, sum them
        over `group` in one all-reduce with `async_op=True`; and put the sums back when backward is done.

        `parameter.register_post_accumulate_grad_hook(hook)` lets autograd call `hook(parameter)` each time it has
        written `parameter.grad`. The gradients of one layer may come in any order, the same on every rank.

        Args:
            model: an `nn.Module`, the same on every rank. Each backward gives all of its parameters a gradient.
            group: n ranks. Any n.
            bucket_bytes: the most that a bucket holds; a parameter that is larger has one of its own.

        Returns: a function without arguments, which is called after each backward. When it returns, every `.grad` must
        be the sum over all ranks, also in the second step.

        Budget: one message for each bucket. On a modelled link, where layers take longer than their messages, only what
        has to wait for the gradients of the first layer may take time of its own.
        """,
    function=reduce_in_buckets,
    cases=cases(worlds=(2, 3, 4, 1), widths=((24, 24, 24, 24),), bucket_bytes=(9600,))
    + cases(worlds=(5,), widths=((20, 7, 30, 3),), bucket_bytes=(2000,))
    + cases(worlds=(3,), widths=((9, 9, 9),), bucket_bytes=(8, 100_000))
    + cases(worlds=(4,), members=(0, 2, 3), widths=((24, 24, 24, 24),), bucket_bytes=(4800,)),
    drawn=on_any_ranks(widths=((24, 24, 24, 24), (20, 30, 25)), bucket_bytes=(1500, 4800, 7000)),
    inputs=lambda case, rank: {**model_and_batches(case, rank), "bucket_bytes": case.bucket_bytes},
    oracle=gradients_of_one_process,
    judge=no_bucket_holds_too_much,
    drive=with_hooks,
    tolerance=1e-10,
    calls=(dist.all_reduce,),
    budgets=(
        Budget(
            Measure.CALLS,
            target=lambda case: STEPS * len(buckets_of(case)),
            why="one message for each bucket, and as much in a bucket as fits",
        ),
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: STEPS * sent(case) + 2 * STEPS * 8 * len(sizes_of(case)),
            optimum=lambda case: STEPS * sent(case),
            why="each gradient is summed once in each step",
        ),
        Budget(
            Measure.MICROSECONDS,
            target=lambda case: 1.1 * best(case),
            optimum=best,
            why="a bucket must be in flight as soon as it is full, and be waited for when backward is done",
        ),
    ),
    hints=(
        "What does each bucket have to know to see that it is full? Who tells it?",
        "Each parameter's hook strikes it off what its bucket still misses. If nothing is missing now, it joins the "
        "gradients with `torch.cat`, starts the all-reduce, and lets the bucket miss everything again: for the next "
        "step.",
        "Keep (request, flat tensor, parameters) of each bucket in flight in a list. In the function that you "
        "return: wait, cut the flat tensor, `parameter.grad.copy_(part.view_as(parameter))`, and empty the list.",
    ),
    wrong=(
        Wrong(
            "communicates only after backward",
            diagnosis=r"right, but on a slow link it takes [\d,.]+ µs where [\d,.]+ must do.*\n.*as soon as it is full",
            body=AFTERWARDS,
        ),
        Wrong(
            "waits in the hook",
            diagnosis=r"right, but on a slow link it takes [\d,.]+ µs where [\d,.]+ must do.*\n.*as soon as it is full",
            edits=(
                (
                    "on_their_way.append((dist.all_reduce(flat, group=group, async_op=True), flat, bucket))",
                    "dist.all_reduce(flat, group=group)\n                on_their_way.append((None, flat, bucket))",
                ),
                ("            work.wait()\n", ""),
            ),
        ),
        Wrong(
            "buckets in the order of forward",
            diagnosis=r"right, but on a slow link it takes [\d,.]+ µs where [\d,.]+ must do.*\n.*as soon as it is full",
            edits=(("for parameter in reversed(parameters):", "for parameter in parameters:"),),
        ),
        Wrong(
            "full once and for all",
            diagnosis=r"'NoneType' object has no attribute 'flatten'",
            edits=(("                missing.update(bucket)\n", ""),),
        ),
        Wrong(
            "the bucket that is not full never leaves",
            diagnosis=r"'NoneType' object has no attribute 'flatten'",
            body="""
                on_their_way, bucket = [], []

                def arrived(parameter):
                    bucket.append(parameter)
                    if sum(each.nbytes for each in bucket) >= bucket_bytes:
                        flat = torch.cat([each.grad.flatten() for each in bucket])
                        on_their_way.append((dist.all_reduce(flat, group=group, async_op=True), flat, list(bucket)))
                        bucket.clear()

                for parameter in model.parameters():
                    parameter.register_post_accumulate_grad_hook(arrived)

                def finish():
                    for work, flat, parameters in on_their_way:
                        work.wait()
                        for parameter, summed in zip(parameters, flat.split([each.numel() for each in parameters])):
                            parameter.grad.copy_(summed.view_as(parameter))
                    on_their_way.clear()

                return finish
                """,
        ),
        Wrong(
            "the parameters in the place of their gradients",
            diagnosis=r"layers\.\d\.\w+\.grad.*expected",
            edits=(
                (
                    "torch.cat([each.grad.flatten() for each in bucket])",
                    "torch.cat([each.detach().flatten() for each in bucket])",
                ),
            ),
        ),
        Wrong(
            "a bucket for each parameter",
            diagnosis=r"right, but a rank makes \d+ calls where \d+ must do.*\n.*as much in a bucket as fits",
            edits=(
                ("in_order_of_use(list(model.parameters()), bucket_bytes)", "[[each] for each in model.parameters()]"),
            ),
        ),
        Wrong(
            "buckets of two layers, whatever they hold",
            diagnosis=r"right, but a message has 1,440 B where bucket_bytes=8: what does not fit",
            edits=(
                (
                    "in_order_of_use(list(model.parameters()), bucket_bytes)",
                    "[list(model.parameters())[::-1][i : i + 4] for i in range(0, len(list(model.parameters())), 4)]",
                ),
            ),
        ),
        Wrong(
            "closed when it holds too much",
            diagnosis=r"right, but a message has [\d,]+ B where bucket_bytes=[\d,]+: what does not fit",
            edits=(("filled + parameter.nbytes > bucket_bytes", "filled >= bucket_bytes"),),
        ),
        Wrong(
            "the last of the list comes last",
            diagnosis=r"'NoneType' object has no attribute 'flatten'",
            edits=(
                ("missing = set(bucket)", "missing = {bucket[-1]}"),
                ("missing.update(bucket)", "missing.add(bucket[-1])"),
            ),
        ),
        Wrong(
            "read before it is there",
            diagnosis=r"wait\(\)|never waited",
            edits=(("            work.wait()\n", ""),),
        ),
    ),
)
