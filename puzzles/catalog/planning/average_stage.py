"""planning.average_stage: stages differ, and a planner that knows their mean knows none of them."""

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Scale, Wrong, cases, drawn
from reference.planning.answers.stages import room_of_stages


def as_many_as_go_in(case, inputs):
    """Each stage takes micro-batches one by one, as long as there is room, and it has a use for them."""
    found = []
    for stage, layers in enumerate(case.depths):
        used = sum(case.state for _layer in range(layers))
        used += case.table if stage == 0 else 0
        used += case.head if stage + 1 == len(case.depths) else 0
        ahead = 2 * (len(case.depths) - 1 - stage) + 1
        held = 0
        while held < ahead and held < case.micro_batches and used + layers * case.activation <= case.memory:
            used += layers * case.activation
            held += 1
        found.append(held)
    return [found if all(found) else None]


def divided(case, inputs):
    """The same, where there are too many of them."""
    ends = {0: case.table}
    ends[len(case.depths) - 1] = ends.get(len(case.depths) - 1, 0) + case.head
    free = [case.memory - depth * case.state - ends.get(stage, 0) for stage, depth in enumerate(case.depths)]
    ahead = range(2 * len(case.depths) - 1, 0, -2)
    limits = zip(free, case.depths, ahead, strict=True)
    found = [min(room // (depth * case.activation), most, case.micro_batches) for room, depth, most in limits]
    return [found if min(found) > 0 else None]


def layers_as_a_list(case, rank):
    """The arguments; a case has layers as a tuple, by another name."""
    sizes = {name: getattr(case, name) for name in ("memory", "micro_batches", "state", "activation", "table", "head")}
    return {"memory": sizes.pop("memory"), "layers": list(case.depths), **sizes}


BROKEN = """
    stages = len(layers)
    mean = sum(layers) / stages
    held = mean * state + (table + head) / stages
    limit = int((memory - held) // (mean * activation))
    room = [min(2 * (stages - stage) - 1, micro_batches, limit) for stage in range(stages)]
    return room if limit >= 1 else None
    """
SIZES = {"state": (6_000,), "activation": (400,), "table": (9_000,), "head": (14_000,)}
PLENTY = 10**9

PUZZLE = Puzzle(
    name="planning.average_stage",
    title="The mean of all stages is none of them",
    statement="""
        A schedule without bubbles has more micro-batches in flight than 1F1B: stage i of p begins with 2 (p - i) - 1
        forwards before its first backward, or with the m of a step, if there are fewer. Where memory is short, fewer
        will do. So a planner tells each stage how many it has room for, and never more than it wants. This one is
        wrong, and this is what is known of it:

            a   the memory of all ranks together is as it says
            b   where stages are all alike, and the table and the head
                are small, it is right
            c   with a large vocabulary, the first rank runs out of
                memory, or the last one
            d   then ranks between them have memory that stays free
            e   where a stage has more layers than others, that one
                runs out of memory

        Stage i has layers[i] layers, each of `state` bytes that stay, and `activation` bytes for each micro-batch in
        flight. The first stage has the table of tokens besides, the last one the head; a single stage has both. A
        stage has room for as many micro-batches as fit beside what stays.

        Find what the planner assumes, and mend it.

        Args:
            memory: bytes of a rank. It may be full.
            layers: of each stage, in order; 1 or more.
            micro_batches: m.
            state: bytes of a layer that stay.
            activation: bytes of a layer for a micro-batch.
            table: bytes on the first stage.
            head: bytes on the last.

        Returns: a list with a number for each stage; None if a stage has no room for a single one.

        Budget: one look at each stage.
        """,
    function=room_of_stages,
    body=BROKEN,
    cases=cases(worlds=(1,), depths=((4, 4, 4, 4),), memory=(38_000, 40_000, PLENTY), micro_batches=(16,), **SIZES)
    + cases(worlds=(1,), depths=((3, 4, 4, 3),), memory=(37_000, 30_000), micro_batches=(16, 4), **SIZES)
    + cases(worlds=(1,), depths=((4, 4, 6, 4),), memory=(41_000,), micro_batches=(16,), **SIZES)
    + cases(worlds=(1,), depths=((4, 4, 4, 4),), memory=(39_600, 39_599, 34_599), micro_batches=(16,), **SIZES)
    + cases(worlds=(1,), depths=((2, 3, 3, 3, 3, 1),), memory=(27_000,), micro_batches=(5,), **SIZES)
    + cases(worlds=(1,), depths=((3,), (2, 2)), memory=(50_000, 42_199), micro_batches=(1, 8), **SIZES)
    + cases(
        worlds=(1,),
        depths=((4, 4, 4, 4),),
        memory=(30_000,),
        micro_batches=(16,),
        **SIZES | {"table": (0,), "head": (0,)},
    ),
    drawn=(
        drawn(
            worlds=(1,),
            depths=((5, 6, 6, 6, 5), (4, 4, 4), (7, 3, 5, 2, 8, 1), (2, 2, 2, 2, 2, 2, 2)),
            state=range(100, 9000, 13),
            activation=range(50, 900, 7),
            table=range(0, 30_000, 111),
            head=range(0, 30_000, 111),
            micro_batches=range(1, 20),
            memory=lambda so_far: [
                (max(so_far.depths) * (so_far.state + each * so_far.activation) + max(so_far.table, so_far.head))
                for each in (1, 2, 3, 5)
            ],
        ),
        drawn(
            worlds=(1,),
            depths=((5, 6, 6, 6, 5), (4, 4, 4), (7, 3, 5, 2, 8, 1)),
            memory=range(20_000, 90_000, 501),
            micro_batches=range(1, 20),
            **SIZES,
        ),
    ),
    scale=Scale(
        cases(worlds=(1,), depths=((4,) * 1000,), memory=(10**12,), micro_batches=(10**12,), **SIZES),
        "the number of micro-batches",
        oracle=divided,
    ),
    inputs=layers_as_a_list,
    oracle=as_many_as_go_in,
    budgets=(
        Budget(
            Measure.LINES,
            target=lambda case: 20 + 8 * len(case.depths),
            optimum=lambda case: 5 + 4 * len(case.depths),
            why="how many fit is a division",
        ),
    ),
    hints=(
        "By a, nothing is forgotten. In which line do all stages become alike? What would b look like if they were?",
        "For each stage: what stays there, and what is left of memory? Divide by what a micro-batch takes of this "
        "stage, rounded down.",
        "held = here · state + (stage == 0) · table + (stage == stages - 1) · head; then min(2 (stages - stage) - 1, "
        "micro_batches, (memory - held) // (here · activation)); None if one of them is below 1.",
    ),
    wrong=(
        Wrong(
            "the mean of all stages, as it was",
            diagnosis=r"result\[\d\]: expected \d, got \d|expected None",
            body=BROKEN + "    # and the sum over all ranks is right\n",
        ),
        Wrong(
            "the fullest stage decides for all",
            diagnosis=r"result\[\d\]: expected \d, got \d",
            body="""
                stages = len(layers)
                ends = [(stage == 0) * table + (stage == stages - 1) * head for stage in range(stages)]
                limit = min((memory - n * state - end) // (n * activation) for n, end in zip(layers, ends))
                room = [min(2 * (stages - stage) - 1, micro_batches, limit) for stage in range(stages)]
                return room if limit >= 1 else None
                """,
        ),
        Wrong(
            "table and head are on all stages",
            diagnosis=r"result\[\d\]: expected \d, got \d|expected None",
            edits=(("(stage == 0) * table + (stage == stages - 1) * head", "(table + head) // stages"),),
        ),
        Wrong(
            "the head is forgotten",
            diagnosis=r"result\[3\]: expected \d, got \d|expected None",
            edits=((" + (stage == stages - 1) * head", ""),),
        ),
        Wrong(
            "the table is on the last stage, and the head on the first",
            diagnosis=r"result\[\d\]: expected \d, got \d|expected None",
            edits=(
                (
                    "(stage == 0) * table + (stage == stages - 1) * head",
                    "(stage == 0) * head + (stage == stages - 1) * table",
                ),
            ),
        ),
        Wrong(
            "state by its own stage, activations by the mean",
            diagnosis=r"result\[\d\]: expected \d, got \d",
            edits=(("(here * activation)", "(sum(layers) * activation // stages)"),),
        ),
        Wrong(
            "activations by the stage, state by the mean",
            diagnosis=r"result\[\d\]: expected \d, got \d|expected None",
            edits=(("here * state", "sum(layers) * state // stages"),),
        ),
        Wrong(
            "all stages want as many",
            diagnosis=r"result\[\d\]: expected \d, got \d",
            edits=(("2 * (stages - stage) - 1", "2 * stages - 1"),),
        ),
        Wrong(
            "as many as 1F1B",
            diagnosis=r"result\[\d\]: expected \d, got \d",
            edits=(("2 * (stages - stage) - 1", "stages - stage"),),
        ),
        Wrong(
            "more than a step has",
            diagnosis=r"micro_batches=[145].*result\[0\]: expected \d, got \d",
            edits=(("min(2 * (stages - stage) - 1, micro_batches)", "2 * (stages - stage) - 1"),),
        ),
        Wrong(
            "a full rank is one too many",
            diagnosis=r"memory=(39600|41000).*result\[\d\]: expected \d, got \d",
            edits=(("(memory - held) // (", "(memory - held - 1) // ("),),
        ),
        Wrong(
            "a stage without room is a number below 1",
            diagnosis=r"expected None, got",
            edits=((" if min(room) >= 1 else None", ""),),
        ),
        Wrong(
            "one micro-batch after another",
            diagnosis=r"right, but it runs [\d,]+ lines where \d+ must do.*\n.*is a division",
            body="""
                room = []
                for stage, here in enumerate(layers):
                    last = stage == len(layers) - 1
                    held = here * state + (stage == 0) * table + last * head
                    count = 0
                    while count < min(2 * (len(layers) - stage) - 1, micro_batches):
                        held += here * activation
                        if held > memory:
                            break
                        count += 1
                    room.append(count)
                return room if min(room) >= 1 else None
                """,
        ),
    ),
)
