"""The orders of torch.distributed.pipelining as schedules of ours: on paper, without ranks or stages."""

from torch.distributed.pipelining import schedules as torchs

from reference.pipeline_parallel.schedule import Action, Kind, Schedule

KINDS = {
    torchs.FORWARD: Kind.FORWARD,
    torchs.FULL_BACKWARD: Kind.BACKWARD,
    torchs.BACKWARD_INPUT: Kind.INPUT,
    torchs.BACKWARD_WEIGHT: Kind.WEIGHT,
}


def interleaved(p: int, m: int, v: int) -> Schedule | None:
    """`ScheduleInterleaved1F1B`; None where it refuses: m must divide into floor(m / p) groups."""
    rounds = max(1, m // p)
    if m % rounds:
        return None
    return _order(torchs.ScheduleInterleaved1F1B, p, m, v, rounds, [stage % p for stage in range(p * v)])


def breadth_first(p: int, m: int, v: int) -> Schedule:
    """`ScheduleLoopedBFS`."""
    return _order(torchs.ScheduleLoopedBFS, p, m, v, 1, [stage % p for stage in range(p * v)])


def zb_v(p: int, m: int) -> Schedule:
    """`ScheduleZBVZeroBubble`."""
    return _order(torchs.ScheduleZBVZeroBubble, p, m, 2, 1, [*range(p), *reversed(range(p))])


def dual_pipe_v(p: int, m: int) -> Schedule:
    """`ScheduleDualPipeV`, for 2p micro-batches or more. Of a pair, forward comes first."""
    return _order(torchs.ScheduleDualPipeV, p, m, 2, 1, [*range(p), *reversed(range(p))])


def _order(kind: type, p: int, m: int, v: int, rounds: int, placement: list[int]) -> Schedule:
    """What a class of torch's computes for each rank, from the numbers alone."""
    order = object.__new__(kind)
    order.__dict__ |= {"pp_group_size": p, "_n_microbatches": m, "_stages": [None] * v, "n_local_stages": v}
    order.__dict__ |= {"num_stages": p * v, "_num_stages": p * v, "microbatches_per_round": m // rounds}
    lines = (order._calculate_single_rank_operations(rank) for rank in range(p))
    parts = ([part for action in line if action for part in action.sub_actions or (action,)] for line in lines)
    actions = ([Action(KINDS[kind], stage, k) for stage, kind, k, _ in line] for line in parts)
    return Schedule.straight(actions, placement, m)
