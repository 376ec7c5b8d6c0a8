"""What passes add to an order of computation: no more and no less than it needs, at the right place."""

from collections import Counter

import pytest

from reference.pipeline_parallel.ordering import own, pair, shared, stuck
from reference.pipeline_parallel.orders import breadth_first, gpipe, interleaved, one_f_one_b
from reference.pipeline_parallel.passes import (
    Free,
    Gather,
    Program,
    Receive,
    Reduce,
    Send,
    brings_gradients,
    channels,
    programmed,
    stage_of,
    with_gathering,
    with_messages,
    with_reduction,
)
from reference.pipeline_parallel.schedule import Action, Kind, Schedule
from reference.pipeline_parallel.simulate import needs
from reference.pipeline_parallel.validate import validate
from reference.zero_bubble.orders import zb_h1

from .pipes import ALL

named = pytest.mark.parametrize("name", ALL)


def test_a_program_can_be_read() -> None:
    program = programmed(one_f_one_b(2, 2), ahead=0)
    assert str(program).splitlines() == [
        "F0.0 S0.0>1 F0.1 S0.1>1 r1.0<1 B0.0 r1.1<1 B0.1+",
        "R0.0<0 F1.0 B1.0 s1.0>0 R0.1<0 F1.1 B1.1+ s1.1>0",
    ]


@named
def test_what_is_sent_is_received_once_in_the_same_order(name: str) -> None:
    schedule = ALL[name].make(4, 6)
    lines = with_messages(schedule, ahead=1)
    for (source, target), results in channels(schedule).items():
        sent = [step.result for step in lines[source] if isinstance(step, Send) and step.to == target]
        received = [step.result for step in lines[target] if isinstance(step, Receive) and step.source == source]
        assert sent == received == results


@named
@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_so_many_are_received_ahead_and_no_more(name: str, ahead: int) -> None:
    """Of each channel: beyond the furthest message that was needed so far, in the order in which they are sent."""
    schedule = ALL[name].make(4, 6)
    place = {result: (way, at) for way, results in channels(schedule).items() for at, result in enumerate(results)}
    total = {way: len(results) for way, results in channels(schedule).items()}
    for line in with_messages(schedule, ahead):
        begun, furthest = Counter(), Counter()
        for step in line:
            if isinstance(step, Receive):
                begun[place[step.result][0]] += 1
            elif isinstance(step, Action) and step.kind is not Kind.WEIGHT and needs(schedule, step) in place:
                way, at = place[needs(schedule, step)]
                furthest[way] = max(furthest[way], at)
                assert begun[way] == min(total[way], furthest[way] + 1 + ahead)


@named
def test_gradients_are_reduced_once_when_none_follows(name: str) -> None:
    for line in ALL[name].make(4, 6).lines:
        marked = list(with_reduction(line))
        reduced = [step.action.stage for step in marked if isinstance(step, Reduce)]
        assert sorted(reduced) == sorted({action.stage for action in line})
        for at, step in enumerate(marked):
            if isinstance(step, Reduce):
                later = [other for other in marked[at + 1 :] if brings_gradients(other)]
                assert step.action.stage not in {other.stage for other in later}


@named
@pytest.mark.parametrize("most", [1, 2, 3])
def test_a_stage_is_whole_when_it_computes_and_few_are(name: str, most: int) -> None:
    for line in ALL[name].make(4, 6).lines:
        whole: set[int] = set()
        for step in with_gathering(line, most):
            if isinstance(step, Gather):
                assert step.stage not in whole
                whole.add(step.stage)
            elif isinstance(step, Free):
                whole.remove(step.stage)
            else:
                assert stage_of(step) in whole
            assert len(whole) <= most
        assert not whole


def gathers(schedule: Schedule) -> list[Counter[int]]:
    """How often each rank gathers each of its stages."""
    program = programmed(schedule, ahead=1, shards=True)
    return [Counter(step.stage for step in line if isinstance(step, Gather)) for line in program.lines]


def test_breadth_first_gathers_each_stage_twice_whatever_the_number_of_micro_batches() -> None:
    """Once in each direction; the last two of a rank stay whole from forward to backward. Lamy-Poirier 2023."""
    for m in (4, 8, 16):
        for rank, counts in enumerate(gathers(breadth_first(4, m, 4))):
            assert counts == {rank: 2, 4 + rank: 2, 8 + rank: 1, 12 + rank: 1}


def test_interleaving_gathers_once_for_each_group_of_micro_batches() -> None:
    """Breadth-first needs six on a rank, whatever their number."""
    totals = [gathers(interleaved(4, m, 4))[0].total() for m in (8, 12, 16, 20)]
    assert totals == [12, 16, 20, 24]


def test_one_stage_a_rank_is_gathered_once() -> None:
    for order in (gpipe, one_f_one_b, zb_h1):
        assert gathers(order(4, 8)) == [{rank: 1} for rank in range(4)]


@pytest.mark.turns(3)
@named
def test_no_message_waits_for_ever_where_each_channel_has_a_communicator(name: str) -> None:
    for p in range(1, 9):
        for m in (1, 2, 5, 16):
            if name != "dual_pipe" or p % 2 == 0:
                schedule = ALL[name].make(p, m)
                for ahead in range(validate(schedule).room + 2):
                    assert not stuck(programmed(schedule, ahead), own)


@pytest.mark.parametrize("communicator", [pair, shared])
def test_1f1b_waits_for_ever_where_messages_share_a_communicator(communicator: object) -> None:
    """Each has begun to receive, and what it sends comes after that; without receives ahead, a little later."""
    waiting = [stuck(programmed(one_f_one_b(2, 4), ahead), communicator) for ahead in (1, 0)]
    assert waiting == ["rank 0 waits in B0.0; rank 1 waits in F1.0", "rank 0 waits in B0.0; rank 1 waits in F1.1"]


def test_a_message_that_no_rank_receives_is_found() -> None:
    program = programmed(one_f_one_b(2, 2), ahead=0)
    without = tuple(tuple(step for step in line if not isinstance(step, Receive)) for line in program.lines)
    assert stuck(Program(program.schedule, without)).startswith("rank 0 waits in B0.0; rank 1 waits in F1.0")


def test_messages_that_cross_in_another_order_are_found() -> None:
    """Rank 1 receives the second activation first."""
    program = programmed(one_f_one_b(2, 2), ahead=0)
    line = list(program.lines[1])
    first, second = (next(at for at, step in enumerate(line) if str(step) == text) for text in ("R0.0<0", "R0.1<0"))
    line[first], line[second] = line[second], line[first]
    assert "rank 1 waits in F1.0" in stuck(Program(program.schedule, (program.lines[0], tuple(line))))


def test_a_large_pipeline_is_proved() -> None:
    assert validate(one_f_one_b(64, 256)).room == 1
