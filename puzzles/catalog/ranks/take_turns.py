"""ranks.take_turns: only a message puts two ranks in order."""

from itertools import pairwise

from puzzles.grading.drives import taking_turns
from puzzles.grading.puzzle import POINT_TO_POINT, Budget, Claim, Measure, Puzzle, Wrong, cases, on_any_ranks
from reference.ranks.answers.causality import Moment, happened_before
from reference.ranks.answers.turns import take_turns


def one_after_the_other(case, inputs, outputs, trace):
    """Every rank speaks once, and a chain of messages leads from each rank's turn to the next rank's."""
    spoke, ranks = [each["spoke"] for each in outputs], case.global_ranks
    claims = [
        Claim(len(ticks) == 1, f"rank {rank} speaks {len(ticks)} times; each rank has one turn")
        for rank, ticks in zip(ranks, spoke, strict=True)
    ]
    if not all(claim.holds for claim in claims):
        return claims
    turns = [Moment(rank, ticks[0]) for rank, ticks in zip(ranks, spoke, strict=True)]
    for before, after in pairwise(turns):
        otherwise = f"rank {after.rank} may speak before rank {before.rank} has: no message tells it to wait for that"
        claims.append(Claim(happened_before(trace, before, after), otherwise))
    return claims


PUZZLE = Puzzle(
    name="ranks.take_turns",
    title="Ranks speak in order",
    statement="""
        Every rank has something to say, by calling `speak()`: a line of a log, a file that all write to, a download
        that only one may make at a time. Rank 0 speaks first. Rank r speaks after rank r-1 has.

        What is checked is not the clock but the messages: one must lead from each turn to the next. A program that
        speaks in order because the ranks happen to be quick in the right way today does not pass.

        Args:
            speak: call it once on every rank.
            group: the ranks that take turns.

        Budget: n-1 messages, one after the other, of at most 8 bytes each.
        """,
    function=take_turns,
    cases=cases(worlds=(3, 4, 2, 1, 5, 8)) + cases(worlds=(4,), members=(0, 2, 3)),
    drawn=on_any_ranks(),
    judge=one_after_the_other,
    drive=taking_turns,
    calls=POINT_TO_POINT,
    budgets=(
        Budget(
            Measure.STEPS,
            target=lambda case: case.n - 1,
            why="rank r needs to hear from one rank only: the one that speaks before it",
        ),
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: 8 if case.n > 1 else 0,
            optimum=lambda case: 0,
            why="it does not matter what a token says, only that it comes",
        ),
        Budget(
            Measure.CALLS,
            target=lambda case: min(2, case.n - 1),
            why="one message comes from the rank before, and one goes to the next",
        ),
    ),
    hints=(
        "How can rank 1 know that rank 0 has spoken? Not from a clock.",
        "Waiting for a message is how a rank waits for another. What may the message say?",
        "A token travels along the ranks: receive it from rank - 1, speak, send it to rank + 1. The first rank has "
        "no rank to wait for, and the last one no rank to tell.",
    ),
    wrong=(
        Wrong("all at once", diagnosis=r"rank 1 may speak before rank 0 has: no message", body="speak()"),
        Wrong(
            "sleeping until it is one's turn",
            diagnosis=r"rank 1 may speak before rank 0 has: no message",
            text="""
import time
import torch.distributed as dist

def take_turns(speak, group):
    time.sleep(0.001 * dist.get_rank(group))
    speak()
""",
        ),
        Wrong(
            "the token is passed on before speaking",
            diagnosis=r"rank 1 may speak before rank 0 has",
            edits=(
                ("    speak()\n", ""),
                ("group_dst=rank + 1)", "group_dst=rank + 1)\n    speak()"),
            ),
        ),
        Wrong(
            "the token goes all the way around",
            diagnosis=r"nobody is receiving|finished without receiving",
            edits=(
                ("if rank < n - 1", "if n > 1"),
                ("group_dst=rank + 1", "group_dst=(rank + 1) % n"),
            ),
        ),
        Wrong(
            "every rank waits for a token",
            diagnosis=r"deadlock",
            edits=(("if rank > 0", "if n > 1"), ("group_src=rank - 1", "group_src=(rank - 1) % n")),
        ),
        Wrong("only one speaks", r"rank 1 speaks 0 times", edits=(("    speak()", "    if rank == 0: speak()"),)),
        Wrong(
            "a chairman who asks them one by one",
            diagnosis=r"right, but it takes \d+ steps where \d must do.*\n.*hear from one rank only",
            body="""
                rank, n = dist.get_rank(group), dist.get_world_size(group)
                token = torch.zeros(1)
                if rank > 0:
                    dist.recv(token, group=group, group_src=0)
                speak()
                if rank > 0:
                    dist.send(token, group=group, group_dst=0)
                for other in range(1, n if rank == 0 else 1):
                    dist.send(token, group=group, group_dst=other)
                    dist.recv(token, group=group, group_src=other)
                """,
        ),
        Wrong(
            "a barrier after each turn",
            diagnosis=r"right, but it takes \d+ steps where \d must do",
            body="""
                for turn in range(dist.get_world_size(group)):
                    if turn == dist.get_rank(group):
                        speak()
                    dist.barrier(group)
                """,
        ),
        Wrong(
            "an empty token to all who come later",
            diagnosis=r"right, but a rank makes \d calls where 2 must do.*\n.*one goes to the next",
            body="""
                rank, n, token = dist.get_rank(group), dist.get_world_size(group), torch.empty(0)
                for earlier in range(rank):
                    dist.recv(token, group=group, group_src=earlier)
                speak()
                requests = [dist.isend(token, group=group, group_dst=later) for later in range(rank + 1, n)]
                for request in requests:
                    request.wait()
                """,
        ),
    ),
)
