"""frameworks.read_a_hang: nearly all ranks wait, and one of them is why."""

from functools import lru_cache
from random import Random

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Scale, Wrong, cases, drawn
from reference.frameworks.answers.hang import missing_call

OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter")
STEP = 7  # calls of a step
ROUND = 1_000_000  # ns: ranks that do not wait make a call each


def groups_of(case):
    """Rows are tensor-parallel groups, columns data-parallel ones."""
    ranks = [[row * case.columns + column for column in range(case.columns)] for row in range(case.rows)]
    groups = [("tp", row) for row in ranks] + [("dp", list(column)) for column in zip(*ranks, strict=True)]
    return {str(number): group for number, group in enumerate(groups, 1)}


def planted(case):
    """The steps of all ranks, the rank that leaves out a call, and the place of this call in its program."""
    draw = Random(f"{case.rows} {case.columns} {case.does} {case.salt}")
    axes = ["tp", "tp", "dp", "dp", *draw.choices(("tp", "dp"), k=STEP - 4)]
    draw.shuffle(axes)
    sizes = draw.sample(range(64, 4096), STEP)
    step = [(axis, draw.choice(OPERATIONS), 4 * size) for axis, size in zip(axes, sizes, strict=True)]
    long = [axis for axis, size in (("tp", case.columns), ("dp", case.rows)) if size > 2 or case.does == "stops"]
    place = draw.choice([place for place, (axis, *_) in enumerate(step) if axis in long])
    return draw, step, draw.randrange(case.rows * case.columns), case.steps * STEP + place


@lru_cache(maxsize=64)
def recorded(case):
    """What each rank has recorded when nothing moves any more, and the call that is missing."""
    draw, step, culprit, missing = planted(case)
    groups = groups_of(case)
    home = {(axis, rank): name for name, (axis, members) in groups.items() for rank in members}
    ranks = range(case.rows * case.columns)
    entries, places, open_calls = [[] for _ in ranks], [0 for _ in ranks], [[] for _ in ranks]
    numbers, arrived, p2p = {}, {}, [0 for _ in ranks]
    moved, time = True, 0
    while moved:
        moved, time = False, time + ROUND
        for rank in ranks:
            open_calls[rank] = [call for call in open_calls[rank] if not is_done(arrived[call], groups[call[0]][1])]
            at = places[rank]
            if rank == culprit and at == missing and case.does == "skips":
                at = places[rank] = missing + 1
            if len(open_calls[rank]) >= case.flying or (rank == culprit and at == missing):
                continue
            axis, operation, size = step[at % STEP]
            name = home[axis, rank]
            number = numbers[name, rank] = numbers.get((name, rank), 0) + 1
            if draw.random() < 0.2:
                p2p[rank] += 1
                entries[rank].append(entry("0", "default_pg", number, "send", 64, time, p2p[rank]))
            entries[rank].append(entry(name, axis, number, operation, size, time + draw.randrange(ROUND), 0))
            arrived.setdefault((name, number), {})[rank] = operation, size
            open_calls[rank].append((name, number))
            places[rank], moved = at + 1, True
    axis, operation, _ = step[missing % STEP]
    before = sum(other == axis for other, *_ in step) * case.steps
    number = before + 1 + sum(other == axis for other, *_ in step[: missing % STEP])
    return [each[-case.kept :] for each in entries], (culprit, home[axis, culprit], number, f"gloo:{operation}")


def is_done(arrived, members):
    return len(arrived) == len(members) and len(set(arrived.values())) == 1


def entry(name, described, number, operation, size, time, p2p):
    """As `_dump_fr_trace_json` has it, without what is not needed here."""
    return {
        "process_group": [name, described],
        "collective_seq_id": number,
        "p2p_seq_id": p2p,
        "is_p2p": p2p > 0,
        "profiling_name": f"gloo:{operation}",
        "input_sizes": [[size]],
        "time_created_ns": 1_795_684_173_000_000_000 + time,
        "state": "scheduled",
    }


def dumps_of(case, rank):
    dumps, _ = recorded(case)
    return {"dumps": dumps, "groups": {name: members for name, (_, members) in groups_of(case).items()}}


def as_planted(case, inputs):
    _, missing = recorded(case)
    return [missing]


PUZZLE = Puzzle(
    name="frameworks.read_a_hang",
    title="Read a hang",
    statement="""
        A job does nothing any more. torch's flight recorder has kept the last calls that each rank has made
        (`torch._C._distributed_c10d._dump_fr_trace_json()`, whose "entries" these are). Which rank has not made which
        call?

        Each rank makes the same calls in the same order as all others, step after step: some in its tensor-parallel
        group, some in its data-parallel group. A call of a group is done when all of its ranks have made it. A rank may
        have several calls in flight at once, and then waits for the oldest. One rank has done something else:

        - It has stopped before a call: it reads data, or is in an endless loop, or sleeps. Then others wait for it, and
          others again wait for those. That a rank has not made a call in one group means nothing while it waits in
          another.
        - Or it has left out a call, and continues. In that group its calls are then one ahead of those of the others:
          what it says under a number is not what they say under that number. The group has three ranks or more.

        Where the one that has stopped is missed in both of its groups, what is asked for is the call that others have
        been waiting for longest.

        Args:
            dumps: for each rank a list of its last calls, the oldest first. Each is a dict with

                process_group       [name, description], such as ["3", "dp"]
                collective_seq_id   the number of the call in its group, from 1 on
                profiling_name      such as "gloo:all_reduce"
                input_sizes         such as [[4096]]
                time_created_ns     when it was made
                is_p2p              whether it is a send or a receive; those mean nothing here
                state               always "scheduled", as gloo has it

                Recorders keep so many calls, and may have kept more collectives of one rank than of another.
            groups: the ranks of each group, by its name.

        Returns: (rank, name of the group, number of the call that it has not made, profiling_name of this call).

        Budget: a few looks at each call.
        """,
    function=missing_call,
    cases=cases(
        worlds=(1,), rows=(2,), columns=(2,), does=("stops",), flying=(1,), steps=(4,), kept=(40,), salt=(0, 1, 2)
    )
    + cases(
        worlds=(1,),
        rows=(3,),
        columns=(4,),
        does=("stops", "skips"),
        flying=(1, 3),
        steps=(12,),
        kept=(30,),
        salt=(0, 1, 2, 3),
    )
    + cases(  # the one that leaves out a call is the first of its group
        worlds=(1,), rows=(3,), columns=(4,), does=("skips",), flying=(1,), steps=(12,), kept=(30,), salt=(5, 6)
    ),
    drawn=(
        drawn(
            worlds=(1,),
            rows=range(2, 6),
            columns=range(3, 6),
            does=("stops", "skips"),
            flying=range(1, 5),
            steps=range(5, 20),
            kept=range(30, 60),
            salt=range(1000),
        ),
    ),
    scale=Scale(
        cases(
            worlds=(1,),
            rows=(6,),
            columns=(6,),
            does=("skips",),
            flying=(2,),
            steps=(60,),
            kept=(400,),
            salt=(1,),
        ),
        "more than the number of calls",
    ),
    inputs=dumps_of,
    oracle=as_planted,
    budgets=(
        Budget(
            Measure.LINES,
            target=lambda case: 200 + 20 * case.rows * case.columns * case.kept,
            optimum=lambda case: 100 + 6 * case.rows * case.columns * case.kept,
            why="calls can be looked up by group and number",
        ),
    ),
    hints=(
        "Sort the calls first: by rank, by group, by number. Do two ranks say different things under one number?",
        "If none do, one has stopped. In each group, who has made the first call that not all have made? These wait. "
        "Who is missed, and does not wait anywhere?",
        "A rank waits if its last number in a group is above the smallest last number there. Of ranks that are missed "
        "and do not wait, take the missing call with the smallest time_created_ns. A call that was left out is what "
        "most ranks of the group say under the first number at which one says something else.",
    ),
    wrong=(
        Wrong(
            "the rank that is missed first, though it waits itself",
            diagnosis=r"stops.*expected",
            edits=(("min(each for each in late if each[1] not in waiting)[1:]", "late[0][1:]"),),
        ),
        Wrong(
            "the last call of those who wait",
            diagnosis=r"flying=3.*expected",
            edits=(
                ("entry = calls[rank][first]", "entry = calls[rank][last[rank]]"),
                (", group, first, entry", ", group, last[rank], entry"),
            ),
        ),
        Wrong(
            "a rank that is behind has stopped",
            diagnosis=r"skips",
            edits=(("if len(set(said.values())) > 1:", "if not said:"),),
        ),
        Wrong(
            "the first rank of a group is right",
            diagnosis=r"skips.*expected",
            edits=(("Counter(said.values()).most_common(1)[0][0]", "said[members[0]]"),),
        ),
        Wrong(
            "sizes are not looked at",
            diagnosis=r"skips.*expected",
            edits=((', str(own[number]["input_sizes"])', ""),),
        ),
        Wrong(
            "sends have numbers, too",
            diagnosis=r"expected|KeyError",
            edits=(
                ('if not entry["is_p2p"]:', 'if entry["state"]:'),
                (
                    'made[rank][entry["process_group"][0]][',
                    'made[rank][sorted(groups)[0] if entry["is_p2p"] else entry["process_group"][0]][',
                ),
            ),
        ),
        Wrong(
            "calls by their place in the recorder",
            diagnosis=r"expected|Error",
            edits=(('][entry["collective_seq_id"]] = entry', '][len(made[rank][entry["process_group"][0]])] = entry'),),
        ),
        Wrong(
            "each call beside all others",
            diagnosis=r"right, but it runs [\d,]+ lines where [\d,]+ must do.*\n.*looked up by group and number",
            edits=(
                (
                    "    waiting, late = set(), []\n",
                    "    waiting, late = set(), []\n    for entries in dumps:\n        for _ in entries:\n"
                    "            for others in dumps:\n                for _ in others:\n                    pass\n",
                ),
            ),
        ),
    ),
)
