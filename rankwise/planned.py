"""What `rankwise plan` says: tables of layouts, of where a step goes, of what a rank holds, and of what rules lose."""

from collections.abc import Iterator, Mapping, Sequence

from reference.planning.job import Job
from reference.planning.predict import Prediction
from reference.planning.refusals import gigabytes, percent, verdicts
from reference.planning.rules import RULES, Advice
from reference.planning.search import SearchResult

LEAST = 0.005  # of a step, or of what a rank holds: smaller parts are not shown


def of_job(name: str, job: Job) -> Iterator[str]:
    """What is to be trained, and on what."""
    gpu, gpus = job.cluster.gpu, job.cluster.gpus
    yield (
        f"{name} ({amount(job.model.parameters)} parameters) on {gpus:,} GPUs, {gpu.name}, "
        f"{min(gpus, job.cluster.per_node)} on a node: a step reads {job.batch:,} windows of {job.sequence:,} tokens, "
        f"in {job.numbers}"
    )


def amount(count: int) -> str:
    """A number as one says it: 8.0 billion."""
    for size, word in ((1e9, " billion"), (1e6, " million"), (1e3, " thousand")):
        if count >= size:
            return f"{count / size:.1f}{word}"
    return str(count)


def of_search(found: SearchResult) -> Iterator[str]:
    """The best layouts, and where the first one's step and memory go."""
    memory = found.job.cluster.gpu.memory
    yield f"{found.tried:,} layouts divide, {found.fitting:,} of them fit into {gigabytes(memory)}"
    if not found.best:
        yield f"the smallest needs {gigabytes(found.smallest.bytes)}: {found.smallest.layouts}"
        return
    yield "the fastest, each with other axes:"
    yield ""
    yield from predictions(found.best)
    yield ""
    best = found.best[0]
    low, high = (float(seconds) for seconds in best.bounds)
    yield f"the first takes {low:.2f} to {high:.2f} s, if it is met as well as 19 of 20 published steps"
    yield f"seconds of its step: {parts(best.time, 1.0)}"
    yield f"GB of its fullest rank: {parts(best.room, 1e9)}"


def predictions(found: Sequence[Prediction]) -> Iterator[str]:
    """A line for each."""
    rows = [
        (
            f"{float(each.seconds):.2f}",
            f"{float(each.tokens_per_second):,.0f}",
            f"{float(each.tflops_per_gpu):.0f}",
            f"{100 * float(each.mfu):.1f}",
            f"{float(each.bytes) / 1e9:.1f}",
            str(each.layouts),
        )
        for each in found
    ]
    return aligned([("step s", "tokens/s", "TFLOP/s", "MFU %", "GB", "layout"), *rows], left=(5,))


MOST_ACTIONS = 100_000  # of a schedule that is simulated: a second


def by_action(found: Prediction) -> str:
    """Seconds of the same step where its pipeline is simulated action by action; nothing where it has none."""
    layouts, job = found.layouts, found.job
    actions = 2 * layouts.pp * layouts.chunks * layouts.micro_batches(job)
    from reference.planning.simulated import simulated  # takes torch, which a search does without

    if layouts.pp == 1 or actions > MOST_ACTIONS or not float(layouts.micro_batches(job)).is_integer():
        return ""
    return f"{simulated(job, layouts).mean:.2f}"


def parts(found: Mapping[str, float], unit: float) -> str:
    """The large ones, in their order."""
    whole = float(sum(found.values()))
    return ", ".join(f"{name} {float(value) / unit:.2f}" for name, value in found.items() if value > LEAST * whole)


def of_layout(found: Prediction, best: Prediction | None) -> Iterator[str]:
    """One layout beside the best: parts of its step and memory, and what stands against it."""
    both = [found] if best is None else [found, best]
    yield from predictions(both)
    yield ""
    names = ("this", "best")[: len(both)]
    if stepped := [
        f"{name} {seconds} s" for name, each in zip(names, both, strict=True) if (seconds := by_action(each))
    ]:
        yield f"simulated action by action: {', '.join(stepped)}"
        yield ""
    yield from _beside("seconds of a step", names, [each.time for each in both], 1.0, 2)
    yield ""
    yield from _beside("GB of the fullest rank", names, [each.room for each in both], 1e9, 1)
    yield ""
    reasons = verdicts(found.job, found.layouts, best)
    yield "why not: " + ("it is the best" if not reasons else "")
    yield from (f"- {reason}" for reason in reasons)


def _beside(
    title: str, names: Sequence[str], columns: Sequence[Mapping[str, float]], unit: float, digits: int
) -> Iterator[str]:
    rows = [
        (part, *(f"{float(column[part]) / unit:.{digits}f}" for column in columns))
        for part in columns[0]
        if any(column[part] > LEAST * sum(column.values()) for column in columns)
    ]
    rows.append(("all", *(f"{float(sum(column.values())) / unit:.{digits}f}" for column in columns)))
    return aligned([(title, *names), *rows], left=(0,))


def of_rules(advice: Advice) -> Iterator[str]:
    """What rules of thumb take, and what each of them loses."""
    found = advice.prediction
    if not advice.works:
        yield f"rules of thumb lead to {found.layouts}: {verdicts(found.job, found.layouts)[0]}"
        return
    slower = f"{percent(advice.loss)} slower than the best" if advice.loss > 0 else "the best"
    yield f"rules of thumb take {found.layouts}: {float(found.seconds):.2f} s, {slower}"
    rows = [(each.rule.name, str(each), f"{100 * each.loss:.1f}", each.rule.because) for each in advice.decisions]
    yield from aligned([("rule", "decides", "loses %", "because"), *rows], left=(0, 1, 3))


def of_losses(found: Sequence[tuple[str, int, Advice | None]]) -> Iterator[str]:
    """What rules lose, by model and number of GPUs."""
    rows = [("model", "GPUs", "best s", "all", *(str(number) for number in range(1, len(RULES) + 1)), "rules take")]
    for name, gpus, advice in found:
        rows.append((name, f"{gpus:,}", *_losses(advice)))
    yield from aligned(rows, left=(0, len(rows[0]) - 1))
    yield ""
    yield "percent that each rule adds to the step: " + ", ".join(
        f"{number} {rule.name}" for number, rule in enumerate(RULES, 1)
    )


def _losses(advice: Advice | None) -> tuple[str, ...]:
    empty = ("",) * len(RULES)
    if advice is None:
        return "", "", *empty, "nothing fits"
    best = f"{float(advice.best.seconds):.2f}"
    if not advice.works:
        return best, "", *empty, "what does not fit"
    each = (f"{100 * decision.loss:.0f}" for decision in advice.decisions)
    return best, f"{100 * advice.loss:.0f}", *each, str(advice.prediction.layouts)


def aligned(rows: Sequence[Sequence[str]], left: Sequence[int]) -> Iterator[str]:
    """Rows as lines, columns one below the other: those in `left` begin in one column, numbers end in one."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        words = (
            word.ljust(width) if column in left else word.rjust(width)
            for column, (word, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join(words).rstrip()
