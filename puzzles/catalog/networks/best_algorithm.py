"""networks.best_algorithm: small tensors pay for steps, large ones for bytes."""

from puzzles.grading.puzzle import Budget, Claim, Measure, Puzzle, Scale, Wrong, cases, drawn, magnitudes
from reference.networks.answers.cheapest import best_algorithm

ROUNDING = 1e-9  # relative: algorithms that differ by less are equally fast
COUNTED = 20_000  # ranks up to which messages are counted one by one

SOLUTION = """
    rounds = ranks.bit_length() - 1
    power = 2**rounds
    fold = 2 * (alpha + size / beta) if ranks > power else 0.0
    times = {
        "ring": 2 * (ranks - 1) * (alpha + size / ranks / beta),
        "recursive doubling": fold + rounds * (alpha + size / beta),
        "halving-doubling": fold + 2 * rounds * alpha + 2 * (power - 1) / power * size / beta,
    }
    return min(times, key=times.get)
    """


def one_message_after_another(case):
    """Every algorithm as the list of messages that follow each other, and how long they take."""
    rounds = len(bin(case.ranks)) - 3
    fold = [case.size] * (2 * (case.ranks > 2**rounds))
    halves = [case.size / 2**k for k in range(1, rounds + 1)]
    messages = {
        "ring": [case.size / case.ranks] * (2 * (case.ranks - 1)),
        "recursive doubling": fold + [case.size] * rounds,
        "halving-doubling": fold + halves + halves,
    }
    return {name: sum(case.alpha + size / case.beta for size in sizes) for name, sizes in messages.items()}


def by_sums(case):
    """The same, where a ring has too many messages: those of an algorithm as (how many, bytes of all together)."""
    n, size = case.ranks, case.size
    rounds = n.bit_length() - 1
    fold = 2 * (n > 2**rounds)
    messages = {
        "ring": (2 * (n - 1), 2 * (n - 1) / n * size),
        "recursive doubling": (fold + rounds, (fold + rounds) * size),
        "halving-doubling": (fold + 2 * rounds, (fold + 2 - 2 / 2**rounds) * size),
    }
    return {name: case.alpha * steps + bytes_ / case.beta for name, (steps, bytes_) in messages.items()}


def as_fast_as_can_be(case, inputs, outputs, trace):
    """It names one of the three, and none of the others is faster."""
    name, times = outputs[0]["returns"], (one_message_after_another if case.ranks <= COUNTED else by_sums)(case)
    if not isinstance(name, str) or name not in times:
        return [Claim(False, f"{name!r} is none of {', '.join(map(repr, times))}")]
    best = min(times.values())
    said = f"{name!r} takes {times[name]:.4g} s, and {best:.4g} s is possible"
    return [Claim(times[name] <= best * (1 + ROUNDING), said)]


PUZZLE = Puzzle(
    name="networks.best_algorithm",
    title="Which all-reduce for which size",
    statement="""
        Three ways to all-reduce `size` bytes on n ranks, where a message of b bytes takes α + b/β seconds:

        "ring": 2(n-1) steps, size/n bytes in each.
        "recursive doubling": log2 n steps, the whole tensor in each.
        "halving-doubling": log2 n steps with 1/2, 1/4, 1/8, ... of the tensor, and the same way back.

        The last two need n to be a power of two. Otherwise let p be the largest power of two below n: each rank beyond
        p first gives its whole tensor to a partner, the first p continue among themselves, and in the end the partners
        give the sum back. That is two steps more, with the whole tensor in each. Which of the three is fastest?

        Args:
            ranks: n, at least 2.
            size: bytes of the tensor that each rank brings.
            alpha: α, seconds that a message takes however small it is.
            beta: β, bytes per second of a link.

        Returns: its name, as above. Where two are equally fast, either will do.

        Budget: a formula for each, not a loop over the steps of 16,384 ranks.
        """,
    function=best_algorithm,
    answer=SOLUTION,
    cases=cases(worlds=(1,), ranks=(6, 8, 2, 3, 96, 16_384), size=(1e3, 1e6, 4e9), alpha=(4e-6,), beta=(50e9,))
    + cases(worlds=(1,), ranks=(5, 48), size=(1e4,), alpha=(20e-3,), beta=(2.5e6,))
    + cases(worlds=(1,), ranks=(6, 3), size=(2e5, 6e5), alpha=(4e-6,), beta=(50e9,))
    + cases(worlds=(1,), ranks=(12,), size=(5e5,), alpha=(4e-6,), beta=(50e9,)),
    drawn=(drawn(worlds=(1,), ranks=range(2, 2000), size=magnitudes(3, 10), alpha=(4e-6,), beta=(50e9,)),),
    scale=Scale(
        cases(worlds=(1,), ranks=(10**12, 2**40), size=(1e3, 4e9), alpha=(4e-6,), beta=(50e9,)),
        "the number of ranks",
    ),
    judge=as_fast_as_can_be,
    budgets=(
        Budget(
            Measure.LINES,
            target=lambda case: 200,
            optimum=lambda case: 3,
            why="all steps of a ring take the same time, and halves, quarters, eighths, ... have a sum: multiply",
        ),
    ),
    hints=(
        "How many messages follow each other, and how many bytes are in all of them together?",
        "1/2 + 1/4 + ... + 1/p = (p-1)/p. `ranks.bit_length() - 1` is log2 n, rounded down.",
        "A dictionary from names to times, and `min(times, key=times.get)`.",
    ),
    wrong=(
        Wrong(
            "always the ring",
            diagnosis=r"'ring' takes 4\.003e-05 s, and 1\.608e-05 s is possible",
            body='return "ring"',
        ),
        Wrong(
            "latency forgotten",
            diagnosis=r"ranks=6, size=1000, .*'ring' takes [\d.e-]+ s, and [\d.e-]+ s is possible",
            edits=(("    rounds = ranks", "    alpha = 0.0\n    rounds = ranks"),),
        ),
        Wrong(
            "powers of two only",
            diagnosis=r"ranks=6, .*'halving-doubling' takes [\d.e-]+ s, and [\d.e-]+ s is possible",
            edits=(("if ranks > power else 0.0", "if ranks < 0 else 0.0"),),
        ),
        Wrong(
            "recursive doubling with chunks",
            diagnosis=r"'recursive doubling' takes [\d.e-]+ s, and [\d.e-]+ s is possible",
            edits=(("fold + rounds * (alpha + size / beta)", "fold + rounds * (alpha + size / ranks / beta)"),),
        ),
        Wrong(
            "the slowest",
            diagnosis=r"ranks=6, size=1000, .*'ring' takes [\d.e-]+ s, and",
            edits=(("min(times", "max(times"),),
        ),
        Wrong(
            "a loop over the steps",
            diagnosis=r"right, but it runs [\d,]+ lines where 200 must do.*\n.*: multiply",
            edits=(
                (
                    '"ring": 2 * (ranks - 1) * (alpha + size / ranks / beta)',
                    '"ring": sum(\n            alpha + size / ranks / beta\n            for _ in range(2 * ranks - 2))',
                ),
            ),
        ),
    ),
)
