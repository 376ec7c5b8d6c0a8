"""The call that a hang waits for, and the rank that has not made it, by what flight recorders have kept."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any


def missing_call(
    dumps: Sequence[Sequence[Mapping[str, Any]]], groups: Mapping[str, Sequence[int]]
) -> tuple[int, str, int, str]:
    """The rank that has not made a call, and the call.

    Args:
        dumps: for each rank the last calls that it has made, as torch's flight recorder dumps them.
        groups: the ranks of each process group, by its name.

    Returns:
        The rank, and of the call: the group, its number there, and its operation.
    """
    made = [defaultdict(dict) for _ in dumps]
    for rank, entries in enumerate(dumps):
        for entry in entries:
            if not entry["is_p2p"]:
                made[rank][entry["process_group"][0]][entry["collective_seq_id"]] = entry
    waiting, late = set(), []
    for group, members in groups.items():
        calls = {rank: made[rank][group] for rank in members}
        for number in sorted(set.intersection(*map(set, calls.values()))):
            said = {
                rank: (own[number]["profiling_name"], str(own[number]["input_sizes"])) for rank, own in calls.items()
            }
            if len(set(said.values())) > 1:
                usual = Counter(said.values()).most_common(1)[0][0]
                return next(rank for rank in members if said[rank] != usual), group, number, usual[0]
        last = {rank: max(own) for rank, own in calls.items()}
        first = min(last.values()) + 1
        absent = [rank for rank in members if last[rank] < first]
        for rank in members:
            if last[rank] >= first:
                waiting.add(rank)
                entry = calls[rank][first]
                late += [(entry["time_created_ns"], each, group, first, entry["profiling_name"]) for each in absent]
    return min(each for each in late if each[1] not in waiting)[1:]
