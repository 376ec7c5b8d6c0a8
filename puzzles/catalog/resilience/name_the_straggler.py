"""resilience.name_the_straggler: the last to come need not be the one that is slow."""

import random
from statistics import median_low

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Scale, Wrong, cases, drawn
from reference.resilience.answers.late import name_the_straggler


def trace_of(case):
    """Calls on `groups` groups of `width` ranks, then one of all ranks, `steps` times; and which rank is slow, by how
    much, before which call.

    Returns: came, left, own work of each call.
    """
    chance = random.Random(case.seed)
    ranks = case.groups * case.width
    slow = chance.randrange(ranks)
    came, left, worked, now = [], [], [], [0.0] * ranks
    groups = [range(first, first + case.width) for first in range(0, ranks, case.width)]
    for step in range(case.steps):
        for members in [*groups, range(ranks)]:
            work = {rank: chance.randrange(80, 81 + case.spread) / 64 for rank in members}
            if slow in members and step in (case.steps // 2, case.steps - 1):
                work[slow] += case.delay
            if case.tired and step == 0 and len(members) == ranks:  # one that is very late, and once
                work[(slow + 1) % ranks] += 1.5 * case.delay
            come = {rank: now[rank] + work[rank] for rank in members}
            end = max(come.values()) + 0.25
            leave = {rank: end for rank in members}
            for rank in members:
                now[rank] = leave[rank]
            came.append(come)
            left.append(leave)
            worked.append(work)
    return came, left, worked


def by_own_work(case, inputs):
    """From the work that was drawn, and not from moments."""
    _, _, worked = trace_of(case)
    excess = {}
    for call, work in enumerate(worked):
        usual = median_low(list(work.values()))
        for rank, seconds in work.items():
            excess.setdefault(rank, {})[call] = max(0.0, seconds - usual)
    totals = {rank: sum(of_calls.values()) for rank, of_calls in excess.items()}
    rank = min(totals, key=lambda each: (-totals[each], each))
    worst = min(excess[rank], key=lambda call: (-excess[rank][call], call))
    return [(rank, worst, totals[rank])]


def two_lists(case, rank):
    """The arguments."""
    came, left, _ = trace_of(case)
    return {"came": came, "left": left}


def events(case):
    """How many times a rank comes to a call."""
    return 2 * case.groups * case.width * case.steps


def calls(case):
    return (case.groups + 1) * case.steps


BY_MOMENTS = """
    from statistics import median_low

    late = {}
    for call, came_to in enumerate(came):
        usual = median_low(came_to.values())
        for rank, moment in came_to.items():
            late.setdefault(rank, {})[call] = max(0.0, moment - usual)
    total = {rank: sum(of_calls.values()) for rank, of_calls in late.items()}
    rank = min(total, key=lambda each: (-total[each], each))
    return rank, max(late[rank], key=lambda call: late[rank][call]), total[rank]
    """

PUZZLE = Puzzle(
    name="resilience.name_the_straggler",
    title="Name the straggler",
    statement="""
        A step takes longer than it should, and every rank says that it waits for others. A recorder has noted when each
        rank came to each collective call, and when it left it. Calls are of groups: a rank of tensor parallelism that
        is slow lets its neighbours come late to the next sum over all ranks, and they are not to blame.

        What a rank does between two calls is its own work: from when it left its call before, or from 0, until it came
        to this one. Its excess at a call is its own work less the median of the own work of all ranks in the call,
        where it is more, else 0. Of an even number of ranks the median is the lower of the two in the middle
        (`statistics.median_low`).

        Args:
            came: of each call, in order, a dict: the moments in seconds at which its ranks came to it.
            left: of each call, a dict: the moments at which they left it.

        Returns: (rank, call, seconds): the rank whose excess is largest in all calls together (of several, the lowest
        rank); the number of the call where it is largest (the first of several); and its excess in all.

        Budget: lines that grow with the number of times that a rank comes to a call.
        """,
    function=name_the_straggler,
    cases=cases(worlds=(1,), groups=(2,), width=(2, 3), steps=(4,), delay=(3.0,), tired=(False, True), spread=(40,))
    + cases(worlds=(1,), groups=(1, 4), width=(4,), steps=(3,), delay=(1.5,), tired=(False,), spread=(40,))
    + cases(worlds=(1,), groups=(2,), width=(3,), steps=(4,), delay=(1.0,), tired=(False,), spread=(0,))
    + cases(worlds=(1,), groups=(3,), width=(1, 5), steps=(6,), delay=(0.5,), tired=(True,), spread=(40,)),
    drawn=(
        drawn(
            worlds=(1,),
            groups=(1, 2, 3, 4),
            width=(2, 3, 4, 5),
            steps=range(3, 9),
            delay=(0.5, 1.0, 2.0),
            tired=(True, False),
            spread=(0, 40),
        ),
    ),
    scale=Scale(
        cases(worlds=(1,), groups=(2,), width=(4000,), steps=(4,), delay=(2.0,), tired=(True,), spread=(40,)),
        "the square of the number of ranks in a call",
    ),
    inputs=two_lists,
    oracle=by_own_work,
    tolerance=1e-9,
    budgets=(
        Budget(
            Measure.LINES,
            target=lambda case: 20 + 12 * events(case) + 12 * calls(case),
            optimum=lambda case: 10 + 6 * events(case) + 6 * calls(case),
            why="each rank's coming to a call need be looked at once: take the median of a call once, too",
        ),
    ),
    hints=(
        "When a rank comes late to a call, where was it before? How long did it work, and how long did it wait?",
        "Keep a dict of when each rank left its call before. Own work is `came - before`, and 0 stands there at first.",
        "For each call: the work of its ranks; `median_low` of it, once; add max(0, work - median) to each rank's "
        "total and remember its largest. Then `before.update(left_of_this_call)`.",
    ),
    wrong=(
        Wrong("the last to come, by moments", diagnosis=r"expected", body=BY_MOMENTS),
        Wrong(
            "the one that works longest in all",
            diagnosis=r"expected",
            edits=(("excess = max(0.0, seconds - usual)", "excess = seconds"),),
        ),
        Wrong(
            "waiting counts as work",
            diagnosis=r"expected",
            edits=(("before.update(left_it)", "before.update(came_to)"),),
        ),
        Wrong(
            "less the fastest, not the median",
            diagnosis=r"result\[2\]: expected|expected",
            edits=(("median_low(work.values())", "min(work.values())"),),
        ),
        Wrong(
            "time that a rank saves is set off against what it loses",
            diagnosis=r"expected",
            edits=(("max(0.0, seconds - usual)", "seconds - usual"),),
        ),
        Wrong(
            "the worst single call decides",
            diagnosis=r"expected",
            edits=(("key=lambda each: (-total[each], each)", "key=lambda each: (-worst[each][0], each)"),),
        ),
        Wrong(
            "the last of several calls",
            diagnosis=r"expected",
            edits=(("(excess, -call))", "(excess, call))"), ("-worst[rank][1]", "worst[rank][1]")),
        ),
        Wrong(
            "the median is looked for again for each rank",
            diagnosis=r"more than 2 s of processor time for .*: .*the square of",
            edits=(
                ("        usual = median_low(work.values())\n", ""),
                ("seconds - usual", "seconds - median_low(work.values())"),
            ),
        ),
        Wrong(
            "all calls are searched for a rank's call before",
            diagnosis=r"right, but it runs [\d,]+ lines where [\d,]+ must do",
            body="""
                from statistics import median_low

                total, worst = {}, {}
                for call, came_to in enumerate(came):
                    work = {}
                    for rank, moment in came_to.items():
                        since = 0.0
                        for earlier in left[:call]:
                            if rank in earlier:
                                since = earlier[rank]
                        work[rank] = moment - since
                    usual = median_low(work.values())
                    for rank, seconds in work.items():
                        excess = max(0.0, seconds - usual)
                        total[rank] = total.get(rank, 0.0) + excess
                        worst[rank] = max(worst.get(rank, (0.0, 0)), (excess, -call))
                rank = min(total, key=lambda each: (-total[each], each))
                return rank, -worst[rank][1], total[rank]
                """,
        ),
    ),
)
