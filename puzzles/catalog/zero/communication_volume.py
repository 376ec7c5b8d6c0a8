"""zero.communication_volume: what each stage sends, as a formula."""

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Scale, Wrong, cases, drawn
from reference.zero.cost import elements_sent


def step_by_step(case, inputs):
    """Everything that happens in a training step, and each message of it: a shard, n-1 times in each pass."""
    stage, passes = case.stage, 0
    for _ in range(case.micro_batches):
        passes += 2 if stage == 3 else 0  # gather before forward, gather before backward
        passes += 1 if stage >= 2 else 0  # reduce-scatter gradients
    if stage == 0:
        passes += 2  # all-reduce gradients
    if stage == 1:
        passes += 1  # reduce-scatter gradients
    if stage in (1, 2):
        passes += 1  # gather updated parameters
    shard = (case.numel + case.ranks - 1) // case.ranks
    return [passes * sum(shard for _ in range(case.ranks - 1))]


def counted(case, inputs):
    """The same, where there are too many messages to add up."""
    passes = {0: 2, 1: 2, 2: 1 + case.micro_batches, 3: 3 * case.micro_batches}[case.stage]
    return [passes * (case.ranks - 1) * -(-case.numel // case.ranks)]


PUZZLE = Puzzle(
    name="zero.communication_volume",
    title="What each stage of ZeRO sends",
    statement="""
        In a reduce-scatter, and in an all-gather, every rank sends n-1 shards around the ring; an all-reduce is both.
        How many elements does one rank send in a training step of K micro-batches?

            stage 0   replicas. Gradients add up on their rank; in the last micro-batch they are all-reduced.
            stage 1   the optimizer's state is shared out. In the last micro-batch gradients are reduce-scattered;
                      after the update parameters are gathered.
            stage 2   gradients, too: there is no room to add them up.
            stage 3   parameters, too: they are gathered for each forward and again for each backward, and no rank needs
                      them whole after the update.

        Args:
            stage: 0, 1, 2 or 3.
            numel: Ψ, the number of parameters. Shards are rounded up: the parameters are padded to a multiple of n.
            ranks: n, at least 1.
            micro_batches: K, at least 1.

        Returns: elements, an int.

        Budget: a formula.
        """,
    function=elements_sent,
    cases=cases(worlds=(1,), stage=(0, 1, 2, 3), numel=(12,), ranks=(4,), micro_batches=(1, 3))
    + cases(worlds=(1,), stage=(0, 1, 2, 3), numel=(10, 7_000_000_001), ranks=(3, 1024), micro_batches=(1, 8))
    + cases(worlds=(1,), stage=(0, 3), numel=(10,), ranks=(1,), micro_batches=(2,)),
    drawn=(
        drawn(worlds=(1,), stage=(0, 1, 2, 3), numel=range(1, 10_000), ranks=range(1, 300), micro_batches=range(1, 40)),
    ),
    scale=Scale(
        cases(worlds=(1,), stage=(0, 1, 2, 3), numel=(7 * 10**15,), ranks=(10**12,), micro_batches=(10**12 + 1,)),
        "ranks or micro-batches",
        oracle=counted,
    ),
    oracle=step_by_step,
    budgets=(
        Budget(
            Measure.LINES,
            target=lambda case: 20,
            optimum=lambda case: 2,
            why="every pass sends the same: count the passes, and multiply",
        ),
    ),
    hints=(
        "Call an all-gather or a reduce-scatter a pass. What does a rank send in one pass? How many passes make an "
        "all-reduce?",
        "A pass is (n-1) * ceil(Ψ / n) elements. Stages 0 and 1 make 2 in a step, whatever K is.",
        "Stage 2 scatters in each micro-batch, and gathers once: K + 1. Stage 3 gathers twice and scatters once in "
        "each: 3K.",
    ),
    wrong=(
        Wrong(
            "the whole tensor in each pass",
            diagnosis=r"expected 18, got 24",
            edits=(("(ranks - 1) * -(-numel // ranks)", "numel"),),
        ),
        Wrong(
            "stage 2 sends once a step",
            diagnosis=r"stage=2, .*micro_batches=3\): expected 36, got 18",
            edits=(("micro_batches + 1, 3", "2, 3"),),
        ),
        Wrong(
            "stage 3 sends as little as stage 2",
            diagnosis=r"right with stage=0, 1, 2, wrong with stage=3|stage=3, .*: expected 27, got 18",
            edits=(("3 * micro_batches", "2 * micro_batches"),),
        ),
        Wrong(
            "every rank communicates in every micro-batch",
            diagnosis=r"stage=0, .*micro_batches=3\): expected 18, got 54",
            edits=(("(2, 2, micro", "(2 * micro_batches, 2 * micro_batches, micro"),),
        ),
        Wrong(
            "shards rounded down",
            diagnosis=r"numel=10, ranks=3.*expected 16, got 12",
            edits=(("-(-numel // ranks)", "(numel // ranks)"),),
        ),
        Wrong(
            "a fraction",
            diagnosis=r"expected 18, got 18\.0 \(an int is asked for\)",
            edits=(("-(-numel // ranks)", "numel / ranks"),),
        ),
        Wrong(
            "message after message",
            diagnosis=r"right, but it runs [\d,]+ lines where 20 must do.*\n.*count the passes, and multiply",
            body="""
                passes = [2, 2, micro_batches + 1, 3 * micro_batches][stage]
                sent = 0
                for _ in range(passes):
                    for _ in range(ranks - 1):
                        sent += -(-numel // ranks)
                return sent
                """,
        ),
    ),
)
