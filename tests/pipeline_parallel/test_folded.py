"""Pipelines on GPUs whose streams share hardware queues: which orders hang with how many."""

import pytest

from reference import on_gpus
from reference.errors import BadInput
from reference.pipeline_parallel import ordering
from reference.pipeline_parallel.folded import QueueHead, busiest, stuck
from reference.pipeline_parallel.passes import Program, channels, programmed
from reference.pipeline_parallel.validate import validate
from reference.plan import PipelineSchedule

EACH = 4  # channels of a rank between two others: to and from each
IN_TURN = (
    PipelineSchedule.GPIPE,
    PipelineSchedule.ONE_F_ONE_B,
    PipelineSchedule.ZB_H1,
    PipelineSchedule.ZB_H2,
)  # a rank's stages follow each other by one rank
ROUND = (PipelineSchedule.INTERLEAVED, PipelineSchedule.INTERLEAVED_EVEN)
BACK = (
    PipelineSchedule.BREADTH_FIRST,
    PipelineSchedule.ZB_V,
    PipelineSchedule.DUAL_PIPE_V,
    PipelineSchedule.ONE_F_ONE_B_V,
)
NEEDED = {  # queues, as the table in `folded` has them: of 2, 4 and 8 ranks
    QueueHead.STARTS: {order: (1, 1, 1) for order in (*IN_TURN, PipelineSchedule.V_HALF)}
    | {order: (2, 1, 1) for order in ROUND}
    | {PipelineSchedule.V_MIN: (1, 1, 4)}
    | {order: (2, 4, 4) for order in BACK},
    QueueHead.HOLDS: {order: (2, 4, 4) for order in PipelineSchedule},
}


def program(order: PipelineSchedule, p: int, m: int, chunks: int = 2) -> Program:
    """As `Pipeline` makes it."""
    schedule = order.timetable(p, m, chunks)
    return programmed(schedule, max(1, validate(schedule).room))


@pytest.mark.parametrize("head", QueueHead)
@pytest.mark.parametrize("order", PipelineSchedule)
def test_so_many_queues_are_enough_and_fewer_are_not(order: PipelineSchedule, head: QueueHead) -> None:
    for p, needed in zip((2, 4, 8), NEEDED[head][order], strict=True):
        ends = [not stuck(program(order, p, 2 * p), queues, head) for queues in range(1, EACH + 2)]
        assert ends == [queues >= needed for queues in range(1, EACH + 2)], (p, ends)


@pytest.mark.parametrize("head", QueueHead)
@pytest.mark.parametrize("order", PipelineSchedule)
def test_a_queue_for_each_channel_of_the_busiest_rank_is_always_enough(
    order: PipelineSchedule, head: QueueHead
) -> None:
    chunks = (1, 2, 3) if order in (PipelineSchedule.INTERLEAVED, PipelineSchedule.BREADTH_FIRST) else (2,)
    for p in range(2, 9):
        for m in (1, p, 2 * p + 1):
            for v in chunks:
                made = program(order, p, m, v)
                assert not stuck(made, busiest(made.schedule), head), (p, m, v)


def test_with_queues_to_spare_it_is_the_model_without_queues() -> None:
    """What hangs there, hangs here: a message that no rank receives."""
    whole = program(PipelineSchedule.ONE_F_ONE_B, 3, 4)
    lacks = Program(whole.schedule, (*whole.lines[:2], tuple(s for s in whole.lines[2] if str(s) != "R1.3<1")))
    assert ordering.stuck(lacks)
    for head in QueueHead:
        assert stuck(lacks, 32, head) == ordering.stuck(lacks)


@pytest.mark.parametrize(("p", "most"), [(2, 2), (3, 4), (8, 4)])
def test_the_busiest_rank_has_two_channels_with_each_neighbour(p: int, most: int) -> None:
    for order in PipelineSchedule:
        assert busiest(order.timetable(p, 2 * p, 2)) == most
    assert busiest(PipelineSchedule.INTERLEAVED.timetable(3, 6, 2)) == 4  # the last hands on to the first


@pytest.mark.parametrize(
    ("said", "channels", "fits"), [("8", 4, True), ("7", 4, False), ("1", 2, False), ("32", 4, True)]
)
def test_too_few_connections_are_refused(said: str, channels: int, fits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(on_gpus.CONNECTIONS, said)
    if fits:
        on_gpus.require_connections(channels)
        return
    with pytest.raises(BadInput, match=f"CONNECTIONS is {said}, and a rank of this pipeline takes {channels + 4}"):
        on_gpus.require_connections(channels)


def test_cuda_has_eight_where_nobody_has_said_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(on_gpus.CONNECTIONS, raising=False)
    on_gpus.require_connections(4)
    with pytest.raises(BadInput, match="is 8, and a rank of this pipeline takes 9"):
        on_gpus.require_connections(5)
    monkeypatch.setenv(on_gpus.CONNECTIONS, "many")
    with pytest.raises(BadInput, match="is many"):
        on_gpus.require_connections(1)


def test_every_channel_counts_at_both_of_its_ends() -> None:
    schedule = PipelineSchedule.ZB_V.timetable(4, 8, 2)
    ends = [sum(rank in channel for channel in channels(schedule)) for rank in range(4)]
    assert ends == [2, 4, 4, 2] and busiest(schedule) == 4
