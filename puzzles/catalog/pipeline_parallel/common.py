"""What several schedule puzzles share."""

from puzzles.grading.drives.pipeline_parallel import ORDERS
from puzzles.grading.puzzle import Claim
from puzzles.grading.schedules import Pipe


def rank_p_and_m(case, rank):
    """The arguments of an order for one stage on each rank."""
    return {"rank": rank, "p": case.n, "m": case.m}


def one_stage_a_rank(case):
    """Rank r has stage r; F = 1, B = 2."""
    return Pipe.straight(range(case.n), case.m)


def whole_backwards(case, inputs, outputs, trace):
    """A judge for orders that take backward in one piece."""
    halves = [action for order in outputs[0][ORDERS] for action in order if action[0] in "IW"]
    return [Claim(not halves, f"{(*halves, '')[0]} is half a backward: take B, halves come in zero_bubble")]
