"""What all ranks decide together: at once, or without a wait."""

import torch
import torch.distributed as dist

from reference.cluster import Cluster
from reference.zero.agreement import Poll, anywhere


def test_a_flag_that_is_raised_anywhere_is_known_everywhere(two: Cluster) -> None:
    found = two.run(lambda: anywhere([dist.get_rank() == 1, False], dist.group.WORLD))
    assert found == [[True, False]] * 2


def test_a_poll_is_answered_with_what_was_asked_last(two: Cluster) -> None:
    def asks() -> list[list[bool]]:
        poll, found = Poll(dist.group.WORLD), []
        for step in range(3):
            found.append(poll.answer())
            poll.ask([dist.get_rank() == 1 and step == 1, step == 0])
        return [*found, poll.answer(), poll.answer()]

    assert two.run(asks) == [[[], [False, True], [True, False], [False, False], []]] * 2


def test_nobody_waits_where_a_poll_is_asked(two: Cluster) -> None:
    """Rank 1 asks after a message that rank 0 sends once it has asked: with `anywhere` both would wait for ever."""

    def asks() -> list[bool]:
        poll, message = Poll(dist.group.WORLD), torch.zeros(1)
        if dist.get_rank() == 0:
            poll.ask([False])
            dist.send(message, 1)
        else:
            dist.recv(message, 0)
            poll.ask([True])
        return poll.answer()

    assert two.run(asks) == [[True]] * 2
