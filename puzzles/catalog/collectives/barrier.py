"""collectives.barrier: no rank continues before all ranks have come."""

from math import inf

from puzzles.grading.puzzle import POINT_TO_POINT, Budget, Claim, Measure, Puzzle, Wrong, cases, on_any_ranks
from reference.collectives import cost
from reference.collectives.barrier import dissemination
from reference.collectives.exchange import exchange
from reference.ranks.answers.causality import Moment, heard


def every_rank_has_heard_of_every_rank(case, inputs, outputs, trace):
    """No clock can prove it: a chain of messages must lead from each rank's first call to each rank's last."""
    claims = []
    for rank in case.global_ranks:
        calls = trace.events[rank]
        since = heard(trace, Moment(rank, calls[0].posted)) if calls else [inf] * case.world_size
        late = next((other for other in case.global_ranks if other != rank and since[other] == inf), None)
        said = f"rank {late} may continue before rank {rank} has come: no chain of messages leads from {rank} to {late}"
        claims.append(Claim(late is None, said))
    return claims


def rounds(case):
    """⌈log2 n⌉."""
    return cost.of(dissemination).steps(case.n, 0, 1)


PUZZLE = Puzzle(
    name="collectives.barrier",
    title="A barrier",
    statement="""
        No rank continues before all ranks have come: when this function returns on one rank, every rank must have
        called it. A barrier moves no data. What counts is that a message has come:
        its sender is here, and so is every rank of which its sender had heard.

        Given is a way to send to one rank while you receive from another:
        `exchange(outgoing, target, incoming, source, group)` puts what comes into `incoming`. Send a tensor of one
        element, such as `torch.zeros(1)`, and receive into another.

        Args:
            group: n ranks. Any n.

        Budget: ⌈log2 n⌉ steps, and in each one send and one receive.
        """,
    function=dissemination,
    answer="""
        rank, n = dist.get_rank(group), dist.get_world_size(group)
        here, heard = torch.zeros(1), torch.zeros(1)
        distance = 1
        while distance < n:
            exchange(here, (rank + distance) % n, heard, (rank - distance) % n, group)
            distance *= 2
        """,
    cases=cases(worlds=(4, 2, 3, 1, 5, 6, 8)) + cases(worlds=(4,), members=(0, 2, 3)),
    drawn=on_any_ranks(),
    judge=every_rank_has_heard_of_every_rank,
    calls=POINT_TO_POINT,
    given=(exchange,),
    budgets=(
        Budget(
            Measure.STEPS,
            target=rounds,
            why="in each step, tell twice as far: the rank that hears from you hears of all that you have heard of",
        ),
        Budget(Measure.CALLS, target=lambda case: 2 * rounds(case), why="one send and one receive in each step"),
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: 8 * rounds(case),
            optimum=lambda case: 0,
            why="one element says as much as a thousand",
        ),
    ),
    hints=(
        "If every rank sends to its right neighbour and waits for its left one, which ranks are known to have come? "
        "And if it then does the same with the rank two away?",
        "After step k one has heard of 2^k ranks to the left, oneself among them. Stop when that is all ranks.",
        "`exchange(here, (rank + distance) % n, heard, (rank - distance) % n, group)`, with distances 1, 2, 4, ...",
    ),
    wrong=(
        Wrong(
            "the neighbours only",
            diagnosis=r"rank \d may continue before rank \d has come: no chain of messages leads",
            edits=(("while distance < n:", "if distance < n:"),),
        ),
        Wrong(
            "stops one step early",
            diagnosis=r"may continue before rank \d has come",
            edits=(("while distance < n:", "while 2 * distance < n:"),),
        ),
        Wrong(
            "rank 0 has heard of all, and tells no rank",
            diagnosis=r"rank 1 may continue before rank 0 has come",
            body="""
                rank, n = dist.get_rank(group), dist.get_world_size(group)
                token = torch.zeros(1)
                if rank != 0:
                    dist.send(token, group=group, group_dst=0)
                    return
                for other in range(1, n):
                    dist.recv(token, group=group, group_src=other)
                """,
        ),
        Wrong(
            "once around the ring",
            diagnosis=r"may continue before rank \d has come",
            body="""
                rank, n = dist.get_rank(group), dist.get_world_size(group)
                token = torch.zeros(1)
                if n == 1:
                    return
                if rank == 0:
                    dist.send(token, group=group, group_dst=1)
                    dist.recv(token, group=group, group_src=n - 1)
                else:
                    dist.recv(token, group=group, group_src=rank - 1)
                    dist.send(token, group=group, group_dst=(rank + 1) % n)
                """,
        ),
        Wrong(
            "through rank 0 and back",
            diagnosis=r"right, but it takes \d+ steps where \d+ must do.*\n.*twice as far",
            body="""
                rank, n = dist.get_rank(group), dist.get_world_size(group)
                token = torch.zeros(1)
                if rank != 0:
                    dist.send(token, group=group, group_dst=0)
                    dist.recv(token, group=group, group_src=0)
                    return
                for other in range(1, n):
                    dist.recv(token, group=group, group_src=other)
                for other in range(1, n):
                    dist.send(token, group=group, group_dst=other)
                """,
        ),
        Wrong(
            "every rank tells all ranks",
            diagnosis=r"right, but a rank makes [\d,]+ calls where \d+ must do",
            body="""
                rank, n = dist.get_rank(group), dist.get_world_size(group)
                here, heard = torch.zeros(1), torch.zeros(n, 1)
                requests = []
                for other in range(n):
                    if other != rank:
                        requests.append(dist.irecv(heard[other], group=group, group_src=other))
                        requests.append(dist.isend(here, group=group, group_dst=other))
                for request in requests:
                    request.wait()
                """,
        ),
        Wrong(
            "sleep, and hope",
            diagnosis=r"may continue before rank \d has come",
            text="""import time


def dissemination(group):
    time.sleep(0.01)
""",
        ),
    ),
)
