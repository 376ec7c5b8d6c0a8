"""What several schedule puzzles share."""

from puzzles.grading.schedules import Pipe


def rank_p_and_m(case, rank):
    """The arguments of an order for one stage on each rank."""
    return {"rank": rank, "p": case.n, "m": case.m}


def one_stage_a_rank(case):
    """Rank r has stage r; F = 1, B = 2."""
    return Pipe.straight(range(case.n), case.m)
