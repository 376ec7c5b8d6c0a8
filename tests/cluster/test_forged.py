"""What a rank sends is read, never believed: untrusted code can write to the line to the owner."""

import json
from types import SimpleNamespace

import pytest

from reference.cluster import wire
from reference.cluster.call import RunningCall
from reference.cluster.errors import ResultError
from reference.cluster.ranks import RankMessage
from reference.cluster.wire import MessageKind
from reference.trace import Event, Op

EVENT = Event(1, Op.BARRIER, (0, 1), None, 0, (), "", 0, (), "", "f.py", 1, 0, None, 0.0, None, "0").row()
LISTS = {"strides": [], "pieces": [], "receives": []}
POST = {"what": "post", "event": EVENT, "number": 0, "function": "barrier", "width": 0} | LISTS
WAIT = {"what": "wait", "number": 0, "thread": 1, "name": "", "others": 0, "file": "f.py", "line": 1}


def call() -> RunningCall:
    """A call on two ranks that are never asked."""
    return RunningCall(
        SimpleNamespace(world_size=2, calls=0, pids=[]), 10.0, {"watch": True, "untrusted": True}, record=True
    )


def said(kind: MessageKind, report: object, rank: int = 1) -> RankMessage:
    """A message of a rank."""
    return RankMessage(rank, kind, report if isinstance(report, bytes) else json.dumps(report).encode(), [])


FORGED = [
    *(
        (MessageKind.EVENT, report)
        for report in (
            b"\xff",
            5,
            [5],
            [[]],
            [{}],
            [{"what": "nothing of ours"}],
            [{"what": "accused", "fault": 5}],
        )
    ),
    *(
        (MessageKind.EVENT, [POST | part])
        for part in ({"event": 5}, {"event": EVENT[:3]}, {"event": ["shout", *EVENT[1:]]})
    ),
    (MessageKind.EVENT, [WAIT]),  # for what was never posted
    *((MessageKind.FAULT, report) for report in (b"\xff", 5, [], {"details": 5}, {"line": "x"})),
    (MessageKind.RESULT, b"[5]\n"),
    *(
        (MessageKind.RESULT, wire.with_header(header, b""))
        for header in ({"rows": 5}, {"rows": [[]]}, {"messages": [[1]]})
    ),
]


@pytest.mark.parametrize(("kind", "report"), FORGED)
def test_a_report_that_makes_no_sense_is_an_error_of_its_rank(kind, report):
    with pytest.raises(ResultError, match="a report that makes no sense") as error:
        call().take(said(kind, report))
    assert (error.value.rank, error.value.kind) == (1, "forged report")


def test_a_report_that_makes_no_sense_beside_others_is_an_error():
    one = call()
    for rank, file in ((0, "f.py"), (1, 5)):  # a deadlock, of which one line is nowhere
        receive = Event(
            rank, Op.RECV, (0, 1), 1 - rank, 0, (2,), "float32", 8, (), "", file, 1, 0, None, 0.0, None, "0"
        )
        one.take(said(MessageKind.EVENT, [POST | {"event": receive.row()}], rank))
        one.take(said(MessageKind.EVENT, [WAIT | {"file": file}], rank))
    with pytest.raises(ResultError, match="a report that makes no sense") as error:
        one.judge()
    assert error.value.rank == 1


def test_a_fault_is_the_fault_of_who_reports_it():
    one = call()
    one.take(said(MessageKind.FAULT, {"rank": 0, "details": ["it was rank 0"]}))
    assert one.reports.faults[1].rank == 1
