"""ranks.ping_pong: measure a link from one of its ends."""

from puzzles.grading.drives import on_a_model_clock
from puzzles.grading.puzzle import POINT_TO_POINT, Budget, Measure, Puzzle, Wrong, cases, drawn
from reference.ranks.lab.ping_pong import ping_pong


def the_link_itself(case, inputs):
    return [(case.alpha, case.beta)] + [None] * (case.n - 1)


def trips(case):
    """Round trips with each size: one to warm up, then those that count."""
    return 1 + case.rounds


def serially(measured):
    """The reference's loop with something else done in each round."""
    return f"""
        rank = dist.get_rank(group)
        if rank > 1:
            return None
        times = []
        for size in (small, large):
            message, trips = torch.zeros(size, dtype=torch.uint8), []
            for _ in range(1 + rounds):
                begin = clock()
                if rank == 0:
                    dist.send(message, group=group, group_dst=1)
                    dist.recv(message, group=group, group_src=1)
                else:
                    dist.recv(message, group=group, group_src=0)
                    dist.send(message, group=group, group_dst=0)
                trips.append(clock() - begin)
            times.append({measured})
        beta = (large - small) / (times[1] - times[0])
        return (times[0] - small / beta, beta) if rank == 0 else None
        """


PUZZLE = Puzzle(
    name="ranks.ping_pong",
    title="Latency and bandwidth of a link",
    statement="""
        A message of b bytes takes α + b/β seconds: α is the latency, β the bandwidth. Measure both between ranks 0 and
        1 of `group`: send a message there and back, many times, with a small and with a large one, and look at
        `clock()` on one side. The other side has another clock, which is of no use to you.

        Now and then a round trip takes much longer, because another program uses the link, and the very first one
        because the connection is opened. Don't let those count: warm up with one round trip of each size, time each
        of the next `rounds`, and take a value that a few slow ones do not move, such as their median.

        Args:
            small: bytes of the small message.
            large: bytes of the large one.
            rounds: round trips to time with each size.
            clock: the time in seconds, like `time.perf_counter`. (It is checked with a clock that shows the time on a
                modelled link, so that what you must find is known exactly.)
            group: at least two ranks. Those beyond the second have nothing to do.

        Returns: (α in seconds, β in bytes per second) on rank 0, None on the others.

        Budget: 1 + rounds round trips with each size.
        """,
    function=ping_pong,
    cases=cases(worlds=(2, 3), small=(8,), large=(100_000,), rounds=(9,), alpha=(2e-6,), beta=(1e9, 25e9))
    + cases(worlds=(2,), small=(64,), large=(40_000,), rounds=(5,), alpha=(1e-3,), beta=(2.5e6,))
    + cases(worlds=(2,), small=(7,), large=(1_001,), rounds=(4,), alpha=(1e-6,), beta=(1e6,))
    + cases(worlds=(4,), members=(1, 3), small=(8,), large=(50_000,), rounds=(5,), alpha=(5e-5,), beta=(1e9,)),
    drawn=(
        drawn(
            worlds=(2, 3, 6, 9),
            small=range(1, 90),
            large=range(10_000, 100_000),
            rounds=range(4, 10),
            alpha=(3e-6, 7e-5, 1e-3),
            beta=(3e6, 2e8, 4e9),
        ),
    ),
    oracle=the_link_itself,
    drive=on_a_model_clock,
    tolerance=0.01,
    calls=POINT_TO_POINT,
    budgets=(
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: trips(case) * (case.small + case.large),
            optimum=lambda case: case.rounds * (case.small + case.large),
            why="one round trip to warm up and `rounds` to time, with each size",
        ),
        Budget(Measure.STEPS, target=lambda case: 4 * trips(case), optimum=lambda case: 4 * case.rounds),
    ),
    hints=(
        "A send returns when the message is in flight. What can rank 0 wait for that proves that it has arrived?",
        "A round trip is twice α + b/β. Two sizes give two equations for two unknowns.",
        "The difference between the two one-way times is what the additional bytes cost: β = (large - small) / "
        "(t_large - t_small). Then α = t_small - small / β.",
        "Keep the time of each round trip by itself; `statistics.median(trips)` is their median.",
    ),
    wrong=(
        Wrong(
            "there and back taken for one way",
            diagnosis=r"expected 2e-06, got 4\.\d+e-06",
            body=serially("sorted(trips[1:])[rounds // 2]"),
        ),
        Wrong(
            "the mean of all round trips",
            diagnosis=r"expected 2e-06, got",
            body=serially("sum(trips) / len(trips) / 2"),
        ),
        Wrong(
            "no rank answers",
            diagnosis=r"expected (2e-06|1000000000), got",
            body="""
                rank = dist.get_rank(group)
                if rank > 1:
                    return None
                times = []
                for size in (small, large):
                    message, trips = torch.zeros(size, dtype=torch.uint8), []
                    for _ in range(1 + rounds):
                        begin = clock()
                        if rank == 0:
                            dist.send(message, group=group, group_dst=1)
                        else:
                            dist.recv(message, group=group, group_src=0)
                        trips.append(clock() - begin)
                    times.append(sorted(trips[1:])[rounds // 2])
                beta = (large - small) / max(times[1] - times[0], 1e-12)
                return (times[0] - small / beta, beta) if rank == 0 else None
                """,
        ),
        Wrong(
            "large message's latency taken for none",
            diagnosis=r"expected (2e-06|1000000000), got",
            edits=(("(large - small) / (slow - quick)", "large / slow"),),
        ),
        Wrong(
            "bits per second",
            diagnosis=r"expected 1000000000, got",
            edits=(("return quick - small / beta, beta", "return quick - small / beta, 8 * beta"),),
        ),
        Wrong(
            "both sides send first",
            diagnosis=r"deadlock",
            edits=(
                (
                    "            dist.recv(message, group=group, group_src=0)\n"
                    "            dist.send(message, group=group, group_dst=0)\n",
                    "            dist.send(message, group=group, group_dst=0)\n"
                    "            dist.recv(message, group=group, group_src=0)\n",
                ),
            ),
        ),
        Wrong(
            "more rounds than were asked for",
            diagnosis=r"right, but rank \d sent [\d,]+ B where [\d,]+ must do.*\n.*one round trip to warm up",
            edits=(("    message = torch.zeros", "    rounds = 4 * rounds\n    message = torch.zeros"),),
        ),
        Wrong(
            "messages of whole words of 8 bytes",
            diagnosis=r"small=7.*expected",
            body=serially("sorted(trips[1:])[rounds // 2] / 2").replace(
                "torch.zeros(size, dtype=torch.uint8)", "torch.zeros(size // 8, dtype=torch.float64)"
            ),
        ),
    ),
)
